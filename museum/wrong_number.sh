#!/bin/sh
# The card answers the creation of a completion queue with another number than it gave.
. "$(dirname "$0")/common.sh"
wait_active
try_it "a program that makes a completion queue" timeout -s KILL 20 ibv_rc_pingpong -d "$DEVICE" -n 1
