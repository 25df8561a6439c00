# shellcheck shell=bash disable=SC2154 # names of scripts/compat, which reads this
# iSCSI over RDMA (iSER), both ends ours: tgt's server, and what uses libiscsi. What is written is read back, and both are compared
# with the server's file.

disk=$place/iser
bytes=$((4 << 20))

# The server and its own command find each other by this file.
tgtadm_here() {
    setpriv --reuid=65534 --regid=65534 --clear-groups env TGT_IPC_SOCKET="$disk/socket" \
        tgtadm -C 0 --lld iser --op "$1" --mode "${@:2}"
}

# Has the server offer the file. tgt before 1.0.95 wants iSER's initiators to be allowed by address and by name.
offer() {
    tgtadm_here new target --tid 1 --targetname iqn.2026-11.example:disk &&
        tgtadm_here bind target --tid 1 --initiator-address ALL &&
        tgtadm_here bind target --tid 1 --initiator-name iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq &&
        tgtadm_here bind target --tid 1 --initiator-name iqn.2026-11.example:qemu &&
        tgtadm_here new logicalunit --tid 1 --lun 1 --backing-store "$disk/file"
}

# What qemu's programs call it.
there=driver=raw,file.driver=iscsi,file.transport=iser,file.portal=127.0.0.1:3260,file.target=iqn.2026-11.example:disk,file.lun=1
there=$there,file.initiator-name=iqn.2026-11.example:qemu

# Writes the data in pieces, and reads all. (Requests longer than the server takes end qemu.)
write_and_read() {
    local pieces=() at
    for at in $(seq 0 65536 $((bytes - 1))); do
        dd if="$disk/data" of="$disk/piece$at" bs=65536 count=1 skip=$((at / 65536)) status=none
        pieces+=(-c "write -s $disk/piece$at $at 65536")
    done
    on_rxe qemu-io --image-opts "${pieces[@]}" "$there" &&
        on_rxe qemu-img dd --image-opts bs=64k "if=$there" "of=$disk/run/back"
}

iser() {
    local server result=ok
    rm -rf "$disk"
    install -d -o 65534 -m 755 "$disk" "$disk/run"
    head -c "$bytes" /dev/urandom >"$disk/data"
    head -c "$bytes" /dev/zero >"$disk/file"
    chown 65534 "$disk/file"
    until_listening 0x1060cbc no
    on_rxe env TGT_IPC_SOCKET="$disk/socket" tgtd -f -C 0 --iscsi portal=127.0.0.1:3260 >"$place/server" 2>&1 &
    server=$!
    until_listening 0x1060cbc yes
    : >"$place/client"
    if ! offer >>"$place/client" 2>&1; then
        result="the server takes no commands"
    elif ! on_rxe iscsi-inq iser://127.0.0.1:3260/iqn.2026-11.example:disk/1 >>"$place/client" 2>&1 ||
        ! grep -q VIRTUAL-DISK "$place/client"; then
        result="no answer to an inquiry"
    elif ! write_and_read >>"$place/client" 2>&1; then
        result="exit code"
    elif ! cmp "$disk/data" "$disk/file" || ! cmp "$disk/data" "$disk/run/back"; then
        result="other data than were written"
    fi
    # It ends by no signal that it could refuse.
    ip netns pids "$netns" | xargs -r kill -9 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    verdict "tgtd, iSER: iscsi-inq, qemu-io, qemu-img" "$result"
}

if due "tgtd, iSER: iscsi-inq, qemu-io, qemu-img"; then
    iser
fi
