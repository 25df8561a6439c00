#!/bin/sh
# Second stage of a guest (after init, inside the host's root file system): addresses, the two rxe
# devices, the namespace "ours", then the agent, for as long as the guest lives.
. /run/guest.conf
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
hostname rxe-guest
ulimit -l unlimited

# Addresses are there at once, without duplicate address detection: the links are ours alone.
sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
ip link set lo up
for nic in eth0 eth1; do sysctl -qw net.ipv6.conf.$nic.accept_dad=0; done
ip link set eth0 mtu 9000 up
ip addr add "$guest4/24" dev eth0
ip addr add "$guest6/64" dev eth0 nodad
for address in "$host4" "$host6"; do ip neigh replace "$address" lladdr "$host_mac" nud permanent dev eth0; done
ip link set eth1 up
ip addr add "$agent4/24" dev eth1

ip netns add ours
ip link add vin mtu 9000 type veth peer name vout mtu 9000 netns ours
ip link set vin up
ip addr add "$inner4/24" dev vin
ip addr add "$inner6/64" dev vin nodad
ip netns exec ours sysctl -qw net.ipv6.conf.vout.accept_dad=0
ip -n ours link set lo up
ip -n ours link set vout up
ip -n ours addr add "$ours4/24" dev vout
ip -n ours addr add "$ours6/64" dev vout nodad

rdma link add rxe0 type rxe netdev eth0
rdma link add rxe1 type rxe netdev vin

# The agent answers only when both devices have their GIDs, so nobody else has to wait for them.
while ! /usr/bin/python3 -u "$guest_files/agent.py" --wait-gids rxe0="$guest4,$guest6" rxe1="$inner4,$inner6"; do
    echo "guest: the agent has ended with $?"
    sleep 1
done
