"""What can go wrong on a cable: rules that lose, repeat, swap, damage or delay packets, reproducible by seed.

Rules look at packets, never at bursts: a link with rules cuts bursts first. The first rule that matches a packet acts
on it; later rules do not see it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal, get_args

from vhca.fabric.line import damaged
from vhca.wire.ib import opcode_of, split
from vhca.wire.opcodes import OPCODES
from vhca.wire.packet import UD, Packet

Action = Literal["drop", "duplicate", "reorder", "corrupt", "delay"]
"""`reorder` swaps a packet with the next one on the cable."""

Direction = Literal["both", "from_card", "to_card", "from", "to"]
"""Which way on a cable: what its card sends, what that is sent; what is sent from, or to, the end that is named; or
(counted together) both."""

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)


def opcodes_named(name: str) -> frozenset[int]:
    """The opcodes that a name means: RC_RDMA_WRITE_LAST is one, RDMA_WRITE all writes of all services, SEND all sends.

    ValueError, with the names there are, if it means none.
    """
    wanted = name.upper()
    found, names = set(), []
    for row in OPCODES:
        if row is None:
            continue
        operation = row.name.partition("_")[2]
        names.append(operation)
        if any(full == wanted or full.startswith(wanted + "_") for full in (row.name, operation)):
            found.add(row.code)
    if not found:
        raise ValueError(
            f"no opcode is called {name}; there are {', '.join(dict.fromkeys(names))}, and their beginnings"
        )
    return frozenset(found)


@dataclass(slots=True)
class Fault:
    """One rule: what to do with which packets. ValueError for a rule that cannot be.

    What limits the rule to some packets (all of these must hold):

    - `opcode`: a name, or its beginning: "RDMA_WRITE", "RC_SEND_ONLY"; see :func:`opcodes_named`
    - `dest_qp`, `psn`: as in the base transport header
    - `match`: a function of the packet
    - `management`: without it datagrams of QP0 and QP1 are left alone, and not counted

    Which of these are hit: `nth` that one only, counted from 1; or, behind the first `skip`, each with `probability`
    (0..1), until there were `limit` hits (None: no end).

    `delay_ns` is for action `delay`. A rule counts: `seen` packets were meant, `hits` of them hit.
    """

    action: Action
    match: Callable[[Packet], bool] | None = None
    probability: float = 1.0
    skip: int = 0
    limit: int | None = None
    delay_ns: int = 0
    opcode: str | None = None
    dest_qp: int | None = None
    psn: int | None = None
    nth: int | None = None
    management: bool = False
    seen: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)
    _codes: frozenset[int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"a fault cannot {self.action!r}; it can {', '.join(ACTIONS)}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability {self.probability} is not in 0 .. 1")
        if min(self.skip, self.delay_ns, self.limit or 0) < 0:
            raise ValueError("skip, limit and delay cannot be negative")
        if self.opcode is not None:
            self._codes = opcodes_named(self.opcode)
        if self.nth is not None:
            if self.nth < 1 or self.skip or self.limit is not None:
                raise ValueError("nth counts from 1, and goes without skip and limit")
            self.skip, self.limit = self.nth - 1, 1

    def hit(self, packet: Packet, random: Random) -> bool:
        """Tell whether the rule acts on this packet, and count it."""
        if self.limit is not None and self.hits >= self.limit:
            return False
        if not self._means(packet):
            return False
        self.seen += 1
        if self.seen <= self.skip:
            return False
        if self.probability < 1.0 and random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def _means(self, packet: Packet) -> bool:
        if not self.management and packet.service == UD and (packet.dest_qp <= 1 or packet.src_qp <= 1):
            return False
        if self.dest_qp is not None and packet.dest_qp != self.dest_qp:
            return False
        if self.psn is not None and packet.psn != self.psn:
            return False
        if self._codes is not None:
            try:
                if opcode_of(packet).code not in self._codes:
                    return False
            except ValueError:  # a card sent what no wire could carry
                return False
        return self.match is None or self.match(packet)

    def __str__(self) -> str:
        """The rule in words, without its counts."""
        words: list[str] = [self.action]
        if self.action == "delay":
            words.append(f"by {self.delay_ns / 1e6:g} ms")
        for name, value in (("opcode", self.opcode), ("dest_qp", self.dest_qp), ("psn", self.psn), ("nth", self.nth)):
            if value is not None:
                words.append(f"{name} {value}")
        if self.nth is None:
            words += [f"skip {self.skip}"] * (self.skip > 0) + [f"limit {self.limit}"] * (self.limit is not None)
        if self.probability < 1.0:
            words.append(f"probability {self.probability:g}")
        return " ".join(words + ["management"] * self.management + ["match"] * (self.match is not None))


class FaultInjector:
    """The rules of one direction of a cable."""

    def __init__(self, seed: int = 0) -> None:
        self.rules: list[Fault] = []
        self._random = Random(seed)
        self._held: Packet | None = None

    def apply(self, packet: Packet) -> list[tuple[int, Packet]]:
        """What comes out for a packet or burst that goes in: (delay in ns, packet) in order."""
        out: list[tuple[int, Packet]] = []
        for part in split(packet):
            self._apply_one(part, out)
        return out

    def flush(self) -> list[Packet]:
        """A packet that waits for a successor to be swapped with, if any."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _apply_one(self, packet: Packet, out: list[tuple[int, Packet]]) -> None:
        rule = next((rule for rule in self.rules if rule.hit(packet, self._random)), None)
        action = rule.action if rule is not None else None
        if action == "reorder" and self._held is None:
            self._held = packet
            return
        if action == "duplicate":
            out.append((0, packet))
            out.append((0, replace(packet)))
        elif action == "corrupt":
            out.append((0, damaged(packet, self._random)))
        elif action == "delay" and rule is not None:
            out.append((rule.delay_ns, packet))
        elif action != "drop":
            out.append((0, packet))
        if self._held is not None and out:
            out.append((0, self._held))
            self._held = None
