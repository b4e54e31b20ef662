"""Where the time of one small WRITE between two guests goes: guest, trap, socket, server, engine, copy.

Nothing is guessed. In the guests a program of its own times what it does by the guest's clock (`verbs_pieces.c`);
beside them, two processes do over sockets what two guests do (:mod:`tests.bench.socket_hop`); in the server a meter
stamps what the loop does meanwhile (:mod:`tests.bench.meter`); and `ib_write_lat` and `ib_write_bw` say what comes of
it, without the meter. The rows of a table add up to what it is a table of; what they do not explain is a row.

    python -m tests.bench.bench_breakdown [--rounds 2000] [--repeats 5]

Assumes what guests need (`vhca doctor`) and a C compiler.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from firmware.native.library import loaded
from tests.bench import socket_hop, verbs_pieces
from tests.bench.bench_engine import copy_us
from tests.bench.meter import Meter, Part, without_c
from tests.bench.results import PYTHON, C
from tests.bench.socket_hop import SocketHop
from vhca.chip.rack import Rack
from vhca.lab import Cache, Lab, LabError, Progress, aligned
from vhca.lab.perftest import perftest, perftest_values, run_exchange

SIZE: Final = 64
STREAM_MESSAGES: Final = 20_000
FIRST_TCP_PORT: Final = 18700
GUEST: Final = "guest"
TRAP: Final = "trap"
SOCKET: Final = "socket"
SERVER: Final = "server"
ENGINE: Final = "engine"
COPY: Final = "copy"
REST: Final = "not explained"


@dataclass(frozen=True, slots=True)
class Table:
    """What one message takes, in us: rows (who, what, us) that add up to `whole`."""

    engine: str
    title: str
    rows: tuple[tuple[str, str, float], ...]
    whole: float
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """As text."""
        rows = [(who, f"{us:7.2f}", f"{us / self.whole:5.0%}", what) for who, what, us in self.rows]
        rows.append(("together", f"{self.whole:7.2f}", "", self.title))
        return [*aligned((self.engine, "     us", "share", "what"), rows), *(f"  {note}" for note in self.notes)]


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of all repeats, in us.

    :ivar pieces: what the guest's program takes for what.
    :ivar hop: parts of a ping-pong's message in the server.
    :ivar stream: parts of one of a stream of messages in the server.
    :ivar latency: of `ib_write_lat`, :ivar metered: with the meter.
    :ivar message: of `ib_write_bw`, for one message. :ivar copy: one plain copy.
    """

    pieces: dict[str, float]
    socket: SocketHop
    hop: dict[Part, float]
    stream: dict[Part, float]
    latency: float
    metered: float
    message: float
    copy: float

    def to_json(self) -> dict[str, Any]:
        """Names, numbers and no more."""
        by_name = {name: {part.name: us for part, us in getattr(self, name).items()} for name in ("hop", "stream")}
        return {**asdict(self), **by_name}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measured:
        """The other way."""
        by_part = {name: {Part[part]: us for part, us in data[name].items()} for name in ("hop", "stream")}
        return cls(**{**data, **by_part, "socket": SocketHop(**data["socket"])})


