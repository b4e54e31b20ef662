#!/bin/sh
# Serve the example card of vhca.vfio_user and start a QEMU that has it in a slot.
#
#   qemu-scripts/example-device.sh -nographic -kernel bzImage -append console=ttyS0 ...
#
# The arguments go to QEMU, behind those that a vfio-user device needs. The card appears as 1234:11e9.
# QEMU names another program (>= 10.1.1), PYTHON another interpreter, RAM the size of the guest's memory.
set -eu

qemu=${QEMU:-qemu-system-x86_64}
python=${PYTHON:-python3}
ram=${RAM:-1G}

cd "$(dirname "$0")/.."
folder=$(mktemp -d)
"$python" -m vhca.vfio_user.example --socket "$folder/card.sock" &
server=$!
trap 'kill -INT $server 2>/dev/null || true; wait $server || true; rm -rf "$folder"' EXIT INT TERM

# QEMU connects once, when it starts: the socket has to be there.
while [ ! -S "$folder/card.sock" ]; do
    kill -0 $server 2>/dev/null || exit 1
    sleep 0.05
done

# share=on lets the card see the guest's memory; the root port gives it PCI Express and a hot-plug slot.
"$qemu" \
    -machine q35,memory-backend=m0 -m "$ram" \
    -object "memory-backend-memfd,id=m0,size=$ram,share=on" \
    -device pcie-root-port,id=rp1,slot=1,chassis=1 \
    -device '{"driver":"vfio-user-pci","id":"card0","bus":"rp1","rombar":0,
              "socket":{"type":"unix","path":"'"$folder"'/card.sock"}}' \
    "$@"
