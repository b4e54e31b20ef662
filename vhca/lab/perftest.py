"""Programs of perftest and rdma-core between two guests: run one end in each, and read what they print.

Assumes running guests of a :class:`vhca.lab.Lab` that have the RDMA device which is named. The server listens for the
client on the management network; what they measure goes over the RDMA device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vhca.lab.errors import Completed, LabError
from vhca.lab.guest import Guest

DEVICE: Final = "mlx5_0"
"""The first card of a guest, as its kernel names it."""
TCP_PORT: Final = 18515
"""Where these programs listen if they are not told otherwise."""


@dataclass(slots=True, frozen=True)
class Exchange:
    """A program that runs as a server in one guest and as a client in another.

    `figure` makes of what the client printed a few words, and raises `ValueError` if there is no result in it;
    `load` says how much of what is exchanged, for people.
    """

    program: str
    arguments: tuple[str, ...]
    figure: Callable[[str], str]
    load: str = ""


def perftest(program: str, size_bytes: int, rounds: int, *more: str, device: str = DEVICE) -> Exchange:
    """An `ib_*_bw` or `ib_*_lat` of that many messages of that size; `more` are arguments of both ends."""
    figure = latency_figure if program.endswith("_lat") else bandwidth_figure
    arguments = ("-d", device, "-F", "-s", str(size_bytes), "-n", str(rounds), *more)
    return Exchange(program, arguments, figure, f"{rounds} x {_size(size_bytes)}")


def pingpong(service: str, size_bytes: int, rounds: int, *more: str, device: str = DEVICE) -> Exchange:
    """An `ibv_*_pingpong` (`service`: rc, uc, ud, srq, xsrq); `more` are arguments of both ends."""
    arguments = ("-d", device, "-s", str(size_bytes), "-n", str(rounds), *more)
    return Exchange(f"ibv_{service}_pingpong", arguments, pingpong_figure, f"{rounds} x {_size(size_bytes)}")


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 10} KiB" if size_bytes >= 1024 and size_bytes % 1024 == 0 else f"{size_bytes} B"


# ---- reading what programs print ----


def devinfo_figure(output: str) -> str:
    """`ibv_devinfo` of an active InfiniBand port in a few words; `ValueError` if it is not that."""
    fields = dict(re.findall(r"^\s*(\w+):\s+(.+?)\s*$", output, re.MULTILINE))
    state, layer = fields.get("state", "no state"), fields.get("link_layer", "no link layer")
    if not state.startswith("PORT_ACTIVE") or layer != "InfiniBand":
        raise ValueError(f"the port is {state}, {layer}; it should be PORT_ACTIVE, InfiniBand")
    return f"ACTIVE, LID {fields['port_lid']}, SM {fields['sm_lid']}, MTU {fields['active_mtu'].split()[0]}"


def pingpong_figure(output: str) -> str:
    """Throughput and time per round of an `ibv_*_pingpong`."""
    rate = re.search(r"bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec", output)
    each = re.search(r"iters in [\d.]+ seconds = ([\d.]+) usec/iter", output)
    if not rate or not each:
        raise ValueError("it printed no result")
    return f"{float(each[1]):.0f} us per round, {float(rate[1]):.1f} Mbit/s"


def bandwidth_figure(output: str) -> str:
    """Average bandwidth and message rate of an `ib_*_bw`."""
    values = perftest_values(output, "BW average")
    return f"{float(values[3]):.1f} MiB/s, {float(values[4]) * 1e6:.0f} msg/s"


def latency_figure(output: str) -> str:
    """Typical and least latency of an `ib_*_lat`."""
    values = perftest_values(output, "t_typical")
    return f"{float(values[4]):.0f} us typical, {float(values[2]):.0f} us least"


def perftest_values(output: str, heading: str) -> list[str]:
    """The words of perftest's result line, found by a word of its heading; `ValueError` if there is none."""
    lines = output.splitlines()
    at = next((number for number, line in enumerate(lines) if heading in line), None)
    values = lines[at + 1].split() if at is not None and at + 1 < len(lines) else []
    if len(values) < 5 or not all(re.fullmatch(r"[\d.]+", value) for value in values[:5]):
        raise ValueError("it printed no result")
    return values


# ---- running them ----


def wait_port_active(guest: Guest, timeout_s: float = 30.0, device: str = DEVICE) -> None:
    """Wait until the guest's kernel calls the port ACTIVE; `LabError` with its state if it does not."""
    state = f"/sys/class/infiniband/{device}/ports/1/state"
    rounds = max(1, int(timeout_s * 10))
    script = (
        f'i=0; while [ $i -lt {rounds} ]; do read -r s <{state} && [ "$s" = "4: ACTIVE" ] && exit 0;'
        f' usleep 100000; i=$((i + 1)); done; echo "${{s:-no {state}}}"; exit 1'
    )
    done = guest.run(["sh", "-c", script], timeout_s=timeout_s + 30)
    if done.returncode:
        raise LabError(
            f"{guest.name}: the port of {device} is not ACTIVE after {timeout_s:.0f} s: {done.stdout.strip()}"
        )


def wait_listening(guest: Guest, tcp_port: int, pid: int, timeout_s: float = 20.0) -> bool:
    """Wait until something in the guest listens on a TCP port; False if process `pid` ends before that."""
    script = (
        f"i=0; while [ $i -lt {int(timeout_s * 20)} ]; do"
        f" grep -qE ':{tcp_port:04X} [0-9A-F:]+ 0A' /proc/net/tcp /proc/net/tcp6 2>/dev/null && exit 0;"
        f" [ -d /proc/{pid} ] || exit 1; usleep 50000; i=$((i + 1)); done; exit 2"
    )
    return guest.run(["sh", "-c", script], timeout_s=timeout_s + 30).returncode == 0


def run_exchange(
    server: Guest, client: Guest, exchange: Exchange, tcp_port: int = TCP_PORT, timeout_s: float = 60.0
) -> tuple[Completed, Completed]:
    """Run a program in both guests and return what became of it: server's, client's.

    Raises `CommandTimeout` if it takes too long; a status that is not 0 is the caller's to judge.
    """
    command = [exchange.program, *exchange.arguments, "-p", str(tcp_port)]
    listening = server.popen(command)
    try:
        if not wait_listening(server, tcp_port, listening.pid):
            listening.kill()
            code = listening.wait(10)
            none = Completed([*command, server.name], -1, "", "not started: the server did not listen")
            return _completed(command, code, listening.stdout.read_all(), listening.stderr.read_all()), none
        asked = client.run([*command, server.name], timeout_s=timeout_s)
        if asked.returncode:
            listening.terminate()
        code = listening.wait(20)
    except BaseException:
        listening.kill()
        raise
    return _completed(command, code, listening.stdout.read_all(), listening.stderr.read_all()), asked


def _completed(command: Sequence[str], code: int, out: bytes, err: bytes) -> Completed:
    return Completed(list(command), code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
