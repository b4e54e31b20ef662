#!/usr/bin/dash
# The power-up sequence inside a guest: file systems, name, management network, then the agent, for ever.
# Settings come on the kernel command line as vhca.NAME=VALUE.
# An emulated processor needs 20 ms to start a program: what the shell can do itself, it does itself.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 USER=root TERM=linux
mount=/usr/lib/vhca/mount
busybox mount -a -T $mount/first
read -r begun _ </proc/uptime
busybox cp -a $mount/dev/. /dev/
busybox mount -a -T $mount/then
[ -d /sys/kernel/config ] && busybox mount -t configfs configfs /sys/kernel/config
ulimit -l unlimited
ulimit -n 65536

index=0 count=1 sync= share= net=
read -r line </proc/cmdline
for word in $line; do
    case $word in
    vhca.index=*) index=${word#*=} ;;
    vhca.count=*) count=${word#*=} ;;
    vhca.sync=*) sync=${word#*=} ;;
    vhca.share=*) share=${word#*=} ;;
    vhca.net=*) net=${word#*=} ;;
    esac
done
agent_port() {
    for place in /sys/class/virtio-ports/*; do
        [ -e "$place/name" ] && read -r name <"$place/name" && [ "$name" = vhca.agent ] && port=/dev/${place##*/}
    done
}
port=
agent_port
# Some kernels have these as modules; without them there is no network and no shared folder either.
[ -n "$port" ] || {
    modprobe -q -a virtio_pci virtio_console
    agent_port
}
echo "g$index" >/proc/sys/kernel/hostname
{
    echo "127.0.0.1 localhost"
    echo "::1 localhost ip6-localhost"
    i=0
    while [ "$i" -lt "$count" ]; do
        echo "10.0.$((i / 250)).$((i % 250 + 1)) g$i"
        i=$((i + 1))
    done
} >/etc/hosts
ifconfig lo 127.0.0.1 up
if [ -n "$net" ]; then
    [ -d /sys/class/net/eth0 ] || modprobe -q virtio_net
    ifconfig eth0 "10.0.$((index / 250)).$((index % 250 + 1))" netmask 255.255.0.0 up
fi
if [ -n "$share" ]; then
    modprobe -q -a 9pnet_virtio 9p
    mkdir -p /mnt/share
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,cache=none,$share" share /mnt/share ||
        echo "vhca: the shared folder could not be mounted" >/dev/console
fi
cd /root
# A module just loaded has its ports, and their names, a little later: the host announces them by messages.
tries=50
while [ -z "$port" ] && [ "$tries" -gt 0 ]; do
    sleep 0.2
    tries=$((tries - 1))
    agent_port
done
[ -n "$port" ] || echo "vhca: there is no agent port" >/dev/console
# the boot was quiet; what the kernel says from now on is kept, unless another level was asked for
read -r level _ </proc/sys/kernel/printk
[ "$level" = 5 ] && echo 7 >/proc/sys/kernel/printk
read -r up _ </proc/uptime
echo "vhca: g$index is up, $up s after power-on" >/dev/console
while :; do
    [ -n "$port" ] || agent_port
    read -r up _ </proc/uptime
    [ -z "$port" ] || python3 -I -S -X frozen_modules=on -X utf8 /usr/lib/vhca/guest_agent.pyc "$port" "$sync" "$begun" "$up" </dev/null >/dev/console 2>&1
    [ -z "$port" ] || echo "vhca: the agent ended with $?" >/dev/console
    sleep 1
done
