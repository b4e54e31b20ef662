#!/bin/sh
# An exhibit of docs/museum.md: a counter that could not be made is read all the same, and the kernel oopses.
# "ok" means that the fault was there.
. "$(dirname "$0")/../common.sh"
COUNTER=${COUNTER:-rdma_rx_packets}

rdma statistic set link "$DEVICE/1" optional-counters "$COUNTER" 2>/tmp/refused &&
    failed "the card has flow counters: $COUNTER was switched on"
# Any file of the folder will do, and the reader needs no rights.  It dies in the kernel, holding a lock.
cat "$PORT"/hw_counters/* >/dev/null 2>&1 &
wait $!
dmesg | sed -n '/mlx5_fc_query/,$p' >/tmp/trace
grep -q 'RIP: .*mlx5_fc_query' /tmp/trace || failed "this kernel ($(uname -r)) reads its counters unharmed"
sed 's/^\[ *[0-9.]*\] //' /tmp/trace >&2
ok "$(tail -n 1 /tmp/refused), then an oops at $(sed -n 's/.*RIP: [0-9]*:\([^ ]*\).*/\1/p' /tmp/trace | head -n 1)"
