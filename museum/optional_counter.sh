#!/bin/sh
# A counter that could not be made is read all the same.  COUNTER=cc_rx_ce_pkts for kernels that lack the usual one.
. "$(dirname "$0")/common.sh"

try_it "switching the counter on" rdma statistic set link "$DEVICE/1" optional-counters "${COUNTER:-rdma_rx_packets}"
# Any file of the folder will do, and the reader needs no rights.
cat "$PORT"/hw_counters/* >/dev/null 2>&1 &
wait $!
echo "reading the counters: ended with $?"
