"""While everything is recorded, a guest that makes records as fast as it can holds up nobody but itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.remote import RemoteDriver
from tests.unit.chip.test_control import ask, connect
from tests.wire.client import Client
from tests.wire.test_control import SLOWEST_S, slowest_access_s
from vhca.chip.card import FIRST_UAR
from vhca.chip.control import SOCKET_NAME
from vhca.chip.rack import Rack
from vhca.wire.connectx.cmd import Op

PAGE = 4096
SEND_DOORBELL = 0x800
ARM_CQ = 0x20
ARM_EQ = 0x40


def ring_all(driver: RemoteDriver) -> None:
    """Doorbells of every kind."""
    for offset in (SEND_DOORBELL, ARM_CQ, ARM_EQ):
        driver.bar_write(FIRST_UAR * PAGE + offset, b"\xff" * 8)


def refused(driver: RemoteDriver) -> None:
    """A command that there is not."""
    driver.raw((0xFFFF).to_bytes(2, "big") + bytes(14))


def nothing(driver: RemoteDriver) -> None:
    """A command that does nothing, well."""
    driver.raw(int(Op.NOP).to_bytes(2, "big") + bytes(14))


@pytest.mark.parametrize("attack", [ring_all, refused, nothing])
@pytest.mark.parametrize("reader", ["file", "nobody", "full"])
def test_a_flood_of_records_takes_no_other_card_s_time(
    rack: Rack, machine: Client, tmp_path: Path, attack: Callable[[RemoteDriver], None], reader: str
) -> None:
    with contextlib.ExitStack() as stack:
        if reader == "nobody":
            idle = stack.enter_context(connect(rack.directory / SOCKET_NAME))
            assert ask(idle, "capture_live", records=True) == {"result": None}
        else:
            file = Path("/dev/full") if reader == "full" else tmp_path / "c.pcapng"
            capture = stack.enter_context(rack.fabric.capture(file, records=True))
        driver = RemoteDriver(rack.directory / "h1.sock")
        driver.probe()
        stop = threading.Event()
        rounds = 0

        def flood() -> None:
            nonlocal rounds
            with contextlib.suppress(OSError):
                while not stop.is_set():
                    attack(driver)
                    rounds += 1

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            time.sleep(0.2)
            assert slowest_access_s(machine) < SLOWEST_S
        finally:
            stop.set()
            thread.join(20)
        assert rounds > 50
        driver.close()
        if reader == "full":
            assert capture.trouble == "No space left on device"
        elif reader == "file":
            capture.flush()
            assert capture.packets > 50
