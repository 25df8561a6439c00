# shellcheck shell=bash disable=SC2154 # names of scripts/compat, which reads this
# The cells of scripts/compat with both ends ours.

one '^ +rxe0' ibv_devices
# has_joined END: it has said that it is a member of its group, or the server has ended.
has_joined() { grep -q joined "$place/$1" || has_ended; }

# What programs find below /sys/class: by their own calls, through a shell, through the loader's eyes of others.
one '^RoCE v2$' cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0
one '^lo$' ls /sys/class/infiniband/rxe0/device/net/
one ' rxe0$' ls -l /sys/class/infiniband
one '^found 4: ACTIVE$' bash -c 'cd /sys/class/infiniband && test -d rxe0 && echo "found $(<"$PWD"/rxe*/ports/1/state)"'
one '/sys/class/infiniband/rxe0/ports/1/gids/0$' find /sys/class/infiniband/ -name 0 -path '*gids*'
one "^\['rxe0'\] True$" /usr/bin/python3 -c \
    'import os; d = "/sys/class/infiniband"; print(os.listdir(d), os.path.exists(d + "/rxe0/node_guid"))'

# As ibdev2netdev does it.
one '^rxe0 port 1 ==> lo \(ACTIVE\)$' bash -c 'for d in /sys/class/infiniband/*; do for p in "$d"/ports/*; do read -r state <"$p/state"; for n in "$d"/device/net/*; do echo "${d##*/} port ${p##*/} ==> ${n##*/} (${state#*: })"; done; done; done'
# The program that documents have people type, as `rxe run` gives it.
one '^link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo *$' rdma link show

# Counters are those of the moment, of all processes, and what one had counted that is gone stays.
one '^it counts$' bash -c 'cd /sys/class/infiniband/rxe0/ports/1; a=$(cat hw_counters/sent_pkts)
    ibv_rc_pingpong -g 0 -n 100 >/dev/null & until ibv_rc_pingpong -g 0 -n 100 127.0.0.1 >/dev/null 2>&1; do sleep 0.1; done; wait
    read -r b <"$PWD/hw_counters/sent_pkts"; [ "$b" -ge $((a + 200)) ] && echo "it counts" || echo "$a, then $b"'

# Programs that load the libraries when they need them, by the names of packages for developers, get ours and no second one.
for name in libibverbs.so librdmacm.so; do
    one "^\['[^ ]*/rxe/libibverbs.so.1'\]\$|^\['[^ ]*/dropin/libibverbs.so.1'\]\$" /usr/bin/python3 -c \
        "import ctypes; ctypes.CDLL('$name'); print(sorted({l.split()[-1] for l in open('/proc/self/maps') if 'libibverbs' in l or 'librdmacm' in l}))"
done

# A static program, by mounts; and a pair with the devices shown that way.
run_options=--sysfs=mount
one '^4: ACTIVE$' busybox cat /sys/class/infiniband/rxe0/ports/1/state
two ibv_rc_pingpong -g 0 -c -n 100
run_options=

one 'State: Active' ibstat
one 'rate:[[:space:]]+40 Gb/sec' ibstatus

# The libraries above verbs find the device and take it.
one 'Device: rxe0:1' ucx_info -d
one 'domain: rxe0' fi_info -p verbs
one 'MCA btl: openib' ompi_info

# An event of the network reaches a program that does nothing but wait for it.
if due "ibv_asyncwatch"; then
    on_rxe stdbuf -oL ibv_asyncwatch >"$place/client" 2>&1 &
    watcher=$!
    : >"$place/server"
    for number in $(seq 250); do
        # Until it has the device open nobody is told; then each change is told.
        ip -n "$netns" addr add "127.77.0.$number/32" dev lo
        grep -q IBV_EVENT_GID_CHANGE "$place/client" && break
        sleep 0.1
    done
    for number in $(seq "$number"); do ip -n "$netns" addr del "127.77.0.$number/32" dev lo; done
    if grep -q IBV_EVENT_GID_CHANGE "$place/client"; then
        verdict ibv_asyncwatch ok
    else
        verdict ibv_asyncwatch "no event"
    fi
    kill "$watcher" 2>/dev/null || true
    ip netns pids "$netns" | xargs -r kill 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
