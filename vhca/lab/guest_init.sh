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

index=0 count=1 sync= share= net= root= keep=
read -r line </proc/cmdline
for word in $line; do
    case $word in
    vhca.index=*) index=${word#*=} ;;
    vhca.count=*) count=${word#*=} ;;
    vhca.sync=*) sync=${word#*=} ;;
    vhca.share=*) share=${word#*=} ;;
    vhca.net=*) net=${word#*=} ;;
    vhca.root=*) root=${word#*=} ;;
    vhca.keep=*) keep=${word#*=} ;;
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
# What programs have for their root if it is a folder of the host, or if what is changed in it is kept: an overlay, of
# which the lower part is never written.
all=/usr/lib/vhca/root/all
overlay() {
    below=/usr/lib/vhca/root/below above=/usr/lib/vhca/root/above
    mkdir -p $all $below $above
    if [ -n "$root" ]; then
        modprobe -q -a 9pnet_virtio 9p
        mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro root $below || return 1
    else
        mount -o bind / $below || return 1
    fi
    if [ -n "$keep" ]; then
        modprobe -q -a virtio_blk ext4
        for disk in /sys/block/vd*; do
            [ -e "$disk/serial" ] && read -r serial <"$disk/serial" && [ "$serial" = vhca-kept ] && break
        done
        # what was written a second ago survives the kernel
        mount -t ext4 -o nodelalloc,commit=1,discard "/dev/${disk##*/}" $above || return 1
    else
        mount -t tmpfs above $above || return 1
    fi
    mkdir -p $above/upper $above/work /run/vhca/bin /run/vhca/modules
    modprobe -q overlay
    mount -t overlay -o lowerdir=$below,upperdir=$above/upper,workdir=$above/work root $all || return 1
    cp /usr/bin/busybox /usr/bin/wait-for /run/vhca/bin/
    cp /etc/hosts /run/vhca/
    /run/vhca/bin/busybox --install -s /run/vhca/bin
    mount -o bind /usr/lib/modules /run/vhca/modules
    for place in dev proc sys run tmp; do
        mkdir -p $all/$place
        busybox mount -o rbind /$place $all/$place || return 1
    done
    # inside, where a link leads to what programs find there
    chroot $all /run/vhca/bin/busybox sh -c '
        export PATH=/run/vhca/bin
        mkdir -p /root /etc /mnt/share /lib/modules
        rm -f /etc/hosts
        cp /run/vhca/hosts /etc/hosts
        mount -o bind /run/vhca/modules /lib/modules
    ' || return 1
    [ -z "$share" ] || mount -o bind /mnt/share $all/mnt/share || return 1
    : >/run/vhca/root
}
if [ -n "$root$keep" ]; then
    overlay || {
        all=
        echo "vhca: the root could not be mounted" >/dev/console
    }
else
    all=
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
    [ -z "$port" ] || python3 -I -S -X frozen_modules=on -X utf8 /usr/lib/vhca/guest_agent.pyc "$port" "$sync" "$begun" "$up" $all </dev/null >/dev/console 2>&1
    [ -z "$port" ] || echo "vhca: the agent ended with $?" >/dev/console
    sleep 1
done
