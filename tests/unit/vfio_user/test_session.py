"""The session without any I/O: descriptors are numbers, nothing is opened or closed for real."""

import errno
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.vfio_user import proto
from vhca.vfio_user.counters import Access, ServerCount
from vhca.vfio_user.irqs import IrqTable
from vhca.vfio_user.proto import Command
from vhca.vfio_user.session import Session


class Region:
    readable = writable = True
    mmap_fd = -1
    mmap_offset = 0
    mmap_areas: tuple[tuple[int, int], ...] = ()

    def __init__(self, size: int) -> None:
        self.size = size


class Device:
    regions = [Region(64)] * 8
    irq_counts = (0, 0, 4, 1, 1)

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        return bytes(count)

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        pass

    def reset(self, reason: str) -> None:
        pass


class Maps:
    def map(self, address: int, size: int, offset: int, flags: int, fd: int | None) -> Access:
        if address == 0xBAD000:
            raise OSError(errno.EEXIST, "overlap")
        return "mapped"

    def unmap(self, address: int, size: int) -> None:
        raise OSError(errno.ENOENT, "no such mapping")

    def unmap_all(self) -> None:
        pass


class Rig:
    def __init__(self) -> None:
        self.closed: list[int] = []
        self.signalled: list[int] = []
        self.irqs = IrqTable(Device.irq_counts, self.signalled.append, self.closed.append)
        self.counters: Counter[ServerCount] = Counter()
        self.session = Session(
            Device(),
            Maps(),
            self.irqs,
            close_fd=self.closed.append,
            check_eventfd=lambda fd: fd < 1000,
            log=lambda text, error: None,
            counters=self.counters,
        )
        self.session.handle(0, Command.VERSION, 0, proto.pack_version(0, None))

    def code(self, command: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> int:
        out = self.session.handle(1, command, 0, payload, fds)
        assert out is not None
        return int(proto.HEADER.unpack_from(out.data)[4])


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_errnos_of_the_dma_table_reach_the_client(rig: Rig) -> None:
    assert rig.code(Command.DMA_MAP, proto.DMA_MAP.pack(32, 3, 0, 0xBAD000, 4096), (7,)) == errno.EEXIST
    assert rig.code(Command.DMA_UNMAP, proto.DMA_UNMAP.pack(24, 0, 0x1000, 4096)) == errno.ENOENT
    assert rig.closed == [7]


def test_who_closes_what(rig: Rig) -> None:
    assert rig.code(Command.DMA_MAP, proto.DMA_MAP.pack(32, 3, 0, 0, 4096), (7,)) == 0
    assert rig.closed == [7]
    assert rig.code(Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x24, 2, 0, 2), (8, 9)) == 0
    assert rig.closed == [7]
    assert rig.code(Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x24, 2, 1, 1), (10,)) == 0
    assert rig.closed == [7, 9]
    assert rig.code(Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x24, 2, 0, 2), (11, 1000)) == errno.EINVAL
    assert rig.closed == [7, 9, 11, 1000]
    rig.irqs.raise_irq(1)
    assert rig.signalled == [10]
    rig.irqs.close()
    assert sorted(rig.closed) == [7, 8, 9, 10, 11, 1000]


def test_clearing_what_waits(rig: Rig) -> None:
    rig.irqs.raise_irq(3)
    rig.irqs.raise_irq(3)
    assert (rig.irqs.raised, rig.irqs.latched, rig.irqs.signalled) == (2, 1, 0)
    rig.irqs.clear_pending()
    assert rig.code(Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x24, 2, 3, 1), (5,)) == 0
    assert rig.signalled == []


@given(
    command=st.integers(0, 20),
    flags=st.sampled_from([0, 0x10]),
    payload=st.binary(max_size=80),
    fds=st.lists(st.integers(3, 1100), max_size=4, unique=True),
)
def test_any_command_is_answered_and_its_descriptors_have_one_owner(
    command: int, flags: int, payload: bytes, fds: list[int]
) -> None:
    rig = Rig()
    out = rig.session.handle(9, command, flags, payload, fds)
    assert (out is None) == bool(flags)
    if out is not None:
        message_id, answered, size, kind, code = proto.HEADER.unpack_from(out.data)
        assert (message_id, answered, size) == (9, command, len(out.data))
        assert kind == (proto.FLAGS_REPLY | proto.FLAGS_ERROR if code else proto.FLAGS_REPLY)
    rig.irqs.close()
    assert sorted(rig.closed) == sorted(fds)


def test_the_engine_touches_no_operating_system() -> None:
    package = Path(proto.__file__).parent
    forbidden = ["socket", "select", "selectors", "asyncio", "threading", "mmap"]
    code = (
        "import sys; before = set(sys.modules); import importlib.util\n"
        "import types; package = types.ModuleType('vhca.vfio_user'); package.__path__ = [sys.argv[1]]\n"
        "import vhca; sys.modules['vhca.vfio_user'] = package\n"
        "import vhca.vfio_user.session\n"
        f"print(sorted(set({forbidden}) & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(package)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
