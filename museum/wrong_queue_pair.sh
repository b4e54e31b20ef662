#!/bin/sh
# The card answers the creation of a program's queue pair with another number than it gave; then the driver is unloaded.
. "$(dirname "$0")/common.sh"
wait_active
try_it "a program that makes a queue pair" timeout -s KILL 20 ibv_rc_pingpong -d "$DEVICE" -n 1
try_it "unloading the driver" timeout -s KILL 30 modprobe -r rdma_ucm ib_umad mlx5_ib
