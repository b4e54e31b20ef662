"""The server and the PCI function under a real QEMU, driven by qtest: no guest, every access by hand."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.wire.card import BAR2, ONES, PBA, RAM, TABLE, VECTORS, Card, Pc
from tests.wire.client import memfd
from tests.wire.qtest import (
    GIB,
    QemuEnded,
    QemuProgram,
    Qtest,
    ServerThread,
    client,
    client_properties,
    find_qemu,
    machine,
)
from vhca.hw.memory import DmaError
from vhca.pci import Bar, Region
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.proto import Command
from vhca.vfio_user.session import Outgoing, Session

# QEMU's messages, by what fails in them.
FAILURES = {
    "VERSION": lambda command, payload: command == Command.VERSION,
    "GET_INFO": lambda command, payload: command == Command.DEVICE_GET_INFO,
    "GET_REGION_INFO": lambda command, payload: command == Command.DEVICE_GET_REGION_INFO,
    "config read": lambda command, payload: command == Command.REGION_READ,
    "GET_IRQ_INFO of MSI-X": lambda command, payload: command == Command.DEVICE_GET_IRQ_INFO and payload[8] == 2,
}


@pytest.fixture(scope="session")
def qemu() -> QemuProgram:
    found = find_qemu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class NotingSession(Session):
    """Notes each command, and answers with an error where the test wants one."""

    messages: list[tuple[int, int, bytes, int]]
    fail: Callable[[int, bytes], bool]

    def handle(
        self, message_id: int, command: int, flags: int, payload: bytes, fds: Sequence[int] = ()
    ) -> Outgoing | None:
        self.messages.append((command, flags, payload, len(fds)))
        if type(self).fail(command, payload):
            for fd in fds:
                os.close(fd)
            return Outgoing(proto.error_reply(message_id, command, errno.EINVAL))
        return super().handle(message_id, command, flags, payload, fds)


def nothing(command: int, payload: bytes) -> bool:
    return False


@contextlib.contextmanager
def served(path: Path, **options: Any) -> Iterator[Card]:
    """A card whose server runs in a thread."""
    NotingSession.messages = []
    NotingSession.fail = nothing
    card = Card(path, session_type=NotingSession, **options)
    with ServerThread(card.server):
        yield card


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    with served(tmp_path / "card.sock") as card:
        yield card


@contextlib.contextmanager
def running(
    qemu: QemuProgram,
    card: Card,
    tmp_path: Path,
    *,
    ram: str = "memfd,share=on",
    hot: bool = False,
    properties: Mapping[str, Any] | None = None,
) -> Iterator[Pc]:
    """Start QEMU with the card (or, if `hot`, with an empty slot)."""
    device = [] if hot else client(card.path or tmp_path, **properties or {})
    with Qtest(qemu, tmp_path, [*machine(ram=ram), *device]) as qtest:
        pc = Pc(qtest, card)
        if not hot:
            pc.set_up()
        yield pc
        if qtest.process.poll() is None:
            qtest.qmp("quit")
            assert qtest.wait() == 0
    if not hot:
        card.wait_for_loss()
        assert len(card.server.dma) == 0


# ---- start, identity, access ----


def test_cold_start_config_and_quit(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        assert pc.config_read(0, 4) == 0x101B15B3
        assert pc.config_read(8, 4) == 0x02070000
        assert pc.config_read(0x2C, 4) == 0x000115B3
        assert pc.config_read(0x34, 1) == 0x40
        pcie = card.config.offsets["pcie"]
        # an endpoint with function level reset, 16 GT/s, 16 lanes
        assert pc.config_read(pcie + 2, 2) & 0xFF == 0x02
        assert pc.config_read(pcie + 4, 4) & 1 << 28
        assert pc.config_read(pcie + 0xC, 4) & 0x3FF == 0x104
        msix = card.config.offsets["msix"]
        assert pc.config_read(msix + 2, 2) == VECTORS - 1
        # sizing of BAR0 is QEMU's own affair
        pc.config_write(4, 2, 0)
        pc.config_write(0x10, 4, 0xFFFFFFFF)
        pc.config_write(0x14, 4, 0xFFFFFFFF)
        assert (pc.config_read(0x10, 4), pc.config_read(0x14, 4)) == (0xFE00000C, 0xFFFFFFFF)
        assert card.server.counters[ServerCount.REFUSED] == 0
    assert card.server.counters[ServerCount.DEVICE_ERROR] == 0
    assert card.resets == ["device", "lost_connection"]


def test_the_messages_of_realize(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        commands = [command for command, *_ in NotingSession.messages]
    assert commands[0] == Command.VERSION
    first_info = commands.index(Command.DEVICE_GET_INFO)
    assert set(commands[1:first_info]) == {Command.DMA_MAP}
    version = proto.parse_version(NotingSession.messages[0][2])
    assert version.capabilities == proto.Capabilities(16, 1 << 20, 4096, 65535, True)
    # RAM came with a descriptor, the BIOS without
    assert {fds for command, _, _, fds in NotingSession.messages[1:first_info]} == {0, 1}
    regions = [
        payload[8] for command, _, payload, _ in NotingSession.messages if command == Command.DEVICE_GET_REGION_INFO
    ]
    assert regions == [0, 1, 2, 3, 4, 5, 7]
    interrupts = [
        payload[8] for command, _, payload, _ in NotingSession.messages if command == Command.DEVICE_GET_IRQ_INFO
    ]
    assert interrupts == [3, 2]
    reads = [
        proto.parse_region_read(payload)
        for command, _, payload, _ in NotingSession.messages
        if command == Command.REGION_READ
    ]
    assert reads[0] == (0, 7, 4096)
    assert set(commands) <= {1, 2, 3, 4, 5, 7, 8, 9, 10, 13}
    assert pc.card.resets[0] == "device"


@pytest.mark.parametrize("properties", [{}, {"x-no-posted-writes": True}, {"x-send-queued": True}, {"rombar": 0}])
def test_bar_accesses_arrive_whole(qemu: QemuProgram, card: Card, tmp_path: Path, properties: dict[str, Any]) -> None:
    with running(qemu, card, tmp_path, properties=properties) as pc:
        value = 0x8877665544332211
        for size in (1, 2, 4, 8):
            pc.write(0x20000, size, value & ONES[size])
            assert pc.read(0x20000, size) == value & ONES[size]
        assert card.bar.writes == [(0x20000, value.to_bytes(8, "little")[:size]) for size in (1, 2, 4, 8)]
        card.bar.writes.clear()
        pc.write(0x20004, 8, value)
        pc.flush()
        assert card.bar.writes == [(0x20004, bytes.fromhex("11223344")), (0x20008, bytes.fromhex("55667788"))]
        # the last bytes of the BAR, and the MSI-X table, of which QEMU sends nothing
        pc.write((32 << 20) - 8, 8, value)
        assert pc.read((32 << 20) - 8, 8) == value
        card.bar.writes.clear()
        pc.write(TABLE, 4, 0x12345678)
        assert pc.read(TABLE, 4) == 0x12345678
        assert pc.read(PBA, 8) == 0
        assert card.bar.writes == []


def test_posted_writes_keep_their_order(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        for i in range(1000):
            pc.write(0x10000 + 8 * i, 8, i)
        pc.flush()
        assert card.bar.writes == [(0x10000 + 8 * i, i.to_bytes(8, "little")) for i in range(1000)]


def test_guest_memory(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        pc.q.write_bytes(RAM, b"from the guest")
        assert card.server.dma.read(RAM, 14) == b"from the guest"
        card.server.dma.write(RAM + 4096, b"from the card")
        assert pc.q.read_bytes(RAM + 4096, 13) == b"from the card"
        card.server.dma.write(GIB - 8, b"last one")
        assert pc.q.read_bytes(GIB - 8, 8) == b"last one"
        for address in (GIB, 0xFED00000, 1 << 40):
            with pytest.raises(DmaError, match="not mapped"):
                card.server.dma.read(address, 1)
        with pytest.raises(DmaError, match="read-only"):
            card.server.dma.write(0xFFFC0000, b"BIOS")
    # QEMU seals its memfd: RAM is loaded from and stored to
    assert card.server.counters[ServerCount.DMA_MAP_MAPPED] > 0
    assert card.server.counters[ServerCount.DMA_MAP_COPIED] == 0


def test_guest_memory_in_a_file_that_may_shrink(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    """As a libvirt domain with a memory source of type file has it, when that lies in /dev/shm."""
    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="vhca-test-") as file,
        running(qemu, card, tmp_path, ram=f"file,mem-path={file.name},share=on") as pc,
    ):
        pc.q.write_bytes(RAM, b"from the guest")
        assert card.server.dma.read(RAM, 14) == b"from the guest"
        card.server.dma.write(GIB - 8, b"last one")
        assert pc.q.read_bytes(GIB - 8, 8) == b"last one"
    assert card.server.counters[ServerCount.DMA_MAP_COPIED] > 0
    assert card.server.counters[ServerCount.DMA_MAP_MAPPED] == 0


# ---- interrupts ----


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll QEMU until what its main loop has to do has been done."""
    for _ in range(2000):
        if condition():
            return
    raise AssertionError("it did not happen")


