#!/bin/sh
# reload.sh [N]: unload and load the driver N times; the port must come back every time.
. "$(dirname "$0")/common.sh"

times=${1:-10} done=0
while [ $done -lt "$times" ]; do
    rmmod mlx5_ib mlx5_core || failed "rmmod, round $done"
    [ ! -e "/sys/class/infiniband/$DEVICE" ] || failed "$DEVICE is still there after rmmod, round $done"
    modprobe mlx5_ib || failed "modprobe, round $done"
    wait_active
    done=$((done + 1))
done
ok "$done times"
