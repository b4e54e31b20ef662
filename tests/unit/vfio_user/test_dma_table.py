"""The DMA table against a model: any maps, unmaps and accesses."""

import fcntl
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.content import some_bytes
from tests.wire.client import QEMU_SEALS, memfd
from vhca.hw.memory import DmaError
from vhca.vfio_user.dma import DmaTable

PAGE = 4096
PAGES = 16


class ByteChannel:
    """Guest memory that is reached by message."""

    def __init__(self) -> None:
        self.memory = bytearray(PAGES * PAGE)

    def dma_read(self, address: int, size: int) -> bytes:
        return bytes(self.memory[address : address + size])

    def dma_write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.memory[address : address + len(data)] = data


operations = st.lists(
    st.one_of(
        st.tuples(st.just("map"), st.integers(0, PAGES - 1), st.integers(1, 6), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("unmap"), st.integers(0, PAGES - 1), st.integers(1, 6)),
        st.tuples(st.just("write"), st.integers(0, PAGES * PAGE), st.integers(0, 2 * PAGE)),
        st.tuples(st.just("read"), st.integers(0, PAGES * PAGE), st.integers(0, 2 * PAGE)),
    ),
    max_size=40,
)


@given(operations=operations, seals=st.sampled_from([0, QEMU_SEALS]))
@settings(max_examples=150)
def test_any_operations_agree_with_a_model(operations: list[tuple[object, ...]], seals: int) -> None:
    """Guest address = file offset, so one flat model serves files and messages, page by page."""
    table, channel = DmaTable(), ByteChannel()
    table.channel = channel
    fd = memfd(PAGES * PAGE, seals=seals)
    flags_of: dict[int, int] = {}
    maps: dict[int, int] = {}
    stored = {True: bytearray(PAGES * PAGE), False: channel.memory}
    backed: dict[int, bool] = {}
    for kind, *arguments in operations:
        if kind == "map":
            page, count, flags, with_file = arguments
            assert isinstance(page, int)
            assert isinstance(count, int)
            assert isinstance(flags, int)
            pages = range(page, min(page + count, PAGES))
            free = not any(p in flags_of for p in pages)
            try:
                table.map(page * PAGE, len(pages) * PAGE, page * PAGE, flags, fd if with_file else None)
                assert free
            except FileExistsError:
                assert not free
                continue
            maps[page] = len(pages)
            for p in pages:
                flags_of[p], backed[p] = flags, bool(with_file)
        elif kind == "unmap":
            page, count = arguments
            assert isinstance(page, int)
            assert isinstance(count, int)
            inside = [p for p in maps if page <= p and p + maps[p] <= page + count]
            cut = any(p not in inside and p < page + count and p + maps[p] > page for p in maps)
            if cut:
                with pytest.raises(OSError, match="cuts a mapping in two"):
                    table.unmap(page * PAGE, count * PAGE)
                continue
            table.unmap(page * PAGE, count * PAGE)
            for start in inside:
                for p in range(start, start + maps.pop(start)):
                    del flags_of[p]
        else:
            address, size = arguments
            assert isinstance(address, int)
            assert isinstance(size, int)
            need = 1 if kind == "read" else 2
            touched = range(address // PAGE, (address + size + PAGE - 1) // PAGE) if size else range(0)
            allowed = all(flags_of.get(p, 0) & need for p in touched)
            data = some_bytes(size)
            try:
                if kind == "write":
                    table.write(address, data)
                    for at, byte in enumerate(data, address):
                        stored[backed[at // PAGE]][at] = byte
                else:
                    expected = bytes(
                        stored[backed[at // PAGE]][at] if allowed else 0 for at in range(address, address + size)
                    )
                    assert table.read(address, size) == expected
                assert allowed
            except DmaError:
                assert not allowed
    assert len(table) == len(maps)
    table.unmap_all()
    os.close(fd)


@pytest.fixture
def table() -> DmaTable:
    return DmaTable()


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK])
def test_a_file_that_grows(table: DmaTable, seals: int) -> None:
    fd = memfd(PAGE, seals=seals)
    table.map(0, PAGE, 0, 3, fd)
    table.write(0, b"old")
    os.ftruncate(fd, 4 * PAGE)
    table.map(PAGE, 3 * PAGE, PAGE, 3, fd)
    table.write(PAGE - 2, b"across")
    assert os.pread(fd, 6, PAGE - 2) == b"across"
    assert table.read(0, 3) == b"old"
    # the same file for reading only is another mapping
    table.map(8 * PAGE, PAGE, 0, 1, fd)
    assert table.read(8 * PAGE, 3) == b"old"
    with pytest.raises(DmaError, match="read-only"):
        table.write(8 * PAGE, b"x")
    os.close(fd)
    assert table.read(0, 3) == b"old"
    table.unmap_all()


def test_views(table: DmaTable) -> None:
    fd = memfd(2 * PAGE)
    table.map(0, PAGE, PAGE, 3, fd)
    table.map(PAGE, PAGE, 0, 1, fd)
    view = table.view(16, 4, writable=True)
    assert view is not None
    view[:] = b"view"
    view.release()
    assert os.pread(fd, 4, PAGE + 16) == b"view"
    readonly = table.view(16, 4)
    assert readonly is not None
    assert readonly.readonly
    assert bytes(readonly) == b"view"
    readonly.release()
    for place in ((PAGE - 2, 4), (PAGE, 4), (2 * PAGE, 1), (0, 0), (0, -1), (-1, 1)):
        assert table.view(*place, writable=True) is None
    assert table.view(PAGE - 2, 4) is None
    table.unmap_all()
    assert table.pinned == 0
    os.close(fd)


@pytest.mark.parametrize(("address", "size"), [(-1, 1), (0, -1), (1 << 64, 1), ((1 << 64) - 1, 2), (0, PAGE + 1)])
def test_ranges_that_are_none(table: DmaTable, address: int, size: int) -> None:
    table.map(0, PAGE, 0, 3, None)
    table.channel = ByteChannel()
    with pytest.raises(DmaError):
        table.read(address, size)
    assert not table.contains(address, size)


def test_write_only_and_no_access(table: DmaTable) -> None:
    table.map(0, PAGE, 0, 2, None)
    table.map(PAGE, PAGE, 0, 0, None)
    table.channel = channel = ByteChannel()
    table.write(0, b"in")
    assert channel.memory[:2] == b"in"
    with pytest.raises(DmaError, match="without read"):
        table.read(0, 2)
    for access in (lambda: table.read(PAGE, 1), lambda: table.write(PAGE, b"x")):
        with pytest.raises(DmaError):
            access()
    assert table.contains(0, 2 * PAGE)
    # a write that would end in a forbidden window stores nothing
    with pytest.raises(DmaError):
        table.write(PAGE - 1, b"ab")
    assert channel.memory[PAGE - 1] == 0


def test_without_a_client_there_are_no_messages(table: DmaTable) -> None:
    table.map(0, PAGE, 0, 3, None)
    with pytest.raises(DmaError, match="no client"):
        table.read(0, 1)
    with pytest.raises(DmaError, match="no client"):
        table.write(0, b"x")


def test_bytes_like_data(table: DmaTable) -> None:
    fd = memfd(PAGE)
    table.map(0, PAGE, 0, 3, fd)
    for data in (b"abc", bytearray(b"def"), memoryview(b"xghix")[1:4]):
        table.write(0, data)
        assert table.read(0, 3) == bytes(data)
    table.write(0, b"")
    assert table.read(0, 0) == b""
    table.unmap_all()
    os.close(fd)
