"""Guest memory that lets the host's next accesses in while it is read, as DMA by messages does."""

import pytest

from tests.support.driver import Driver
from vhca.chip.board import WAITING_ACCESSES
from vhca.chip.command_queue import LOGGED_COMPLAINTS
from vhca.chip.counters import BoardCount
from vhca.wire.connectx.cmd import Op


def test_a_command_that_arrives_during_a_step_runs_after_it() -> None:
    driver = Driver()
    driver.probe()
    order: list[str] = []
    firmware = driver.board.firmware
    handle = firmware.handle

    def traced(event: object, now_ns: int, out: list[object]) -> None:
        order.append(f"begin {type(event).__name__}")
        # A step that reads memory: the host's next doorbell comes in at that moment.
        if len(order) == 1:
            driver.bar_write(driver.uar * 4096 + 0x40, bytes((9, 0, 0, 0)))
        handle(event, now_ns, out)  # type: ignore[arg-type]
        order.append(f"end {type(event).__name__}")

    firmware.handle = traced  # type: ignore[method-assign, assignment]
    driver.run(Op.NOP)
    assert order == ["begin CommandPosted", "end CommandPosted", "begin EqDoorbell", "end EqDoorbell"]


def test_a_reset_during_a_step_waits_for_its_end() -> None:
    driver = Driver()
    driver.probe()
    board = driver.board
    handle = board.firmware.handle
    seen: list[int] = []

    def resetting(event: object, now_ns: int, out: list[object]) -> None:
        if not seen:
            board.reset("device")
        handle(event, now_ns, out)  # type: ignore[arg-type]
        seen.append(board.count[BoardCount.RESETS])

    board.firmware.handle = resetting  # type: ignore[method-assign, assignment]
    board.bar0.write(driver.uar * 4096 + 0x40, bytes((9, 0, 0, 0)))
    board.firmware.handle = handle  # type: ignore[method-assign]
    assert seen[0] == 0
    driver.run_deferred()
    assert board.count[BoardCount.RESETS] == 1


def test_a_board_says_when_too_much_waits_behind_a_step() -> None:
    """The connection then leaves what follows in its socket."""
    driver = Driver()
    driver.probe()
    board = driver.board
    handle = board.firmware.handle
    seen: list[bool] = []

    def flooded(event: object, now_ns: int, out: list[object]) -> None:
        if not seen:
            for count in (WAITING_ACCESSES, 1):
                for _ in range(count):
                    board.bar0.write(driver.uar * 4096 + 0x40, bytes((9, 0, 0, 0)))
                seen.append(board.overloaded)
        handle(event, now_ns, out)  # type: ignore[arg-type]

    board.firmware.handle = flooded  # type: ignore[method-assign, assignment]
    board.bar0.write(driver.uar * 4096 + 0x40, bytes((9, 0, 0, 0)))
    assert seen == [False, True]
    driver.run_deferred()
    assert not board.overloaded


def test_a_queue_that_moves_while_its_commands_run_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The host writes the queue's address at such a moment, again and again: its fault, and worth a line at times."""
    driver = Driver()
    driver.probe()
    board = driver.board
    handle = board.firmware.handle
    address = driver.queue.to_bytes(8, "big")
    entry = driver.memory.read(driver.queue, 64)

    def moving(event: object, now_ns: int, out: list[object]) -> None:
        board.bar0.write(0x10, address[:4])
        board.bar0.write(0x14, address[4:])
        handle(event, now_ns, out)  # type: ignore[arg-type]

    board.firmware.handle = moving  # type: ignore[method-assign, assignment]
    for _ in range(1000):
        driver.memory.write(driver.queue, entry[:63] + b"\x01")
        board.bar0.write(0x18, (1).to_bytes(4, "big"))
        driver.run_deferred()
    lines = [record for record in caplog.records if "its queue has gone" in record.message]
    assert LOGGED_COMPLAINTS <= len(lines) <= LOGGED_COMPLAINTS + 10
    assert {record.levelname for record in lines} == {"WARNING"}
