# shellcheck shell=bash disable=SC2154 # names of scripts/compat, which reads this
# Programs over rsockets, both ends ours: rdmacm-utils' own, and such as know nothing of RDMA by `rxe run --rsockets`. Nobody
# listens by TCP there, so that what arrives has come by rsockets.

# The service ID of a TCP port of rdma_cm's.
service() { printf '0x%x' $((0x1060000 + $1)); }

# pair ID NAME "SERVER" "CLIENT" [COMPARE]: as cm, for words that a shell is to read; the data are compared by a third command.
pair() {
    local server client_code=0 server_code=0 name=$2
    due "$name" || return 0
    until_listening "$1" no
    host=$server_host on_rxe sh -c "exec $3" >"$place/server" 2>&1 &
    server=$!
    until_listening "$1" yes
    on_rxe sh -c "exec $4" >"$place/client" 2>&1 || client_code=$?
    # Servers that go on for ever have done their part.
    [ -z "${endless:-}" ] || end_all
    end_of_server "$client_code" || server_code=$?
    [ -z "${endless:-}" ] || server_code=0
    if [ "$server_code/$client_code" != 0/0 ]; then
        verdict "$name" "server $server_code, client $client_code"
    elif [ -n "${5:-}" ] && ! sh -c "$5"; then
        verdict "$name" "other data than were sent"
    else
        verdict "$name" ok
    fi
}

for words in "rstream -S 30000 -I 20 -C 20 -T v" "riostream -S 30000 -I 10 -C 10 -T v" \
    ${full:+"rstream -S 64 -I 50 -C 50 -T v -T b" "rstream -S 200000 -I 5 -C 5 -T v -T n"} \
    ${full:+"rstream -S 9000 -I 20 -C 20 -T v -T a" "rstream -S 50000 -I 5 -C 5 -T v -k 1" "riostream -S 64 -I 20 -C 20 -T v -T a"}; do
    cm "$(service 7471)" "$words" "$words -s 127.0.0.1"
done

work=$place/data
install -d -o 65534 -m 700 "$work"
head -c 3000000 /dev/urandom >"$work/data"
chmod 644 "$work/data"
same() { echo "cmp $work/data $work/$1"; }

endless=1
pair "$(service 7427)" "rcopy FILE 127.0.0.1:FILE" "rcopy" "rcopy $work/data 127.0.0.1:$work/copied" "$(same copied)"
if due "udpong -s 127.0.0.1 -C 100 -S 100 -T e"; then
    # It has no port of rdma_cm's until somebody sends.
    on_rxe udpong -b 127.0.0.1 -T e >"$place/server" 2>&1 &
    server=$!
    has_port() { [ -n "$(ip netns exec "$netns" ss -Hlun 'sport = :7174')" ] || has_ended; }
    comes has_port || true
    result=ok
    on_rxe udpong -s 127.0.0.1 -C 100 -S 100 -T e >"$place/client" 2>&1 || result="client's exit code"
    grep -q '^custom' "$place/client" || result="no figure"
    ip netns pids "$netns" | xargs -r kill 2>/dev/null || true
    wait "$server" || true
    verdict "udpong -s 127.0.0.1 -C 100 -S 100 -T e" "$result"
fi
endless=

# A server that forks, whose connections become rsockets in the processes that use them.
if due "rstream -T f -s 127.0.0.1 -S 1000 -I 20 -C 20"; then
    run_options=--rsockets
    on_rxe env RDMAV_FORK_SAFE=1 rstream -T f -b 127.0.0.1 -S 1000 -I 20 -C 20 >"$place/server" 2>&1 &
    server=$!
    comes listens_by_tcp 7471 || true
    result=ok
    run_options="--rsockets --trace"
    on_rxe env RDMAV_FORK_SAFE=1 rstream -T f -s 127.0.0.1 -S 1000 -I 20 -C 20 >"$place/client" 2>&1 || result="client's exit code"
    # It would end well by TCP, too.
    grep -q 'RC WRITE_ONLY_WITH_IMM .* len 1000 ' "$place/client" || result="no data by RDMA"
    ip netns pids "$netns" | xargs -r kill 2>/dev/null || true
    wait "$server" || true
    run_options=--rsockets
    verdict "RDMAV_FORK_SAFE=1 rstream -T f -s 127.0.0.1 -S 1000 -I 20 -C 20" "$result"
