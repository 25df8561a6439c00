#!/bin/bash
# Installs a package of rxe with dpkg in a copy of this system (an overlay above it, gone at the end), and has user nobody
# run Debian's programs with what it has installed: deb.sh PACKAGE. Needs root; network namespace and all else are its own.
# Exit code 77: it cannot be tried here.
set -euo pipefail
package=$(realpath "$1")
if [ -z "${RXE_DEB_INSIDE:-}" ]; then
    copy=$(mktemp -d)
    # What was mounted there has ended with its namespace.
    trap 'rmdir "$copy"' EXIT
    RXE_DEB_INSIDE=$copy unshare --mount --net --pid --fork --kill-child "$0" "$package"
    exit
fi
copy=$RXE_DEB_INSIDE
root=$copy/root
ip link set lo up
mount -t tmpfs rxe "$copy"
mkdir "$root"
# An overlay shows a single file system, so that parts of the system which are mounted get one each.
layers=0
layer() {
    layers=$((layers + 1))
    mkdir -p "$copy/$layers/upper" "$copy/$layers/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$copy/$layers/upper,workdir=$copy/$layers/work" rxe "$root$1" || {
        echo "skipped: no overlay above $1 can be made here"
        exit 77
    }
}
layer /
for part in /usr /etc /var /var/lib /opt; do
    ! mountpoint -q "$part" || layer "$part"
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t sysfs sys "$root/sys"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
cp "$package" "$root/tmp/rxe.deb"
chroot "$root" dpkg -i /tmp/rxe.deb
nobody() { chroot --userspec=65534:65534 "$root" env -u LD_LIBRARY_PATH -u CARGO_TARGET_DIR HOME=/tmp timeout 200 "$@"; }
# comes COMMAND...: waits until a command ends well, for a minute on a busy machine.
comes() {
    local end=$((SECONDS + 60))
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}
nobody rxe run -- ibv_devinfo | grep -E 'hca_id|state:'
nobody rxe run -- ibv_rc_pingpong -g 0 -c >"$root/tmp/server" 2>&1 &
server=$!
listens() { [ -n "$(ss -Hltn 'sport = :18515')" ] || ! kill -0 "$server"; }
comes listens
nobody rxe run -- ibv_rc_pingpong -g 0 -c 127.0.0.1 | tail -n 1
wait "$server"
nobody rxe run -- rping -s -a 127.0.0.1 -C 3 -V &
server=$!
is_known() { nobody rxe service status --json 2>/dev/null | grep -q '"service_id"' || ! kill -0 "$server"; }
comes is_known
nobody rxe run -- rping -c -a 127.0.0.1 -C 3 -V -v
wait "$server"
# Nothing of the system's was replaced, and nothing of it stays.
[ "$(chroot "$root" dpkg -S /usr/lib/*-linux-gnu/libibverbs.so.1 | cut -d: -f1)" = libibverbs1 ]
chroot "$root" dpkg -r rxe >/dev/null
[ ! -e "$root/usr/bin/rxe" ]
[ ! -e "$root/usr/lib/rxe" ]
echo "installed, used and removed"
