# shellcheck shell=bash disable=SC2154 # names of scripts/compat, which reads this
# Programs that use verbs through a library of their own, or beside all else that they do: UCX, libfabric, Open MPI, fio,
# QEMU, librpma.

# Nothing is told but the transport, which of them all is to be tried.
listens=13337
two ucx_perftest -t tag_lat -n 500
for tls in rc_v ud_v; do
    two env UCX_TLS=$tls ucx_perftest -t tag_lat -n 500
    two env UCX_NET_DEVICES=rxe0:1 UCX_TLS=$tls ucx_perftest -t tag_lat -n 500
done
# libfabric leaves out lo.
listens=47592
peer=10.66.1.1
if due fi_pingpong; then
    ip -n "$netns" link add rxe-c type veth peer name rxe-d
    ip -n "$netns" addr add $peer/24 dev rxe-c
    ip -n "$netns" link set rxe-d up
    ip -n "$netns" link set rxe-c up
    run_options="--device rxe-c"
    for provider in ofi_rxm ofi_rxd; do two fi_pingpong -p "verbs;$provider" -e rdm -I 20 -c; done
    run_options=
    ip -n "$netns" link del rxe-c
fi
listens=18515
peer=127.0.0.1


# Open MPI over UCX, which says what it uses; then with the other processes to be reached by the device alone. (Unless it is told
# so, Open MPI takes UCX for devices named mlx* alone.)
if [[ mpirun == *"$wanted"* || "mpirun -n 3 alltoall" == *"$wanted"* ]]; then
    if command -v mpicc >/dev/null && mpicc -Wall -Werror -o "$place/alltoall" testbed/compat/alltoall.c; then
        chmod a+rx "$place/alltoall"
        mpi() {
            local name="mpirun -n 3${1:+ $1} alltoall" how="--oversubscribe -x UCX_LOG_LEVEL=info"
            : >"$place/server"
            # shellcheck disable=SC2086 # words
            if ! on_rxe env HOME="$place/run" mpirun -n 3 $how $1 "$place/alltoall" >"$place/client" 2>&1; then
                verdict "$name" "exit code"
            elif ! grep -q "^alltoall of 3 processes, 0 integers wrong" "$place/client"; then
                verdict "$name" "wrong data"
            elif [ -n "$2" ] && ! grep -q "$2_verbs/rxe0:1" "$place/client"; then
                verdict "$name" "the device was not used"
            else
                verdict "$name" ok
            fi
        }
        mpi "" ""
        mpi "--mca pml ucx" rc
        mpi "--mca pml ucx -x UCX_TLS=self,rc_v" rc
        mpi "--mca pml ucx -x UCX_TLS=self,ud_v" ud
    else
        echo "skipped: mpirun: alltoall.c cannot be compiled here"
        skipped=$((skipped + 1))
    fi
fi

# fio: both ends compute the checksum of each block of messages; by WRITE and READ it moves without one (its server then does not
# know what came). The server posts a receive for each block at the start: fio posts no others before those are used up, and its
# client does not wait for a receive. As threads, both end with their time limit; as processes they would outlive it.
fio_pair() {
    local name="fio --ioengine=rdma --verb=$1${2:+ $2}" both="--ioengine=rdma --hostname=127.0.0.1 --port=20049 --bs=4k --size=1m --thread $2"
    local server client_code=0 server_code=0
    due "$name" || return 0
    until_listening 0x1064e51 no
    # shellcheck disable=SC2086 # words
    on_rxe fio --name=server $both --rw=read --iodepth=256 --iodepth_batch_complete=256 --eta=never >"$place/server" 2>&1 &
    server=$!
    until_listening 0x1064e51 yes
    # shellcheck disable=SC2086
    on_rxe fio --name=client $both --rw=write --verb="$1" ${2:+--do_verify=0} --iodepth=1 --eta=never >"$place/client" 2>&1 ||
        client_code=$?
    wait "$server" || server_code=$?
    if [ "$server_code/$client_code" != 0/0 ]; then
        verdict "$name" "server $server_code, client $client_code"
    elif ! grep -q 'issued rwts: total=0,256,' "$place/client"; then
        verdict "$name" "not 256 blocks"
    else
        verdict "$name" ok
    fi
}
fio_pair send --verify=crc32c
fio_pair write ""
fio_pair read ""

# QEMU migrates a virtual machine, and the memory of both is compared.
for pin in "" --pin-all; do
    name="qemu-system-x86_64, migrate rdma:IPv4${pin:+ (rdma-pin-all)}"
    due "$name" || continue
    : >"$place/server"
    rm -rf "$place/run/machines"
    setpriv --reuid=65534 --regid=65534 --clear-groups mkdir "$place/run/machines"
    cp testbed/compat/migrate.py "$place"
    chmod a+r "$place/migrate.py"
    result=ok
    # It starts the two programs on the drop-in itself.
    ip netns exec "$netns" setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all env -u LD_LIBRARY_PATH \
        RXE_CONFIG="$place/rxe.toml" XDG_RUNTIME_DIR="$place/run" timeout -k 5 200 /usr/bin/python3 "$place/migrate.py" \
        "$place/run/machines" $pin -- "$place/rxe" run -- >"$place/client" 2>&1 || result="exit code"
    [ "$result" != ok ] || grep -q 'memory the same' "$place/client" || result="memory not compared"
    verdict "$name" "$result"
done

# librpma, by a program on it: Debian has the library without its examples.
if [[ "librpma, write, flush and read" == *"$wanted"* ]]; then
    if gcc -Wall -Werror -o "$place/persist" testbed/compat/persist.c -lrpma -libverbs; then
        chmod a+rx "$place/persist"
        server_code=0
        client_code=0
        until_listening 0x1061c25 no
        on_rxe "$place/persist" server 127.0.0.1 7205 >"$place/server" 2>&1 &
        server=$!
        until_listening 0x1061c25 yes
        on_rxe "$place/persist" client 127.0.0.1 7205 >"$place/client" 2>&1 || client_code=$?
        wait "$server" || server_code=$?
        result=ok
        [ "$server_code/$client_code" = 0/0 ] || result="server $server_code, client $client_code"
        verdict "librpma, write, flush and read" "$result"
    else
        echo "skipped: librpma: persist.c cannot be compiled here"
        skipped=$((skipped + 1))
    fi
fi
