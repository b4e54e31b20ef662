"""A small capture that scenarios make: two cards with a link that drops nothing, on a clock of 250 ns a record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.scenario.card import Card
from tests.scenario.world import World, pair
from tests.support.commands import CommandFailed
from vhca.chip.watch import Watch
from vhca.fabric.capture import OUTBOUND, Capture
from vhca.hw.effects import Told, Transmit
from vhca.wire.connectx.cmd import Op

STEP_NS = 250
START_NS = 1_700_000_000_000_000_000


class _Watched(Watch):
    """A program that is watched, and looked at as before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Told(list[Any]):
    """The effects of a card: what is among them goes into the capture."""

    def __init__(self, card: Card, watch: Watch, capture: Capture) -> None:
        super().__init__()
        self._card, self._watch, self._capture = card, watch, capture

    def append(self, effect: Any) -> None:
        super().append(effect)
        if isinstance(effect, Told):
            self._watch.told(effect)
        elif isinstance(effect, Transmit):
            self._capture.record(self._capture.interface(self._card.name), effect.packet, OUTBOUND)


@contextmanager
def recorded(world: World, path: Path) -> Iterator[None]:
    """What both cards of a world do meanwhile is in a capture."""
    now = [START_NS]

    def clock() -> int:
        now[0] += STEP_NS
        return now[0]

    capture = Capture.to_file(path, clock)
    for card in (world.a, world.b):
        interface = capture.interface(f"{card.name}-card", records=True)

        def listen(record: Any, interface: Any = interface) -> None:
            capture.write(capture.told(interface, record))

        watch = _Watched(card.firmware, [listen])
        card.firmware = watch  # type: ignore[assignment]
        card.effects = _Told(card, watch, capture)
    try:
        yield
    finally:
        for card in (world.a, world.b):
            assert isinstance(card.firmware, Watch)
            card.firmware = card.firmware.unwrap()  # type: ignore[assignment]
            card.effects = []
        capture.close()
        assert capture.wait()


def small_capture(path: Path) -> tuple[int, int]:
    """A SEND with its completion and its interrupt, a WRITE that a key refuses, a command that is refused.

    Gives the numbers of the queue pairs.
    """
    world, a, b = pair()
    key = world.b.register(b.buffer(64), 64)
    start = world.b.mkey(key).start
    world.a.update_eq(arm=True)
    with recorded(world, path):
        b.post_recv(b.buffer(64), 64)
        a.send_cq.arm()
        a.send(a.buffer(b"x" * 32), 32)
        world.settle()
        world.b.destroy_key(key)
        a.write(a.buffer(b"x" * 32), 32, start, key)
        world.settle()
        with suppress(CommandFailed):
            world.b.destroy_key(key)
        world.a.submit(Op.DESTROY_CQ)
    return a.qpn, b.qpn
