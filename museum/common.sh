# Sourced by the exhibits' scripts.  A script does what lets the fault happen and prints what it sees; it does not judge.
DEVICE=${DEVICE:-mlx5_0}
PORT=/sys/class/infiniband/$DEVICE/ports/1

# wait_active: until the kernel calls the port ACTIVE, for 30 s at most
wait_active() {
    tries=0
    while [ "$(cat "$PORT/state" 2>/dev/null)" != "4: ACTIVE" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        usleep 100000
    done
}

# try_it WORDS COMMAND ARG...: run it, and print how it ended
try_it() {
    what=$1
    shift
    "$@" >/tmp/tried 2>&1
    echo "$what: ended with $?: $(tail -n 1 /tmp/tried)"
}
