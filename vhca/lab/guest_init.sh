#!/usr/bin/busybox sh
# The power-up sequence inside a guest: file systems, name, management network, then the agent, for ever.
# Settings come on the kernel command line as vhca.NAME=VALUE.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 USER=root TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t configfs configfs /sys/kernel/config 2>/dev/null
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
ulimit -l unlimited
ulimit -n 65536

index=0 count=1 sync= share= net=
for word in $(cat /proc/cmdline); do
    case $word in
    vhca.index=*) index=${word#*=} ;;
    vhca.count=*) count=${word#*=} ;;
    vhca.sync=*) sync=${word#*=} ;;
    vhca.share=*) share=${word#*=} ;;
    vhca.net=*) net=${word#*=} ;;
    esac
done
# Some kernels have these as modules; without them there is no network and no shared folder either.
[ -d /sys/class/virtio-ports ] && [ -n "$(ls /sys/class/virtio-ports)" ] || modprobe -q -a virtio_pci virtio_console
hostname "g$index"
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
    modprobe -q virtio_net
    ifconfig eth0 "10.0.$((index / 250)).$((index % 250 + 1))" netmask 255.255.0.0 up
fi
if [ -n "$share" ]; then
    modprobe -q -a 9pnet_virtio 9p
    mkdir -p /mnt/share
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,cache=none,$share" share /mnt/share ||
        echo "vhca: the shared folder could not be mounted" >/dev/console
fi
cd /root
port=
for place in /sys/class/virtio-ports/*; do
    [ "$(cat "$place/name")" = vhca.agent ] && port=/dev/${place##*/}
done
[ -n "$port" ] || echo "vhca: there is no agent port" >/dev/console
# the boot was quiet; what the kernel says from now on is kept, unless another level was asked for
read -r level _ </proc/sys/kernel/printk
[ "$level" = 5 ] && echo 7 >/proc/sys/kernel/printk
echo "vhca: g$index is up, $(cut -d' ' -f1 /proc/uptime) s after power-on" >/dev/console
while :; do
    python3 -I -S -X frozen_modules=on -X utf8 /usr/lib/vhca/guest_agent.pyc "$port" "$sync" </dev/null >/dev/console 2>&1
    echo "vhca: the agent ended with $?" >/dev/console
    sleep 1
done
