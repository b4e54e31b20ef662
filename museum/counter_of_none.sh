#!/bin/sh
# The card refuses to move a queue pair to another set of counters.
. "$(dirname "$0")/common.sh"
wait_active
ibv_rc_pingpong -d "$DEVICE" -n 100000000 >/dev/null 2>&1 &
sleep 1
ibv_rc_pingpong -d "$DEVICE" -n 100000000 localhost >/dev/null 2>&1 &
tries=0
while ! rdma resource show qp | grep -q 'RTS.*ibv_rc_pingpong' && [ $tries -lt 100 ]; do
    tries=$((tries + 1))
    usleep 100000
done
number=$(rdma resource show qp | sed -n 's/.*lqpn \([0-9]*\) .*RTS.*ibv_rc_pingpong.*/\1/p' | head -n 1)
try_it "binding queue pair $number to a counter" rdma statistic qp bind link "$DEVICE/1" lqpn "$number"
echo "counters that are bound: $(rdma statistic qp show | grep -c cntn)"
try_it "letting the kernel bind by type" rdma statistic qp set link "$DEVICE/1" auto type on
kill $(pidof ibv_rc_pingpong)
