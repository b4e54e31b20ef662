#!/bin/sh
# Probe, traffic and removal, each for a bounded time, whatever the card does: what `vhca adversary` runs over it.
# It does not judge: the kernel's log tells.
echo 25 >/proc/sys/kernel/hung_task_timeout_secs 2>/dev/null
PORT=/sys/class/infiniband/mlx5_0/ports/1
timeout 20 modprobe -a mlx5_ib ib_umad ib_uverbs rdma_ucm
if [ -e $PORT ]; then
    tries=0
    while [ $tries -lt 40 ] && [ "$(cat $PORT/state 2>/dev/null)" != "4: ACTIVE" ]; do
        tries=$((tries + 1))
        usleep 100000
    done
    timeout 4 ibv_rc_pingpong -d mlx5_0 -n 100 -e >/dev/null 2>&1 &
    usleep 500000
    timeout 3 ibv_rc_pingpong -d mlx5_0 -n 100 -e localhost >/dev/null 2>&1
    timeout 3 ibv_devinfo -v >/dev/null 2>&1
    timeout 1 ibv_xsrq_pingpong -d mlx5_0 -n 1 >/dev/null 2>&1 &
    timeout 3 rdma resource show qp >/dev/null 2>&1
    timeout 3 rdma resource show mr >/dev/null 2>&1
    timeout 5 sh -c "cat $PORT/counters/* $PORT/hw_counters/*" >/dev/null 2>&1
    timeout 8 modprobe ib_ipoib
    timeout 3 ip link set ib0 up
    usleep 300000
    wait
fi
timeout 15 modprobe -r ib_ipoib
timeout 30 modprobe -r rdma_ucm ib_umad mlx5_ib mlx5_core
[ ! -e /sys/bus/pci/drivers/mlx5_core/0000:01:00.0 ] || timeout 20 rmmod mlx5_ib mlx5_core
echo "end: $(ls /sys/class/infiniband 2>/dev/null | wc -l) devices"
