#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Second process of the guest, in its final root: network, devices, the command, and off.
# /run/verbs-vm is shared with the host: `order` and `command` come from there, the rest goes there.
job=/run/verbs-vm
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec >$job/guest.log 2>&1
. $job/order # LIMIT, NET, WRITABLE

note() { read -r up _ </proc/uptime; echo "$1 $up" >>$job/times; }
finish() {
  note finished
  dmesg >$job/dmesg
  echo "$1" >$job/code
  sync
  busybox poweroff -f
}
broken() {
  echo "guest: $1"
  finish 125
}

note root
for index in "${!WRITABLE[@]}"; do
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap "writable$index" \
    "${WRITABLE[index]}" || broken "cannot mount ${WRITABLE[index]}"
done
hostname verbs-vm
ip link set lo up
ulimit -l unlimited
ulimit -c 0
sysctl -qw kernel.panic=-1

device() { rdma link add "$1" type rxe netdev "$2" || broken "no RDMA device on $2"; }

# Packets to the other end's address must go over the wire, not by the short cut that a host has to all of
# its own addresses. Large frames, as networks for RDMA have them.
wire() {
  sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv4.conf.all.rp_filter=0
  # Several large READs at once are more packets than the default of 1000 holds, and this Soft-RoCE then
  # ends READs as successful whose data was lost on the way.
  sysctl -qw net.core.netdev_max_backlog=100000
  ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000 || return
  local near far
  for near in 0 1; do
    sysctl -qw net.ipv4.conf.veth$near.accept_local=1 net.ipv4.conf.veth$near.rp_filter=0
    ip addr add 10.77.0.$((near + 1))/24 dev veth$near
    ip link set veth$near up
  done
  for near in 0 1; do
    far=$((1 - near))
    ip route add 10.77.0.$((far + 1)) dev veth$near src 10.77.0.$((near + 1)) table $((100 + near))
    ip rule add pref $((10 + near)) oif veth$near lookup $((100 + near))
    ip neigh replace 10.77.0.$((far + 1)) lladdr "$(cat /sys/class/net/veth$far/address)" dev veth$near
  done
  ip rule add pref 20 lookup local
  ip rule del pref 0
}

case $NET in
  lo) device rxe0 lo ;;
  dummy)
    modprobe dummy numdummies=0
    ip link add dummy0 type dummy
    ip addr add 10.77.0.1/24 dev dummy0
    ip link set dummy0 up
    device rxe0 dummy0
    ;;
  veth)
    wire || broken "no pair of veth devices"
    device rxe0 veth0
    device rxe1 veth1
    ;;
  none) ;;
esac

note ready
exec 3>/dev/"$(basename /sys/class/virtio-ports/vport*)" || broken "no way to the host for output"
timeout -k 5 "$LIMIT" bash $job/command </dev/null >&3 2>&1
code=$?
exec 3>&-
finish $code
