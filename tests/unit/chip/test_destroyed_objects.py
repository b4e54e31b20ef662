"""What is destroyed is gone at once: nothing keeps it until a timer's time has come or the collector runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from firmware.model.counters import Count
from firmware.model.objects import Cq, Mkey
from firmware.model.qp import Qp
from firmware.model.send_wqe import SendWqe
from firmware.model.timers import Timer
from tests.bench.bench_memory import Rounds
from tests.support.driver import PAGE
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op

KINDS = (Qp, Cq, Mkey, Timer, SendWqe)


def alive() -> dict[type, int]:
    """How many objects of each kind exist, reachable or not."""
    counts = dict.fromkeys(KINDS, 0)
    for thing in gc.get_objects():
        if type(thing) in counts:
            counts[type(thing)] += 1
    return counts


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    """A card whose port is active, with the collector switched off."""
    rounds = Rounds()
    rounds.run(1)
    gc.collect()
    gc.disable()
    yield rounds
    gc.enable()


def test_a_queue_pair_destroyed_while_it_waits_for_an_answer_is_gone(rounds: Rounds) -> None:
    hca = rounds.hca
    before = alive()
    queue = rounds.create()
    rounds.send(queue)
    assert rounds.sent > 0
    assert hca.timers.next_deadline() is not None
    assert alive()[SendWqe] == before[SendWqe] + 1
    # A timer that is sooner keeps the one of the destroyed queue pair from the top of the heap.
    other = rounds.create()
    rounds.send(other)
    rounds.destroy(other)
    rounds.destroy(queue)
    assert alive() == before


def test_a_destroyed_key_gives_its_page_list_back_while_a_message_to_it_is_under_way(rounds: Rounds) -> None:
    driver = rounds.driver
    view = cmd.CreateMkeyIn()
    entry = view.memory_key_mkey_entry
    entry.pd, entry.access_mode_1_0, entry.lr, entry.lw = rounds.pd, 1, 1, 1
    entry.len, entry.log_page_size, entry.translations_octword_size = 2 * PAGE, 12, 2
    view.translations_octword_actual_size = 2
    index = cmd.CreateMkeyOut.from_bytes(driver.run(Op.CREATE_MKEY, view, driver.pages(0, 4 * PAGE))).mkey_index
    mkey = rounds.hca.mkeys.get(index)
    assert mkey is not None
    assert len(mkey.mtts) == 16
    driver.run(Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=index))
    # Whoever holds it still, a responder in the middle of a message, holds no list.
    assert not mkey.mtts
    assert mkey.free


def test_rounds_leave_nothing(rounds: Rounds) -> None:
    before = alive(), len(rounds.hca.timers)
    rounds.run(100)
    assert (alive(), len(rounds.hca.timers)) == before
    assert rounds.hca.count[Count.TX_PACKETS] >= 100
