#!/bin/sh
# wait-for: repeats a command line until it succeeds, and prints what it printed then.
usage() {
    cat >&2 <<'TEXT'
usage: wait-for [-t SECONDS] 'COMMAND LINE'
       wait-for [-t SECONDS] -p PORT

Repeat a command line until it ends with 0, and print what it printed then; or wait until something listens at a TCP
port of this machine.  After SECONDS (20) give up, print what the last try printed to standard error, and end with 1.

  wait-for -p 18515
  wait-for 'rdma resource show cm_id | grep LISTEN'
  wait-for -t 60 'grep ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state'
TEXT
    exit 2
}
limit=20 port=
while getopts t:p: option; do
    case $option in
    t) limit=$OPTARG ;;
    p) port=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
case $limit$port in *[!0-9]*) usage ;; esac
if [ -n "$port" ]; then
    [ $# = 0 ] || usage
    # the fourth column is the state; 0A: LISTEN
    line="grep -qE ':$(printf %04X "$port") [0-9A-F:]+ 0A ' /proc/net/tcp /proc/net/tcp6"
    what="nothing listens at TCP port $port"
else
    [ $# = 1 ] && [ -n "$1" ] || usage
    line=$1
    what="still fails: $line"
fi
printed=$(mktemp) || exit 1
trap 'rm -f "$printed"' EXIT
trap 'exit 1' HUP INT TERM
read -r now _ </proc/uptime
end=$((${now%.*} + limit))
while :; do
    read -r now _ </proc/uptime
    left=$((end - ${now%.*}))
    [ $left -gt 0 ] || left=1
    # to a file: what a command leaves running would keep a pipe open; with the shell's path: busybox's timeout would take
    # its own shell for a mere name, and that one its own small tools
    if timeout "$left" /bin/sh -c "$line" >"$printed" 2>&1 </dev/null; then
        cat "$printed"
        exit 0
    fi
    read -r now _ </proc/uptime
    [ "${now%.*}" -lt "$end" ] || break
    sleep 0.1
done
{
    echo "wait-for: after $limit s, $what"
    cat "$printed"
} >&2
exit 1
