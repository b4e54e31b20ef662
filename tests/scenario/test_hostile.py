"""A host takes objects away while a peer's message is under way, and asks for work out of all proportion."""

from __future__ import annotations

import pytest

from firmware.objects import Mkey
from tests.scenario.world import ST_RC, ST_UC, End, World, pair
from vhca.hw.effects import DmaWrite
from vhca.wire.ib import split

REGION = 64 << 10


def _half_a_write(service: int) -> tuple[World, End, int, Mkey]:
    """The first packet of a two-packet WRITE to a key of its own has arrived at `b`."""
    world, a, b = pair(service)
    left, right = a.buffer(b"\xaa" * 2048), b.buffer(REGION)
    mkey = b.card.hca.mkeys.get(b.card.register(right, REGION) >> 8)
    assert mkey is not None
    world.fault = split
    a.write(left, 2048, right, mkey.handle << 8 | mkey.variant)
    world.deliver(1)
    assert b.peek(right, 2048) == b"\xaa" * 1024 + bytes(1024)
    return world, b, right, mkey


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_key_destroyed_during_a_write_takes_no_more_of_it(service: int) -> None:
    world, b, right, mkey = _half_a_write(service)
    b.card.hca.mkeys.remove(mkey)
    world.settle()
    assert b.peek(right + 1024, 1024) == bytes(1024)


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_key_registered_anew_during_a_write_keeps_its_new_borders(service: int) -> None:
    world, b, right, mkey = _half_a_write(service)
    fresh = b.buffer(8192)
    mkey.start, mkey.length, mkey.pages = right, 512, [fresh & ~0xFFF]
    b.card.effects.clear()
    world.settle()
    assert b.peek(right + 1024, 1024) == bytes(1024)
    assert not [effect for effect in b.card.effects if isinstance(effect, DmaWrite)]