fi

one 'GID\[ +0\]:.*::ffff:127.0.0.1, RoCE v2' ibv_devinfo -v

# Installed below a prefix it is the same: found beside the program, one file under two names.
if [[ "scripts/install" == *"$wanted"* ]]; then
    if ./scripts/install --debug --no-build "$place/prefix" >"$place/server" 2>&1; then
        chmod -R a+rX "$place/prefix"
        installed=$(ip netns exec "$netns" setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all \
            env -u LD_LIBRARY_PATH XDG_RUNTIME_DIR="$place/run" "$place/prefix/bin/rxe" run -- ibv_devices 2>"$place/client") || true
        if [[ $installed == *rxe0* ]]; then
            verdict "scripts/install" ok
        else
            verdict "scripts/install" "no device under the installed program"
        fi
    else
        verdict "scripts/install" "exit code"
    fi
fi

# An address that is no loopback one: those stand for all addresses.
ip -n "$netns" addr add 10.66.0.9/32 dev lo
for program in wrong wrong_cm forked targets gone cancelled endpoints strangers newer windows numbers packed edges rsockets; do
    # They go by their own names in the list.
    [[ $program == *"$wanted"* ]] || continue
    if [ -x "$place/$program" ]; then
        result=ok
        arguments=()
        case $program in
        wrong_cm) arguments=(here=10.66.0.9) ;;
        endpoints | targets) arguments=(10.66.0.9) ;;
        esac
        on_rxe "$place/$program" "${arguments[@]}" >"$place/client" 2>&1 || result="exit code"
        verdict "$program (rxe-abi/tests/c)" "$result"
    else
        echo "skipped: $program: it was not compiled"
        skipped=$((skipped + 1))
    fi
done

ip -n "$netns" addr del 10.66.0.9/32 dev lo

# Its address goes while it has joined a group.
if [[ groups == *"$wanted"* ]]; then
    if [ -x "$place/groups" ]; then
        ip -n "$netns" addr add 10.66.0.1/32 dev lo
        : >"$place/server"
        on_rxe "$place/groups" 10.66.0.1 >"$place/client" 2>&1 &
        member=$!
        server=$member comes has_joined client || true
        ip -n "$netns" addr del 10.66.0.1/32 dev lo
        result=ok
        wait "$member" || result="exit code"
        verdict "groups (rxe-abi/tests/c)" "$result"
    else
        echo "skipped: groups: it was not compiled"
        skipped=$((skipped + 1))
    fi
fi

two ibv_rc_pingpong -g 0 -c -n 200
two ibv_rc_pingpong -g 0 -c -n 200 -e
two ibv_rc_pingpong -g 1 -c -n 200 -o
two ibv_rc_pingpong -g 0 -c -n 200 -t
two ibv_rc_pingpong -g 0 -c -n 200 -N
two ibv_uc_pingpong -g 0 -c -n 200
two ibv_uc_pingpong -g 0 -c -n 200 -e
two ibv_ud_pingpong -g 0 -c -n 200
two ibv_ud_pingpong -g 0 -c -n 200 -e
two ibv_srq_pingpong -g 0 -c -n 200
two ibv_srq_pingpong -g 0 -c -n 200 -e
two ibv_xsrq_pingpong -g 0 -s 100000
two ibv_xsrq_pingpong -g 0 -e

# shellcheck source=testbed/compat/layers.sh
. testbed/compat/layers.sh

