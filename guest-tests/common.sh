# Sourced by the scripts here: result lines, the device, which end of an exchange this guest is.
# Every script ends with one line, `ok NAME: ...` or `FAILED NAME: ...`, and with 0 or 1.
NAME=$(basename "$0" .sh)
DEVICE=${DEVICE:-mlx5_0}
PORT=/sys/class/infiniband/$DEVICE/ports/1

ok() {
    echo "ok $NAME: $*"
    exit 0
}

failed() {
    echo "FAILED $NAME: $*"
    exit 1
}

# wait_active: until the kernel calls the port ACTIVE, for 30 s at most
wait_active() {
    tries=0
    while [ "$(cat "$PORT/state" 2>/dev/null)" != "4: ACTIVE" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || failed "the port is $(cat "$PORT/state" 2>/dev/null || echo absent), not ACTIVE"
        usleep 100000
    done
}

# exchange PROGRAM ARG...: the server in g0, the client elsewhere; the output is in $OUTPUT
exchange() {
    OUTPUT=/tmp/$NAME.out
    if [ "$(hostname)" = g0 ]; then
        "$@" >$OUTPUT 2>&1 || failed "$1 (server) ended with $?: $(tail -n 1 $OUTPUT)"
        return
    fi
    tries=0
    # the server may need a moment until it listens
    until "$@" g0 >$OUTPUT 2>&1; do
        tries=$((tries + 1))
        if [ $tries -ge 20 ] || ! grep -qi "couldn't connect" $OUTPUT; then
            failed "$1 (client) failed: $(tail -n 1 $OUTPUT)"
        fi
        usleep 500000
    done
}
