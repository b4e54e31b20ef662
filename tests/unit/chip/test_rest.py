"""A card whose client kept the loop waiting rests: no turn and no timer of its own until then."""

import time
from pathlib import Path

import pytest

from vhca.chip.card import Card, load_firmware
from vhca.chip.passages import Behind
from vhca.chip.rack_config import CardConfig
from vhca.chip.rounds import Rounds
from vhca.sim.clock import VirtualClock
from vhca.sim.loop import Loop
from vhca.wire.packet import RC, SEND, Packet, Route

REST_S = 0.25


def test_a_card_that_rests_has_neither_turns_nor_timers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(1_000_000_000)
    loop = Loop(clock)
    rounds = Rounds(loop.call_soon, clock.now_ns)
    card = Card("h0", CardConfig(), tmp_path / "h0.sock", loop, load_firmware("firmware"), lambda on: None, rounds)
    board = card.board
    monkeypatch.setattr(board, "next_deadline", lambda: clock.now_ns() - 1)
    ticks: list[int] = []
    monkeypatch.setattr(board, "run_timers", ticks.append)
    monkeypatch.setattr("vhca.vfio_user.server.time.monotonic", lambda: clock.now_ns() / 1e9)
    card.server._wait_budget.rest_until = clock.now_ns() / 1e9 + REST_S
    board.packet_in(1, Packet(Route(1, 2), RC, SEND, 0x77, 0))
    for _ in range(3):
        loop.run_once(0)
    assert (ticks, board.counters().get("rx_drop_port_inactive", 0)) == ([], 0)
    assert card.next_deadline() == clock.now_ns() + int(REST_S * 1e9)
    clock.advance(int(REST_S * 1e9))
    loop.run_once(0)
    assert ticks == [clock.now_ns()]
    assert board.counters()["rx_drop_port_inactive"] == 1
    loop.close()


def test_no_train_is_run_to_a_card_that_rests(tmp_path: Path) -> None:
    """Its step, for an event, might wait for messages of its client again: in the turn of the card that sends."""

    class Open:
        def is_open(self, mtu: int, *, empty: bool = False) -> bool:
            return True

        def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
            raise AssertionError

    loop = Loop(VirtualClock(1_000_000_000))
    rounds = Rounds(loop.call_soon, loop.clock.now_ns)
    card = Card("h0", CardConfig(), tmp_path / "h0.sock", loop, load_firmware("firmware"), lambda on: None, rounds)
    way = Behind(Open(), card.board, card.board, 1)
    assert way.is_open(256)
    card.server._wait_budget.rest_until = time.monotonic() + REST_S
    assert not way.is_open(256)
    loop.close()
