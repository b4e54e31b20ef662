#!/bin/sh
# perftest.sh PROGRAM [SIZE [ROUNDS]]: one perftest program between g0 and g1.  Runs in both at the same time.
. "$(dirname "$0")/common.sh"

program=${1:-ib_write_bw} size=${2:-65536} rounds=${3:-200}
wait_active
exchange "$program" -d "$DEVICE" -F -s "$size" -n "$rounds"
ok "$program $rounds x $size: $(grep -E "^ *$size +[0-9]" "$OUTPUT" | tr -s ' \t' ' ')"
