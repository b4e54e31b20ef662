"""Runs of perftest between two guests with a card each and Soft-RoCE beside it: races, sizes, queue pairs, IPoIB.

Each repeat runs all there is in turn, so that a busy moment of the host does not meet one of those that are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final

from acceptance.benchmark import RACES, SOFT_DEVICE, Race, prepare_guests, run_race
from firmware.native.library import loaded
from tests.bench.meter import without_c
from tests.bench.results import PYTHON, SOFT, C, Results
from vhca.chip.rack import Rack
from vhca.lab import Guest, Lab, LabError
from vhca.lab.perftest import DEVICE, perftest, perftest_values, run_exchange

SIZES: Final = (2, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1 << 20)
QUEUE_PAIRS: Final = (1, 4, 16, 64)
# Messages of one run at most, and bytes: what takes a good half second.
MOST: Final = {C: (10_000, 512 << 20), PYTHON: (3_000, 128 << 20), SOFT: (1_000, 8 << 20)}
LEAST: Final = 8
TIMEOUT_S: Final = 120.0
TRIES: Final = 3
FIRST_TCP_PORT: Final = 20_000
TCP_BYTES: Final = 64 << 20
TCP_PORT: Final = 5001

IPOIB: Final = """
modprobe ib_ipoib
ip link set ib0 up
ip addr replace 10.99.0.{}/24 dev ib0
i=0; while ! ip link show ib0 | grep -q LOWER_UP; do i=$((i + 1)); [ $i -lt 200 ] || exit 1; usleep 100000; done
"""
SERVE: Final = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    with server.accept()[0] as peer:
        buffer = bytearray(1 << 20)
        while peer.recv_into(buffer):
            pass
        peer.sendall(b"x")
"""
SEND: Final = """
import socket, sys, time
size = int(sys.argv[3])
data = bytes(1 << 18)
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    begin = time.monotonic()
    for _ in range(size // len(data)):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print(size * 8 / (time.monotonic() - begin) / 1e6)
"""

Step = tuple[str, Callable[[], None]]


class GuestRuns:
    """What is run between the first two guests of a lab, into `results`; each step is a name and a call."""

    def __init__(self, lab: Lab, results: Results) -> None:
        assert isinstance(lab.rack, Rack)
        self.lab = lab
        self.rack = lab.rack
        self.results = results
        self.guests: Sequence[Guest] = lab.guests[:2]
        self.engines = (C, PYTHON) if loaded().there else (PYTHON,)
        self._tcp_port = FIRST_TCP_PORT

    def set_up(self) -> None:
        """Once, before anything is run: ports, Soft-RoCE, IPoIB's addresses."""
        prepare_guests(self.guests)
        for number, guest in enumerate(self.guests, 1):
            guest.run(["sh", "-c", IPOIB.format(number)], timeout_s=60, check=True)

    def _port(self) -> int:
        self._tcp_port += 1
        return self._tcp_port

    def races(self) -> Iterator[Step]:
        """The card against Soft-RoCE, as `python -m acceptance.benchmark` runs them; with the better engine."""
        for race in RACES:
            for device, who in ((DEVICE, self.engines[0]), (SOFT_DEVICE, SOFT)):
                yield (
                    f"{race.program} {race.size_bytes} B, {who}",
                    lambda race=race, device=device, who=who: (  # type: ignore[misc]
                        self._race(race, device, who)
                    ),
                )

    def _race(self, race: Race, device: str, who: str) -> None:
        figure = self._tried(who, lambda: run_race(self.guests, race, device, self._port()))
        self.results.add(f"guests/{race.program}/{race.size_bytes}/{who}", [figure])

    def _tried(self, who: str, run: Callable[[], float]) -> float:
        """Soft-RoCE on a busy host ends with an error now and then: it may try again. The card may not."""
        for _ in range(TRIES - 1 if who == SOFT else 0):
            try:
                return run()
            except LabError:
                self.results.add(f"failed/{who}", [1])
        return run()

    def sizes(self, sizes: Sequence[int] = SIZES) -> Iterator[Step]:
        """WRITEs of each size, with either engine and Soft-RoCE."""
        for size in sizes:
            for who in (*self.engines, SOFT):
                yield (
                    f"WRITE {size} B, {who}",
                    lambda size=size, who=who: (  # type: ignore[misc]
                        self._writes(f"curve/{size}/{who}", size, who)
                    ),
                )

    def queue_pairs(self, counts: Sequence[int] = QUEUE_PAIRS) -> Iterator[Step]:
        """WRITEs of 64 B over several queue pairs."""
        for count in counts:
            for who in (*self.engines, SOFT):
                yield (
                    f"{count} QPs, {who}",
                    lambda count=count, who=who: (  # type: ignore[misc]
                        self._writes(f"qps/guests/{count}/{who}", 64, who, "-q", str(count))
                    ),
                )

    def _writes(self, name: str, size: int, who: str, *more: str) -> None:
        self.results.add(name, [self._tried(who, lambda: self._rate(size, who, *more))])

    def _rate(self, size: int, who: str, *more: str) -> float:
        messages, bytes_ = MOST[who]
        rounds = max(LEAST, min(messages, bytes_ // size))
        if more:
            rounds = max(LEAST, rounds // int(more[-1]))
        device = SOFT_DEVICE if who == SOFT else DEVICE
        exchange = perftest("ib_write_bw", size, rounds, *more, device=device)
        with nullcontext() if who != PYTHON else without_c(self.rack):
            served, asked = run_exchange(self.guests[1], self.guests[0], exchange, self._port(), TIMEOUT_S)
        for done in (asked, served):
            if done.returncode:
                raise LabError(f"{' '.join(done.args)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return float(perftest_values(asked.stdout, "BW average")[4]) * 1e6

    def tcp(self) -> Iterator[Step]:
        """One stream of TCP over IPoIB, with either engine."""
        for who in self.engines:
            yield f"TCP over IPoIB, {who}", lambda who=who: self._stream(who)  # type: ignore[misc]

    def _stream(self, who: str) -> None:
        server, client = self.guests[1], self.guests[0]
        size = TCP_BYTES if who == C else TCP_BYTES // 8
        with nullcontext() if who != PYTHON else without_c(self.rack):
            listening = server.popen(["python3", "-c", SERVE, str(TCP_PORT)])
            try:
                next(iter(listening.stdout), "")
                command = ["python3", "-c", SEND, "10.99.0.2", str(TCP_PORT), str(size)]
                asked = client.run(command, timeout_s=TIMEOUT_S, check=True)
            finally:
                listening.kill()
        self.results.add(f"ipoib/tcp/{who}", [float(asked.stdout)])
