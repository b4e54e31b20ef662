#!/bin/sh
# plain-qemu.sh SOCKET DISK [QEMU-ARG...]: a machine of your own with a card, by plain QEMU.
#
# Start the cards first, in another terminal:  vhca serve --hcas 2 --dir ~/ib
# then one machine for each:                   plain-qemu.sh ~/ib/h0.sock debian.qcow2
#
# What matters: QEMU 10.1.1 or newer, memory that is shared (memfd, share=on) so that the card reaches it, and the
# card on a PCI Express root port.  In the machine: modprobe mlx5_ib.
set -eu
[ $# -ge 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
socket=$1 disk=$2
shift 2
# a /dev/kvm without hardware virtualization behind it opens, and then fails in the guest
accel=tcg
grep -qE '\b(vmx|svm)\b' /proc/cpuinfo && [ -w /dev/kvm ] && accel=kvm
exec "${QEMU:-qemu-system-x86_64}" \
    -machine q35,memory-backend=ram -accel $accel -cpu max -smp 2 \
    -object memory-backend-memfd,id=ram,size="${MEMORY:-2G}",share=on -m "${MEMORY:-2G}" \
    -drive file="$disk",if=virtio -nographic \
    -device pcie-root-port,id=port0,chassis=1,slot=1 \
    -device "{\"driver\":\"vfio-user-pci\",\"bus\":\"port0\",\"socket\":{\"type\":\"unix\",\"path\":\"$socket\"}}" \
    "$@"