# pyverbs' own tests: in Debian they are rdma-core's documentation, which small installations leave out.
pyverbs_tests() {
    local cache=${RXE_CACHE:-$PWD/.cache}/pyverbs
    if [ -e /usr/share/doc/rdma-core/tests/run_tests.py ]; then
        cp -r /usr/share/doc/rdma-core/tests "$place"
    else
        if [ ! -d "$cache/tests" ]; then
            mkdir -p "$cache/deb"
            (cd "$cache/deb" && apt-get download -qq rdma-core && dpkg -x rdma-core_*.deb .) >/dev/null 2>&1 || return 1
            mv "$cache/deb/usr/share/doc/rdma-core/tests" "$cache/tests"
            rm -rf "$cache/deb"
        fi
        cp -r "$cache/tests" "$place"
    fi
    find "$place/tests" -name '*.gz' -exec gunzip -f {} +
    cp rxe-abi/tests/run_pyverbs.py "$place"
    chmod -R a+rX "$place"
}

# Each has the outcome that docs/pyverbs.txt says; reasons of skips may be other words on another host.
if due "python3 pyverbs"; then
    if ! pyverbs_tests; then
        echo "skipped: pyverbs: the package rdma-core, which has its tests, cannot be had"
        skipped=$((skipped + 1))
    else
        : >"$place/client"
        on_rxe /usr/bin/python3 -B "$place/run_pyverbs.py" "$place" rxe0 \
            >"$place/outcomes" 2>"$place/server" || true
        if [ -n "$write" ]; then
            { sed -n '/^#/p' docs/pyverbs.txt && cat "$place/outcomes"; } >"$place/renewed"
            cp "$place/renewed" docs/pyverbs.txt
        fi
        # A failure is none of the outcomes that a list may hold.
        if grep -E ' (ERROR|FAILED)$' "$place/outcomes" >"$place/client"; then
            verdict pyverbs "a test fails"
        elif diff <(grep -v '^#' docs/pyverbs.txt | cut -d' ' -f1,2) <(cut -d' ' -f1,2 "$place/outcomes") >"$place/client"; then
            verdict "pyverbs: $(grep -c ' ok$' "$place/outcomes") pass, $(grep -c ' skipped' "$place/outcomes") skip" ok
        else
            verdict pyverbs "outcomes are not those of docs/pyverbs.txt"
        fi
    fi
fi

# qperf's server serves one test after another, so one is enough.
qperf_server=
qperf_serve() {
    [ -z "$qperf_server" ] || return 0
    on_rxe qperf >"$place/server" 2>&1 &
    qperf_server=$!
    server=$qperf_server comes listens_by_tcp 19765 || true
}
qperf_test() {
    local name="qperf -cm1 $*" code=0
    due "$name" || return 0
    qperf_serve
    on_rxe qperf -cm1 127.0.0.1 -t 1 "$@" >"$place/client" 2>&1 || code=$?
    if [ "$code" != 0 ]; then
        verdict "$name" "client $code"
    elif ! grep -qE '^ +(latency|bw|send_bw|msg_rate|loc_node) +=' "$place/client"; then
        verdict "$name" "no figure"
    else
        verdict "$name" ok
    fi
}
qperf_test conf
for work in bw bi_bw lat rdma_read_bw rdma_read_lat rdma_write_bw rdma_write_lat rdma_write_poll_lat compare_swap_mr fetch_add_mr; do
    qperf_test "rc_$work"
done
qperf_test ver_rc_compare_swap
qperf_test ver_rc_fetch_add
# Tests that have no -cm1 name the peer by LID, which is no way on Ethernet, over kernel devices neither.
qperf_lacks() {
    local name="qperf 127.0.0.1 -t 1 $1" no_lid="qperf names the peer by LID without -cm1, and Ethernet has none"
    due "$name" || return 0
    qperf_serve
    # shellcheck disable=SC2086 # words
    lacks "$2" "$no_lid" $name
}
if [ -n "$full" ]; then
    for work in bw bi_bw lat rdma_write_bw rdma_write_lat rdma_write_poll_lat; do
        qperf_lacks "uc_$work" "(server: )?failed to modify QP to RTR: Invalid argument"
    done
    for work in bw bi_bw lat; do
        qperf_lacks "ud_$work" "(server: )?failed to create address handle: Invalid argument"
    done
fi
if [ -n "$qperf_server" ]; then
    ip netns pids "$netns" | xargs -r kill 2>/dev/null || true
    wait "$qperf_server" 2>/dev/null || true
fi

