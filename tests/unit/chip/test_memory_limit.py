"""Where the limit of a card's memory comes from."""

from pathlib import Path

import pytest

from vhca.chip.card import memory_limit_for
from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.proto import DmaFlags

MIB = 1 << 20
READ_WRITE = int(DmaFlags.READ | DmaFlags.WRITE)


@pytest.mark.parametrize(
    ("machine", "limit"), [(0, 256), (384, 256), (1024, 256), (2048, 512), (6000, 1500), (1 << 20, 2048)]
)
def test_a_card_gets_a_quarter_of_what_its_machine_has(machine: int, limit: int) -> None:
    assert memory_limit_for(machine * MIB) == limit * MIB


def test_what_is_mapped_is_the_machine_s_memory() -> None:
    table = DmaTable()
    table.map(0, 3 * MIB, 0, READ_WRITE, None)
    table.map(4 * MIB, MIB, 0, READ_WRITE, None)
    assert table.mapped_bytes == 4 * MIB
    table.unmap(0, 3 * MIB)
    assert table.mapped_bytes == MIB
    table.unmap_all()
    assert table.mapped_bytes == 0


def test_the_board_asks_the_card_unless_the_rack_says_how_much(tmp_path: Path) -> None:
    rack = Rack(1, tmp_path)
    card = rack.hcas[0]
    card.server.dma.map(0, 4096 * MIB, 0, READ_WRITE, None)
    assert card.board.counters()["memory_limit_bytes"] == 256 * MIB
    card.board.reset("flr")
    assert card.board.counters()["memory_limit_bytes"] == 1024 * MIB
    rack = Rack([CardConfig(memory=5 * MIB)], tmp_path)
    assert rack.hcas[0].board.counters()["memory_limit_bytes"] == 5 * MIB
