"""Recordings for tests: of a card with its driver, and of two cards of the scenarios."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmware import boot
from tests.scenario import card as scenario
from tests.support.driver import PAGE, CommandFailed, Driver
from tests.unit.chip.test_commands import Bench
from vhca.chip.rack_config import CardConfig
from vhca.hw.hardware import FirmwareImage
from vhca.replay.file import LIMIT_BYTES, Reader
from vhca.replay.player import Played, Player
from vhca.replay.recorder import CardRecorder
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op


def recorder(path: Path, limit_bytes: int = LIMIT_BYTES) -> CardRecorder:
    return CardRecorder(path, "h0", CardConfig(), limit_bytes)


def alloc_pd(driver: Driver) -> int:
    pd: int = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    return pd


def session(driver: Driver) -> None:
    """Some life of a card: bring-up, objects, a read of the host's memory, a refused command, a cable, a reset."""
    driver.probe()
    driver.board.link_change(1, True)
    driver.create_eq(4, 1 << 9)
    resize_cq(driver)
    pd = alloc_pd(driver)
    driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))
    with pytest.raises(CommandFailed):
        driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=pd))
    driver.board.link_change(1, False)


def resize_cq(driver: Driver) -> None:
    """A command for which the program reads guest memory: how far the host has come with the old buffer."""
    bench = Bench(driver)
    cqn = bench.cq()
    change = cmd.ModifyCqIn(cqn=cqn, modify_field_select_resize_field_select=7)
    change.cq_context.log_cq_size = 5
    driver.run(Op.MODIFY_CQ, change, driver.pages(driver.alloc(PAGE), PAGE), op_mod=1)


def recorded_session(path: Path, run: Callable[[Driver], None] = session, limit_bytes: int = LIMIT_BYTES) -> Path:
    """The recording of a card with its driver."""
    keeper = recorder(path, limit_bytes)
    run(Driver(image=keeper.of(boot)))
    keeper.close()
    return path


def played(path: Path, image: FirmwareImage = boot, *, watched: bool = False) -> list[Played]:
    """All steps of a recording, played."""
    with Reader(path) as reader:
        return list(Player(reader, image, watched=watched).play())


class _Program:
    """A recorded program of the scenarios, whose tests look inside it."""

    def __init__(self, tap: Any) -> None:
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tap if hasattr(type(self._tap), name) else self._tap.inner, name)


class ScenarioImage:
    """Stands for `boot` in scenarios: each card's program is recorded, by the order in which they boot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.recorders: list[CardRecorder] = []

    def power_up(self, hardware: Any) -> Any:
        keeper = recorder(self._folder / f"{len(self.recorders)}.vhcarec")
        self.recorders.append(keeper)
        return _Program(keeper.of(boot).power_up(hardware))

    def close(self) -> list[Path]:
        for keeper in self.recorders:
            keeper.close()
        return [keeper.path for keeper in self.recorders]


class _Forgetful(dict[int, Any]):
    """Cards are brought up one by one: what was restored is in no recording."""

    def __setitem__(self, _key: int, _value: Any) -> None:
        pass


def record_scenarios(monkeypatch: pytest.MonkeyPatch, folder: Path) -> ScenarioImage:
    """From now on cards of scenarios are recorded."""
    image = ScenarioImage(folder)
    monkeypatch.setattr(scenario, "boot", image)
    monkeypatch.setattr(scenario.Card, "_started", _Forgetful())
    return image