def test_msix(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    """A vector whose address is plain memory shows what is delivered."""
    with running(qemu, card, tmp_path) as pc:
        irqs = card.server.irqs
        pc.config_write(4, 2, 6)
        for vector in range(20):
            pc.arm(vector, RAM + 4 * vector, 0xA00 + vector)
        pc.enable_msix()
        assert card.config.msix_enabled
        assert [irqs.armed(vector) for vector in range(21)] == [True] * 20 + [False]
        set_irqs = [
            (payload[12], payload[16], fds)
            for command, _, payload, fds in NotingSession.messages
            if command == Command.DEVICE_SET_IRQS and payload[8] == 2
        ]
        assert set_irqs[-2:] == [(0, 16, 16), (16, 4, 4)]
        for vector in (0, 7, 19):
            assert pc.q.read(RAM + 4 * vector, 4) == 0
            irqs.raise_irq(vector)
            wait_for(lambda vector=vector: pc.q.read(RAM + 4 * vector, 4) == 0xA00 + vector)  # type: ignore[misc]
        # a vector without an eventfd waits for the guest to arm it
        irqs.raise_irq(40)
        assert irqs.pending() == {40}
        pc.arm(40, RAM + 160, 0xBEEF)
        wait_for(lambda: pc.q.read(RAM + 160, 4) == 0xBEEF)
        # a masked one waits inside QEMU
        pc.write(TABLE + 7 * 16 + 12, 4, 1)
        pc.q.write(RAM + 28, 4, 0)
        irqs.raise_irq(7)
        pc.flush()
        assert pc.q.read(RAM + 28, 4) == 0
        pc.write(TABLE + 7 * 16 + 12, 4, 0)
        wait_for(lambda: pc.q.read(RAM + 28, 4) == 0xA07)
        pc.config_write(card.config.offsets["msix"] + 2, 2, 0)
        assert not card.config.msix_enabled
        assert not any(irqs.armed(vector) for vector in range(VECTORS))


def test_msix_function_mask(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        pc.arm(0, RAM, 1)
        pc.enable_msix(masked=True)
        assert card.config.msix_masked
        pc.enable_msix()
        assert not card.config.msix_masked
        assert card.server.irqs.armed(0)


# ---- resets and endings ----


def test_system_reset(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        pc.arm(0, RAM, 1)
        pc.enable_msix()
        error_eventfd = card.server.irqs.armed(0, proto.IrqIndex.ERR)
        for round_ in range(3):
            assert "return" in pc.q.qmp("system_reset")
            pc.config_read(0, 4)
            assert card.resets == ["device"] * (2 + round_)
            assert not card.config.bus_master
            assert not card.config.msix_enabled
            assert not card.server.irqs.armed(0)
            assert card.server.irqs.armed(0, proto.IrqIndex.ERR) == error_eventfd
            pc.set_up()
            pc.write(0x10000, 8, round_)
            assert pc.read(0x10000, 8) == round_
            assert card.server.dma.read(RAM, 1) is not None
            assert card.config.bus_master


def test_function_level_reset_by_the_guest(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path) as pc:
        control = card.config.offsets["pcie"] + 8
        pc.config_write(control, 2, 0x2810 | 1 << 15)
        assert card.resets == ["device", "flr"]
        assert pc.config_read(control, 2) == 0x2810
        assert pc.config_read(control + 2, 2) & 1 << 5 == 0
        assert not card.config.bus_master


def test_kill_and_the_next_qemu(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    for round_ in range(2):
        folder = tmp_path / str(round_)
        folder.mkdir()
        with running(qemu, card, folder) as pc:
            pc.write(0x10000, 8, 1)
            pc.flush()
            pc.q.process.send_signal(signal.SIGKILL)
            assert pc.q.wait() == -signal.SIGKILL
    assert card.resets == ["device", "lost_connection"] * 2


def test_the_server_hangs_up(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    """QEMU lives on with a dead device, and never comes back to it."""
    with running(qemu, card, tmp_path) as pc:
        card.bar.on_write = lambda offset, data: card.server.disconnect()
        pc.write(0x10000, 4, 1)
        card.wait_for_loss()
        assert pc.read(0x10000, 4) == ONES[4]
        assert pc.config_read(0, 4) == ONES[4] or pc.config_read(0, 2) == 0x15B3
        assert pc.q.qmp("query-status")["return"]["status"] in ("running", "prelaunch")
        card.reset_event.set()


# ---- hot-add ----


def test_hot_add(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path, hot=True) as pc:
        assert "return" in pc.q.qmp("device_add", **client_properties(tmp_path / "card.sock"))
        pc.set_up()
        pc.write(0x10000, 8, 0x1234)
        assert pc.read(0x10000, 8) == 0x1234
        pc.arm(3, RAM, 0x33)
        pc.enable_msix()
        card.server.irqs.raise_irq(3)
        wait_for(lambda: pc.q.read(RAM, 4) == 0x33)
    card.wait_for_loss()


def test_hot_add_without_a_server(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path, hot=True) as pc:
        assert "error" in pc.q.qmp("device_add", **client_properties(tmp_path / "nobody"))
        assert "return" in pc.q.qmp("device_add", **client_properties(tmp_path / "card.sock"))
    card.wait_for_loss()


# ---- errors on purpose ----


@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_at_cold_start_ends_qemu_cleanly(qemu: QemuProgram, card: Card, tmp_path: Path, failure: str) -> None:
    NotingSession.fail = FAILURES[failure]
    with pytest.raises(QemuEnded) as ended, running(qemu, card, tmp_path):
        pass
    assert ended.value.status == 1
    card.wait_for_loss()
    # and the server is there for the next one
    NotingSession.fail = nothing
    again = tmp_path / "again"
    again.mkdir()
    with running(qemu, card, again) as pc:
        assert pc.config_read(0, 4) == 0x101B15B3


@pytest.mark.parametrize("failure", ["VERSION", "GET_INFO", "GET_REGION_INFO"])
def test_an_error_at_hot_add_is_reported(qemu: QemuProgram, card: Card, tmp_path: Path, failure: str) -> None:
    NotingSession.fail = FAILURES[failure]
    with running(qemu, card, tmp_path, hot=True) as pc:
        assert "error" in pc.q.qmp("device_add", **client_properties(tmp_path / "card.sock"))
        card.wait_for_loss()
        NotingSession.fail = nothing
        assert "return" in pc.q.qmp("device_add", **client_properties(tmp_path / "card.sock"))
    card.wait_for_loss()


@pytest.mark.parametrize("failure", ["config read", "GET_IRQ_INFO of MSI-X"])
def test_an_error_late_at_hot_add_leaves_the_server_whole(
    qemu: QemuProgram, card: Card, tmp_path: Path, failure: str
) -> None:
    """QEMU 11.1.3 crashes here; one that reports the error instead is fine, too."""
    NotingSession.fail = FAILURES[failure]
    with running(qemu, card, tmp_path, hot=True) as pc:
        try:
            outcome = next(iter(pc.q.qmp("device_add", **client_properties(tmp_path / "card.sock"))))
        except QemuEnded as ended:
            outcome = signal.Signals(-ended.status).name
        assert outcome in ("SIGSEGV", "error")
    card.wait_for_loss()
    assert not card.server.connected


def test_errors_at_run_time(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    with running(qemu, card, tmp_path, properties={"x-no-posted-writes": True}) as pc:
        pc.write(0x10000, 4, 1)
        NotingSession.fail = lambda command, payload: command in (Command.REGION_READ, Command.REGION_WRITE)
        for size in (1, 2, 4, 8):
            assert pc.read(0x10000, size) == ONES[size]
        pc.write(0x10000, 4, 2)
        pcie = card.config.offsets["pcie"]
        assert pc.config_read(pcie + 8, 2) == ONES[2]
        NotingSession.fail = nothing
        assert pc.read(0x10000, 4) == 1
        assert pc.config_read(pcie + 8, 2) == 0x2810


def test_a_failing_handler(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    def fail(offset: int, count: int) -> None:
        raise RuntimeError("this register is broken")

    with running(qemu, card, tmp_path) as pc:
        card.bar.on_read = fail
        assert pc.read(0x10000, 4) == ONES[4]
        card.bar.on_read = lambda offset, count: None
        assert pc.read(0x10000, 4) == 0
        assert card.server.counters[ServerCount.DEVICE_ERROR] == 1


def test_errors_of_reset_and_dma_map_do_not_stop_the_machine(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    NotingSession.fail = lambda command, payload: command in (Command.DEVICE_RESET, Command.DMA_MAP)
    with running(qemu, card, tmp_path) as pc:
        pc.write(0x10000, 4, 1)
        assert pc.read(0x10000, 4) == 1
        with pytest.raises(DmaError):
            card.server.dma.read(RAM, 1)
        assert "return" in pc.q.qmp("system_reset")
        pc.config_read(0, 4)
    assert card.resets == ["lost_connection"]


def test_an_answer_that_comes_too_late(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    """QEMU gives up on the device; the server sees its end and is there for the next one."""
    with running(qemu, card, tmp_path, properties={"x-msg-timeout": 200}) as pc:
        answered = threading.Event()

        def wait(offset: int, count: int) -> None:
            answered.wait(10)

        card.bar.on_read = wait
        assert pc.read(0x10000, 4) == ONES[4]
        answered.set()
        assert pc.q.qmp("query-status")["return"]["running"] in (True, False)
        pc.q.process.kill()
        pc.q.wait()


# ---- DMA by message ----


def doorbell_copy(card: Card) -> list[str]:
    """Have a write to 0x10000 copy 64 KiB + 16 bytes of guest memory; return the errors."""
    errors: list[str] = []

    def on_write(offset: int, data: bytes) -> None:
        try:
            card.server.dma.write(2 * RAM, card.server.dma.read(RAM, 65552))
        except DmaError as error:
            errors.append(str(error))

    card.bar.on_write = on_write
    return errors


def test_anonymous_memory(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    data = bytes(i * 7 % 256 for i in range(65552))
    with running(qemu, card, tmp_path, ram="ram") as pc:
        assert not any(backed for *_, backed in card.server.dma.windows())
        errors = doorbell_copy(card)
        pc.q.write_bytes(RAM, data)
        pc.write(0x10000, 8, 1)
        pc.flush()
        # the read that flush() makes may come before the end of the copy: QEMU answers no DMA message
        # while it waits for a reply, so the server serves it during the copy
        wait_for(lambda: pc.q.read_bytes(2 * RAM, len(data)) == data)
        assert errors == []
        # without bus mastering QEMU refuses
        pc.config_write(4, 2, 2)
        pc.write(0x10000, 8, 1)
        wait_for(lambda: pc.read(0x10000, 4) == 1 and len(errors) == 1)
        assert os.strerror(errno.ENODEV) in errors[0]


def test_anonymous_memory_in_a_write_that_waits(qemu: QemuProgram, card: Card, tmp_path: Path) -> None:
    """QEMU could not answer; the card gets its error at once and the machine goes on."""
    with running(qemu, card, tmp_path, ram="ram", properties={"x-no-posted-writes": True}) as pc:
        errors = doorbell_copy(card)
        pc.write(0x10000, 8, 1)
        assert len(errors) == 1
        assert "waits for a reply" in errors[0]
        assert pc.read(0x10000, 8) == 1


# ---- BARs that the guest maps ----


def test_a_mapped_bar(qemu: QemuProgram, tmp_path: Path) -> None:
    with served(tmp_path / "card.sock", bar2=Bar(64 << 10)) as card:
        fd = memfd(64 << 10)
        card.function.regions[2] = Region(64 << 10, mmap_fd=fd, mmap_areas=((0x1000, 0x1000), (0x8000, 0x2000)))
        with running(qemu, card, tmp_path) as pc:
            bar2 = card.bars[2]
            pc.q.write(BAR2 + 0x1000, 8, 0x1122334455667788)
            pc.q.write(BAR2 + 0x9FF8, 8, 0x99)
            assert bar2.writes == []
            assert os.pread(fd, 8, 0x1000) == (0x1122334455667788).to_bytes(8, "little")
            assert os.pread(fd, 1, 0x9FF8) == b"\x99"
            os.pwrite(fd, b"\x55", 0x8000)
            assert pc.q.read(BAR2 + 0x8000, 1) == 0x55
            # the rest of the BAR still comes as messages
            pc.q.write(BAR2, 4, 7)
            pc.q.write(BAR2 + 0x2000, 4, 8)
            assert [offset for offset, _ in bar2.writes] == [0, 0x2000]
            # the areas are announced for peer-to-peer DMA, without a descriptor
            assert (BAR2 + 0x1000, 0x1000, True, False) in card.server.dma.windows()
        os.close(fd)


@pytest.mark.parametrize("mapped", [False, True])
def test_one_mapped_page_makes_all_writes_of_a_device_wait(qemu: QemuProgram, tmp_path: Path, mapped: bool) -> None:
    """Why no page of the card is mapped: a write that QEMU does not wait for never comes to `handle`."""
    with served(tmp_path / "card.sock", bar2=Bar(64 << 10)) as card:
        fd = memfd(64 << 10)
        if mapped:
            card.function.regions[2] = Region(64 << 10, mmap_fd=fd, mmap_areas=((0x1000, 0x1000),))
        with running(qemu, card, tmp_path) as pc:
            for value in range(5):
                pc.write(0x10000, 8, value)
            pc.flush()
            assert [data[0] for _, data in card.bar.writes] == [0, 1, 2, 3, 4]
            waited_for = [
                payload
                for command, _, payload, _ in NotingSession.messages
                if command == Command.REGION_WRITE and proto.parse_region_write(payload).region == 0
            ]
            assert len(waited_for) == (5 if mapped else 0)
        os.close(fd)


# ---- the example ----


def test_the_example_device(qemu: QemuProgram, tmp_path: Path) -> None:
    path = tmp_path / "example.sock"
    server = subprocess.Popen(
        [sys.executable, "-m", "vhca.vfio_user.example", "--socket", str(path)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert "listening" in server.stderr.readline()
        with Qtest(qemu, tmp_path, [*machine(), *client(path)]) as q:
            q.config_write(0, 4, 0x18, 4, 0x00010100)
            q.config_write(0, 4, 0x20, 4, 0xE000E000)
            q.config_write(0, 4, 0x04, 2, 7)
            q.config_write(1, 0, 0x10, 4, 0xE0000000)
            q.config_write(1, 0, 0x04, 2, 6)
            bar = 0xE0000000
            assert q.read_bytes(bar, 8) == b"VHCA-EX1"
            q.write(bar + 0x10, 8, 0xCAFE)
            assert q.read(bar + 0x10, 8) == 0xCAFE
            q.write_bytes(RAM, b"copy me")
            # vector 1 stores its data in guest memory
            for offset, value in ((0, RAM + 0x100), (4, 0), (8, 0x77), (12, 0)):
                q.write(bar + 0x2000 + 16 + offset, 4, value)
            q.config_write(1, 0, 0x42, 2, 0x8000)
            for offset, size, value in ((0x80, 8, RAM), (0x88, 8, 2 * RAM), (0x90, 4, 7), (0x94, 4, 1)):
                q.write(bar + offset, size, value)
            assert q.read(bar + 0x98, 4) == 1
            assert q.read_bytes(2 * RAM, 7) == b"copy me"
            wait_for(lambda: q.read(RAM + 0x100, 4) == 0x77)
            q.qmp("quit")
            assert q.wait() == 0
    finally:
        server.terminate()
        server.communicate(timeout=10)
        assert server.returncode == 0
    assert not path.exists()
