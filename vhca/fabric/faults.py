"""What can go wrong on a cable: rules that lose, repeat, swap, damage or delay packets, reproducible by seed.

Rules look at packets, never at bursts: a link with rules cuts bursts first. The first rule that matches a packet acts
on it; later rules do not see it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from vhca.wire.ib import split
from vhca.wire.packet import Packet

Action = Literal["drop", "duplicate", "reorder", "corrupt", "delay"]


@dataclass(slots=True)
class Fault:
    """One rule: what to do with which packets.

    `match` limits the rule to some packets (None: all), `probability` (0..1) to a random share of those; `skip` lets
    the first matching packets pass, `limit` ends the rule after so many hits (None: never). `reorder` swaps a packet
    with the next one on the cable; `delay_ns` is for action `delay`.
    """

    action: Action
    match: Callable[[Packet], bool] | None = None
    probability: float = 1.0
    skip: int = 0
    limit: int | None = None
    delay_ns: int = 0
    hits: int = field(default=0, init=False)

    def hit(self, packet: Packet, random: Random) -> bool:
        """Tell whether the rule acts on this packet, and count it."""
        if self.limit is not None and self.hits >= self.limit:
            return False
        if self.match is not None and not self.match(packet):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.probability < 1.0 and random.random() >= self.probability:
            return False
        self.hits += 1
        return True


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
            out.append((0, self._damage(packet)))
        elif action == "delay" and rule is not None:
            out.append((rule.delay_ns, packet))
        elif action != "drop":
            out.append((0, packet))
        if self._held is not None and out:
            out.append((0, self._held))
            self._held = None

    def _damage(self, packet: Packet) -> Packet:
        """The packet with a flipped payload bit, if it has a payload, and a wrong CRC in any case."""
        payload = bytearray(packet.payload)
        if payload:
            bit = self._random.randrange(len(payload) * 8)
            payload[bit >> 3] ^= 1 << (bit & 7)
        return replace(packet, payload=bytes(payload), good=False)