few="-x 0 -F -n 100"
for work in write read send atomic; do
    # shellcheck disable=SC2086 # the words are meant to be split
    two ib_${work}_bw $few
    # shellcheck disable=SC2086
    two ib_${work}_lat $few
done
# shellcheck disable=SC2086
{
    two ib_send_bw $few -c UC
    two ib_send_bw $few -c UD
    two ib_send_lat $few -c UD
    two ib_write_bw $few -c UC
    two ib_write_bw $few -b -q 4
    two ib_send_bw $few -b -e
    two ib_send_bw $few -q 2 --use-srq
    two ib_send_lat $few -I 64
    two ib_send_bw $few -c XRC
    two ib_send_lat $few -c XRC
    two ib_write_bw $few -c XRC
    two ib_read_bw $few -c XRC -q 2
}
for home in 127.0.0.1 ::1; do
    cm 0x1061c06 "rping -s -a $home -C 10 -V" "rping -c -a $home -C 10 -V"
    cm 0x1061d2f "ucmatose -b $home -c 20 -C 10" "ucmatose -s $home -c 20 -C 10"
    cm 0x1111c06 "udaddy -b $home -c 5 -C 10" "udaddy -s $home -c 5 -C 10"
    cm 0x1061d2f "rdma_server -s $home" "rdma_client -s $home"
done
cm 0x1061d2f "rdma_xserver -c r" "rdma_xclient -c r -s 127.0.0.1"
cm 0x13f1d2f "rdma_xserver -c x" "rdma_xclient -c x -s 127.0.0.1"
# A server without end.
for home in 127.0.0.1 ::1; do
    due "cmtime -s $home -c 20" || continue
    until_listening 0x1061d2f no
    on_rxe cmtime -b $home >"$place/server" 2>&1 &
    server=$!
    until_listening 0x1061d2f yes
    result=ok
    on_rxe cmtime -b $home -s $home -c 20 >"$place/client" 2>&1 || result="exit code"
    verdict "cmtime -s $home -c 20" "$result"
    ip netns pids "$netns" | xargs -r kill 2>/dev/null || true
    wait "$server" 2>/dev/null || true
done
# A sender destroys its queue pairs as soon as it has posted, so there are several; the receiver ends with what it wants.
if due "mckey -b 127.0.0.1 -m 239.1.2.3"; then
    on_rxe stdbuf -oL mckey -b 127.0.0.1 -m 239.1.2.3 >"$place/server" 2>&1 &
    server=$!
    comes has_joined server || true
    result=ok
    on_rxe mckey -b 127.0.0.1 -m 239.1.2.3 -s -c 20 >"$place/client" 2>&1 || result="sender's exit code"
    end_of_server "${result/ok/0}" || result="receiver's exit code"
    verdict "mckey -b 127.0.0.1 -m 239.1.2.3" "$result"
fi
for work in write read send; do
    cm 0x1064853 "ib_${work}_bw -R -F -n 100" "ib_${work}_bw -R -F -n 100 127.0.0.1"
done
if [ -n "$full" ]; then
    for work in atomic_bw write_lat read_lat send_lat atomic_lat; do
        cm 0x1064853 "ib_$work -R -F -n 100" "ib_$work -R -F -n 100 127.0.0.1"
    done
    cm 0x1114853 "ib_send_bw -R -F -n 100 -c UD" "ib_send_bw -R -F -n 100 -c UD 127.0.0.1"
fi

# The package, as dpkg installs it in a copy of this system, from the build that is there.
if [ -n "$full" ] && [[ scripts/build-deb == *"$wanted"* ]]; then
    code=0
    if ! package=$(./scripts/build-deb --debug --no-build "$place/deb" 2>"$place/server"); then
        verdict "scripts/build-deb, dpkg -i" "not built"
    else
        testbed/compat/deb.sh "$package" >"$place/client" 2>&1 || code=$?
        case $code in
        0) verdict "scripts/build-deb, dpkg -i" ok ;;
        77)
            grep '^skipped:' "$place/client"
            skipped=$((skipped + 1))
            ;;
        *) verdict "scripts/build-deb, dpkg -i" "exit code $code" ;;
        esac
    fi