class Bench:
    """Runs of one lab with two guests."""

    def __init__(self, lab: Lab, rounds: int) -> None:
        assert isinstance(lab.rack, Rack)
        self.lab = lab
        self.rack = lab.rack
        self.rounds = rounds
        self.port = FIRST_TCP_PORT

    def perftest(self, program: str, rounds: int) -> float:
        """What one message takes by perftest, us."""
        self.port += 1
        exchange = perftest(program, SIZE, rounds)
        served, asked = run_exchange(self.lab.guests[1], self.lab.guests[0], exchange, self.port, 120)
        for done in (asked, served):
            if done.returncode:
                raise LabError(f"{' '.join(done.args)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        if program.endswith("_lat"):
            return float(perftest_values(asked.stdout, "t_typical")[4])
        return 1 / float(perftest_values(asked.stdout, "BW average")[4])

    def once(self) -> Measured:
        """Everything once."""
        meter = Meter(self.rack, SIZE)
        pieces = verbs_pieces.measure(self.lab.guests, SIZE, self.rounds // 2)
        latency = self.perftest("ib_write_lat", self.rounds)
        with meter.running():
            metered = self.perftest("ib_write_lat", self.rounds)
        hops = meter.hops()
        if not hops:
            raise LabError("the meter saw no ping-pong")
        hop = {part: median(hop.parts.get(part, 0) for hop in hops) / 1e3 for part in Part}
        message = self.perftest("ib_write_bw", STREAM_MESSAGES)
        with meter.running():
            self.perftest("ib_write_bw", STREAM_MESSAGES)
        count, parts = meter.stream()
        stream = {part: parts[part] / count / 1e3 for part in Part}
        return Measured(pieces, socket_hop.measure(), hop, stream, latency, metered, message, copy_us(SIZE))


def middle(all_measured: Sequence[Measured]) -> Measured:
    """The median of each figure."""

    def of(name: str) -> float:
        return median(float(getattr(one, name)) for one in all_measured)

    pieces = {name: median(one.pieces[name] for one in all_measured) for name in all_measured[0].pieces}
    socket = SocketHop(*(median(getattr(one.socket, name) for one in all_measured) for name in ("wake", "send")))
    hop, stream = ({part: median(getattr(one, name)[part] for one in all_measured) for part in Part}
                   for name in ("hop", "stream"))  # fmt: skip
    return Measured(pieces, socket, hop, stream, of("latency"), of("metered"), of("message"), of("copy"))


def latency_table(engine: str, measured: Measured) -> Table:
    """One way of a ping-pong, as the meter saw it."""
    pieces, hop, socket = measured.pieces, measured.hop, measured.socket
    copy = measured.copy
    rows = [
        (GUEST, "rdma-core makes the request (a post without its store)", pieces["burst-inline"] - pieces["stores"]),
        (TRAP, "the store leaves the guest; QEMU makes a message of it", pieces["stores"] - socket.send),
        (SOCKET, "from QEMU's send until the server's loop is awake", socket.wake),
        (SERVER, "the message is read and found to be a doorbell", hop[Part.MESSAGE]),
        (SERVER, "the queue pair stands in line for its turn", hop[Part.QUEUEING]),
        (ENGINE, "the turn, in Python", hop[Part.ENGINE] - (copy if not hop[Part.COMPILED] else 0)),
    ]
    if hop[Part.COMPILED]:
        rows.append((ENGINE, "the train, in C", hop[Part.COMPILED] - copy))
    rows.append((COPY, f"one plain copy of {SIZE} B", copy))
    whole = sum(hop.values())
    rows.append((REST, "wait for a processor, or for the server's work on the message before", 0.0))
    explained = sum(us for _, _, us in rows)
    rows[-1] = (*rows[-1][:2], whole - explained)
    notes = (
        f"behind each payload the server works on, for completions, events and counters: {hop[Part.AFTER]:.1f} us",
        f"ib_write_lat says {measured.latency:.1f} us without the meter, {measured.metered:.1f} us with it;"
        f" the guest's own program {pieces['hop']:.1f} us without it",
    )
    return Table(engine, f"one way of a ping-pong, {SIZE} B WRITE", tuple(rows), whole, notes)


def stream_tables(engine: str, measured: Measured) -> list[Table]:
    """One of a stream of messages: the sender's time, and beside it the server's."""
    pieces, stream, socket = measured.pieces, measured.stream, measured.socket
    copy = measured.copy
    guest = [
        (GUEST, "rdma-core makes the request (a post without its store)", pieces["burst"] - pieces["stores"]),
        (TRAP, "the store leaves the guest; QEMU makes a message of it", pieces["stores"] - socket.send),
        (SOCKET, "QEMU's send", socket.send),
    ]
    whole = measured.message
    guest.append((REST, "wait for completions or a processor; polling", whole - sum(us for _, _, us in guest)))
    server = [
        (SOCKET, "the loop asks for messages and waits", stream[Part.WAITING]),
        (SERVER, "messages are read and found to be doorbells", stream[Part.MESSAGE]),
        (SERVER, "queue pairs stand in line for their turn", stream[Part.QUEUEING]),
        (ENGINE, "turns, in Python", stream[Part.ENGINE] - (copy if not stream[Part.COMPILED] else 0)),
    ]
    if stream[Part.COMPILED]:
        server.append((ENGINE, "trains, in C", stream[Part.COMPILED] - copy))
    server += [
        (COPY, f"one plain copy of {SIZE} B", copy),
        (SERVER, "completions, events, counters, timers", stream[Part.AFTER]),
    ]
    both = sum(us for _, _, us in server)
    note = f"ib_write_bw says {1e3 / whole:.1f} k/s without the meter"
    return [
        Table(engine, f"one of a stream of {SIZE} B WRITEs, the sender's time", tuple(guest), whole, (note,)),
        Table(engine, "the same, the server's time, with the meter", tuple(server), both),
    ]


def run(lab: Lab, rounds: int, repeats: int, progress: Progress) -> dict[str, list[Measured]]:
    """All repeats by engine, for both engines if there are both."""
    verbs_pieces.install(lab.guests, verbs_pieces.build(Cache(), progress))
    bench = Bench(lab, rounds)
    found: dict[str, list[Measured]] = {}
    for engine in (C, PYTHON) if loaded().there else (PYTHON,):
        with nullcontext() if engine == C else without_c(bench.rack):
            for number in range(repeats):
                found.setdefault(engine, []).append(bench.once())
                latency = found[engine][-1].latency
                progress.say(f"breakdown, engine in {engine}, {number + 1} of {repeats}: {latency:.1f} us")
    return found


def tables(by_engine: dict[str, list[Measured]]) -> list[Table]:
    """All tables, of medians."""
    made = []
    for engine, all_measured in by_engine.items():
        name, measured = f"engine in {engine}", middle(all_measured)
        made += [latency_table(name, measured), *stream_tables(name, measured)]
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m tests.bench.bench_breakdown`; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000, help="messages of a ping-pong (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="of everything; medians count (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        with Lab(guests=2) as lab:
            found = run(lab, options.rounds, options.repeats, Progress())
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"{os.cpu_count()} processors; medians of {options.repeats}")
    for table in tables(found):
        print("\n" + "\n".join(table.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