fi

# A client that connects by TCP and says nothing has its own process wait, and the others for 20 s, since they share a lock.
if due "/usr/bin/python3 -c (forks, beside a silent client)"; then
    run_options=--rsockets
    on_rxe env RDMAV_FORK_SAFE=1 /usr/bin/python3 -c '
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 7472))
while True:
    made, _ = listener.accept()
    if os.fork() == 0:
        made.sendall(b"hello")
        sys.exit()
    made.close()' >"$place/server" 2>&1 &
    server=$!
    comes listens_by_tcp 7472 || true
    ip netns exec "$netns" /usr/bin/python3 -c '
import socket, time
silent = socket.create_connection(("127.0.0.1", 7472))
# It is told when the server waits for its rsocket.
silent.recv(4)
print("told", flush=True)
time.sleep(400)' >"$place/silent" 2>&1 &
    is_told() { grep -q told "$place/silent" || has_ended; }
    comes is_told || true
    result=ok
    run_options="--rsockets --trace"
    on_rxe env RDMAV_FORK_SAFE=1 /usr/bin/python3 -c '
import socket
made = socket.create_connection(("127.0.0.1", 7472))
got = b""
while len(got) < 5:
    got += made.recv(5 - len(got)) or exit("the server has ended the connection")
print(got)' >"$place/client" 2>&1 || result="client's exit code"
    grep -q "^b'hello'" "$place/client" || result="no greeting"
    grep -q 'RC WRITE_ONLY_WITH_IMM' "$place/client" || result="no data by RDMA"
    end_all
    wait "$server" || true
    run_options=--rsockets
    verdict "RDMAV_FORK_SAFE=1 /usr/bin/python3 -c (forks, beside a silent client)" "$result"
fi

# Programs that know nothing of RDMA: on one host, and between two.
plain_programs() { # ADDRESS NAME
    pair "$(service 5001)" "nc -N $2 5001 <FILE" "nc -l $1 5001 </dev/null >$work/received" \
        "nc -N $1 5001 <$work/data" "$(same received)"
    pair "$(service 5201)" "iperf3 -c $2 -t 1" "iperf3 -s -1 -B $1" "iperf3 -c $1 -t 1"
    [ -z "$full" ] || pair "$(service 5201)" "iperf3 -c $2 -t 1 -R -P 4" "iperf3 -s -1 -B $1" "iperf3 -c $1 -t 1 -R -P 4"
    endless=1
    pair "$(service 8080)" "curl http://$2:8080/FILE" "/usr/bin/python3 -m http.server --directory $work --bind $1 8080" \
        "curl -sS -o $work/fetched http://$1:8080/data" "$(same fetched)"
    pair "$(service 6380)" "redis-benchmark -h $2 -p 6380 -n 2000 -c 5 -t set,get" \
        "redis-server --bind $1 --port 6380 --protected-mode no --save '' --dir $work" \
        "redis-benchmark -h $1 -p 6380 -n 2000 -c 5 -t set,get -q"
    endless=
}
run_options=--rsockets
plain_programs 127.0.0.1 127.0.0.1
two_hosts() {
    local server_host=$netns-there
    ip netns add "$server_host"
    ip -n "$server_host" link set lo up
    ip -n "$netns" link add rxe-e type veth peer name rxe-f netns "$server_host"
    ip -n "$netns" addr add 10.66.2.1/24 dev rxe-e
    ip -n "$server_host" addr add 10.66.2.2/24 dev rxe-f
    ip -n "$netns" link set rxe-e up
    ip -n "$server_host" link set rxe-f up
    plain_programs 10.66.2.2 HOST
    ip -n "$netns" link del rxe-e
}
two_hosts
# Where nobody listens as an rsocket, a program is told as by TCP.
if due "curl http://127.0.0.1:8081/"; then
    code=0
    : >"$place/server"
    on_rxe curl -sS http://127.0.0.1:8081/ >"$place/client" 2>&1 || code=$?
    result=ok
    [ "$code" = 7 ] || result="exit code $code"
    verdict "curl http://127.0.0.1:8081/ (nobody listens)" "$result"
fi
run_options=
