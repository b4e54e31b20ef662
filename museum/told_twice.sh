#!/bin/sh
# The card tells the end of a command twice.
. "$(dirname "$0")/common.sh"
wait_active
for go in 1 2 3 4 5; do
    timeout 3 ibv_rc_pingpong -d "$DEVICE" -n 1 >/dev/null 2>&1
done
echo "five programs that make a completion queue have ended"