fi

if [ -n "$full" ] && [[ minute == *"$wanted"* ]]; then
    : >"$place/server"
    result=ok
    ip netns exec "$netns" /usr/bin/python3 testbed/compat/minute.py --folder "$place" >"$place/client" 2>&1 || result="see above"
    sed 's/^/        /' "$place/client"
    verdict "minute: 8 pairs of rping and ib_write_bw at once, some killed" "$result"
fi

if [ -n "$full" ]; then
    # shellcheck disable=SC2086
    for work in write read send; do
        two ib_${work}_bw -x 0 -F -n 100 -a
        two ib_${work}_lat -x 0 -F -n 100 -a
        two ib_${work}_bw $few -q 16
        two ib_${work}_bw $few --report_gbits
        two ib_${work}_bw -x 0 -n 100
        two ib_${work}_bw -x 0 -F -D 2
    done
    # shellcheck disable=SC2086
    {
        two ib_send_lat $few -e
        two ib_send_lat $few -c UC
        two ib_send_lat $few --use-srq
        two ib_send_bw $few -I 64
        two ib_write_bw $few -I 64
        two ib_write_lat $few -I 64
        two ib_write_lat $few -c UC
        two ib_read_bw $few -b
        two ib_read_bw $few -e
        two ib_read_lat $few -e
        two ib_atomic_bw $few -b
        two ib_atomic_bw $few -e
        two ib_atomic_bw $few -q 16
        two ib_atomic_bw $few --report_gbits
        two ib_atomic_bw -x 0 -n 100
        two ib_atomic_lat $few -e
    }
    for work in write read send atomic; do two ib_${work}_lat -x 0 -n 100; done
    # shellcheck disable=SC2086
    for type in FETCH_AND_ADD CMP_AND_SWAP; do
        two ib_atomic_bw $few -A $type
        two ib_atomic_lat $few -A $type
    done
    two ibv_rc_pingpong -g 0 -c -s 1000000 -n 50
    two ibv_rc_pingpong -g 0 -c -m 256 -r 3
    two ibv_rc_pingpong -g 0 -c -n 200 -o -P
    two ibv_rc_pingpong -g 0 -c -n 200 -O
    two ibv_rc_pingpong -g 0 -c -n 200 -j
    two ibv_uc_pingpong -g 1 -c -n 200
    two ibv_ud_pingpong -g 1 -c -n 200
    two ibv_srq_pingpong -g 1 -c -n 200 -o
    two ibv_xsrq_pingpong -g 1 -o

    # IPv6 groups. Linux takes none on the loopback device, so that this is on another.
    if due "mckey -b ::1 -m ff0e::1:2"; then
        ip -n "$netns" link add rxe-a type veth peer name rxe-b
        ip netns exec "$netns" sysctl -qw net.ipv6.conf.rxe-a.accept_dad=0
        ip -n "$netns" addr add fd00:99::1/64 dev rxe-a nodad
        ip -n "$netns" link set rxe-b up
        ip -n "$netns" link set rxe-a up
        is_up() { ip -n "$netns" link show rxe-a | grep -q 'state UP'; }
        comes is_up || true
        run_options="--device fd00:99::1"
        on_rxe stdbuf -oL mckey -b fd00:99::1 -m ff0e::1:2 >"$place/server" 2>&1 &
        server=$!
        comes has_joined server || true
        result=ok
        on_rxe mckey -b fd00:99::1 -m ff0e::1:2 -s -c 20 >"$place/client" 2>&1 || result="sender's exit code"
        end_of_server "${result/ok/0}" || result="receiver's exit code"
        run_options=
        verdict "mckey -b ::1 -m ff0e::1:2" "$result"
        ip -n "$netns" link del rxe-a
    fi

    # What is not there says so.
    lacks "Unable to create QP\." "raw packets are for who may open packet sockets, and it runs as nobody" \
        raw_ethernet_bw --server -B 00:00:00:00:00:02 -E 00:00:00:00:00:01
fi
