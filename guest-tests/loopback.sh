#!/bin/sh
# A reliable connection between two queue pairs of the same card.
. "$(dirname "$0")/common.sh"

wait_active
ibv_rc_pingpong -d "$DEVICE" -n 50 >/tmp/loopback.server 2>&1 &
server=$!
tries=0
until ibv_rc_pingpong -d "$DEVICE" -n 50 localhost >/tmp/loopback.client 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || failed "client: $(tail -n 1 /tmp/loopback.client)"
    usleep 500000
done
wait $server || failed "server: $(tail -n 1 /tmp/loopback.server)"
ok "$(tail -n 1 /tmp/loopback.client)"
