#!/bin/sh
# What a guest does of storage over RDMA: `storage.sh FUNCTION ARGUMENT...`. Its modules have to be loaded
# (`scripts/kernel-vm load`); no tools of NVMe's or NFS's are needed. See testbed/interop/storage.py.
set -eu

TARGET=/sys/kernel/config/nvmet

# nvme_target NAME IPv4 IPv6: serves /dev/ram0 as namespace 1 of a subsystem, at port 4420 of both addresses.
nvme_target() {
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir -p "$TARGET/subsystems/$1/namespaces/1"
    echo 1 >"$TARGET/subsystems/$1/attr_allow_any_host"
    printf /dev/ram0 >"$TARGET/subsystems/$1/namespaces/1/device_path"
    echo 1 >"$TARGET/subsystems/$1/namespaces/1/enable"
    nvme_port 1 "$1" ipv4 "$2"
    nvme_port 2 "$1" ipv6 "$3"
}

nvme_port() {
    mkdir "$TARGET/ports/$1"
    echo rdma >"$TARGET/ports/$1/addr_trtype"
    echo "$3" >"$TARGET/ports/$1/addr_adrfam"
    echo "$4" >"$TARGET/ports/$1/addr_traddr"
    echo 4420 >"$TARGET/ports/$1/addr_trsvcid"
    ln -s "$TARGET/subsystems/$2" "$TARGET/ports/$1/subsystems/$2"
}

# nvme_connect NAME IP: becomes the initiator of a subsystem; prints the block device.
nvme_connect() {
    # A target that dies is given up after two seconds, not ten minutes.
    echo "nqn=$1,transport=rdma,traddr=$2,trsvcid=4420,hostnqn=nqn.2014-08.org.nvmexpress:guest,\
hostid=01234567-89ab-cdef-0123-456789abcdef,nr_io_queues=1,queue_size=16,reconnect_delay=1,ctrl_loss_tmo=2" \
        >/dev/nvme-fabrics
    try=0
    while [ $try -lt 300 ]; do
        for device in /dev/nvme[0-9]*n1; do
            [ -b "$device" ] && echo "$device" && return
        done
        try=$((try + 1))
        sleep 0.1
    done
    echo "no block device came" >&2
    return 1
}

nvme_disconnect() {
    for controller in /sys/class/nvme/nvme*; do
        echo 1 >"$controller/delete_controller"
    done
}

# fill DEVICE OFFSET BYTES PIECE: writes random data to a device past its cache; prints their hash. All in pieces of PIECE.
fill() {
    head -c "$3" /dev/urandom >/tmp/fill
    dd if=/tmp/fill of="$1" bs="$4" seek="$(($2 / $4))" oflag=direct conv=notrunc status=none
    sha256sum </tmp/fill
}

# hash DEVICE OFFSET BYTES PIECE: reads them past the cache; prints their hash.
hash() {
    dd if="$1" bs="$4" skip="$(($2 / $4))" count="$(($3 / $4))" iflag=direct status=none | sha256sum
}

# nfs_server CLIENT-IP: serves /exp, a file system in memory, by RDMA at port 20049.
nfs_server() {
    mkdir -p /exp
    mount -t tmpfs none /exp
    chmod 777 /exp
    mount -t nfsd none /proc/fs/nfsd
    # With the older versions it wants rpcbind.
    echo "-2 -3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    # The kernel asks a program that is not there, unless somebody listens.
    rpc=/proc/net/rpc
    sleep 100000 3<$rpc/auth.unix.ip/channel 4<$rpc/nfsd.export/channel 5<$rpc/nfsd.fh/channel >/dev/null 2>&1 </dev/null &
    sleep 1
    echo "rdma 20049" >/proc/fs/nfsd/portlist
    echo 2 >/proc/fs/nfsd/threads
    # Until 2038; readable and writable, from any port, as file system 0, which is the root of all.
    echo "nfsd $1 2147483647 dom" >$rpc/auth.unix.ip/channel
    echo "dom /exp 2147483647 9218 65534 65534 0" >$rpc/nfsd.export/channel
    printf '%s\n' 'dom 1 \x00000000 2147483647 /exp' >$rpc/nfsd.fh/channel
}

# nfs_mount SERVER-IP OUR-IP: mounts its root at /mnt-rdma.
nfs_mount() {
    mkdir -p /mnt-rdma
    mount -i -t nfs4 -o "vers=4.1,proto=rdma,port=20049,addr=$1,clientaddr=$2,sec=sys,ro,soft,timeo=100,retrans=2" "$1:/" /mnt-rdma
    grep -o ' proto=rdma\|,proto=rdma' /proc/mounts >/dev/null
}

# iser_target NAME IPv4 [IPv6]: serves /dev/ram1 as LUN 0 by iSER at port 3260 of both addresses, to anybody.
iser_target() {
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    core=/sys/kernel/config/target/core/iblock_0/disk
    group=/sys/kernel/config/target/iscsi/$1/tpgt_1
    mkdir -p "$core"
    echo udev_path=/dev/ram1 >"$core/control"
    echo 1 >"$core/enable"
    mkdir -p "$group/lun/lun_0"
    ln -s "$core" "$group/lun/lun_0/disk"
    # libiscsi (1.19) would announce data in its command and send none.
    echo No >"$group/param/ImmediateData"
    echo 0 >"$group/attrib/authentication"
    echo 0 >"$group/attrib/demo_mode_write_protect"
    echo 1 >"$group/attrib/cache_dynamic_acls"
    echo 1 >"$group/attrib/generate_node_acls"
    for address in "$2" "$3"; do
        mkdir "$group/np/$address:3260"
        echo 1 >"$group/np/$address:3260/iser"
    done
    echo 1 >"$group/enable"
}

# iser_login TARGET ADDRESS NAME: becomes an initiator of that name; prints the block device.
iser_login() {
    mkdir -p /run/lock/iscsi
    echo "InitiatorName=$3" >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null || iscsid >/dev/null 2>&1
    before=" $(echo /dev/sd*) "
    {
        iscsiadm -m node -o new -T "$1" -p "$2:3260,1" -I iser
        # A target that dies is given up after two seconds, not two minutes.
        iscsiadm -m node -o update -T "$1" -n node.session.timeo.replacement_timeout -v 2
        iscsiadm -m node -o update -T "$1" -n node.conn[0].timeo.noop_out_interval -v 1
        iscsiadm -m node -o update -T "$1" -n node.conn[0].timeo.noop_out_timeout -v 20
        iscsiadm -m node -T "$1" --login
    } >&2
    try=0
    while [ $try -lt 300 ]; do
        for device in /dev/sd?; do
            case $before in *" $device "*) continue ;; esac
            [ -b "$device" ] && echo "$device" && return
        done
        try=$((try + 1))
        sleep 0.1
    done
    echo "no block device came" >&2
    return 1
}

# iser_logout TARGET: ends its sessions, and forgets it.
iser_logout() {
    iscsiadm -m node -T "$1" --logout || true
    iscsiadm -m node -T "$1" -o delete
}

"$@"
