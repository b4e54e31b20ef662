#!/bin/sh
# pingpong.sh [rc|uc|ud|srq]: messages both ways between g0 and g1.  Runs in both at the same time.
. "$(dirname "$0")/common.sh"

kind=${1:-rc}
wait_active
exchange "ibv_${kind}_pingpong" -d "$DEVICE" -n "${ROUNDS:-100}" -s "${SIZE:-1024}"
ok "$kind: $(tail -n 1 "$OUTPUT")"
