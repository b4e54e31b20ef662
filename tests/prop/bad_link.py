"""A cable that goes wrong by seed: it loses, doubles, swaps, delays, damages and cuts up packets."""

from __future__ import annotations

import random
from dataclasses import replace

from vhca.wire.ib import split
from vhca.wire.packet import Packet

MISHAPS = ("drop", "duplicate", "hold", "corrupt")
# A packet that never gets through would end in an exhausted retry count, rightly: so runs of bad luck end.
LONGEST_STREAK = 3


class BadLink:
    """Called with each packet or burst that leaves; returns what arrives. Well behaved after `mishaps` of them.

    A held packet comes out behind a later one of its direction, or behind one of its repeats: that is a delay and a
    reordering. `kinds` limits what may happen.
    """

    def __init__(self, seed: int, mishaps: int, kinds: tuple[str, ...] = MISHAPS) -> None:
        self._chance = random.Random(seed)
        self._left = mishaps
        self._kinds = kinds
        self._held: dict[int, list[Packet]] = {}
        self._streak: dict[int, int] = {}

    def __call__(self, packet: Packet) -> list[Packet]:
        parts = split(packet) if self._chance.random() < 0.6 else [packet]
        out: list[Packet] = []
        for part in parts:
            out += self._one(part)
        held = self._held.get(packet.route.dlid)
        if held and out and (not self._left or self._chance.random() < 0.4):
            out += held
            held.clear()
        return out

    def _one(self, packet: Packet) -> list[Packet]:
        direction = packet.route.dlid
        streak = self._streak.get(direction, 0)
        if not self._left or streak >= LONGEST_STREAK or self._chance.random() > 0.2:
            self._streak[direction] = 0
            return [packet]
        self._left -= 1
        self._streak[direction] = streak + 1
        kind = self._chance.choice(self._kinds)
        if kind == "duplicate":
            return [packet, replace(packet)]
        if kind == "corrupt":
            payload = bytearray(packet.payload)
            if payload:
                payload[self._chance.randrange(len(payload))] ^= 1 << self._chance.randrange(8)
            return [replace(packet, payload=bytes(payload), good=False)]
        if kind == "hold":
            self._held.setdefault(direction, []).append(packet)
        return []
