#!/bin/sh
# The card refuses the second shared receive queue of two that the driver makes before the first queue pair.
. "$(dirname "$0")/common.sh"
rmmod mlx5_ib
# The first queue pair is that of management datagrams.
modprobe mlx5_ib
dmesg | grep -q "Couldn't create SRQ 1" && echo "the first queue pair: refused"
wait_active
# In a process of its own: on an affected kernel it dies in the kernel, holding locks.
timeout -s KILL 10 ibv_rc_pingpong -d "$DEVICE" -n 1 >/tmp/second 2>&1 &
program=$!
tries=0
while kill -0 $program 2>/dev/null && [ $tries -lt 60 ] && ! grep -q ':4853 .* 0A ' /proc/net/tcp; do
    tries=$((tries + 1))
    usleep 100000
done
if grep -q ':4853 .* 0A ' /proc/net/tcp; then
    echo "the second queue pair: made"
    kill $program
else
    echo "the second queue pair: not made: $(tail -n 1 /tmp/second)"
fi
