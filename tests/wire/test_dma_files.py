"""Files that a client gives as memory, and that cannot be trusted."""

import errno
import fcntl
import mmap
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.wire.client import Client, closing, memfd
from tests.wire.conftest import Rig, open_fds
from tests.wire.guest_memory import PAGE, READ, Guest, map_payload, refused
from vhca.hw.memory import DmaError
from vhca.vfio_user.files import CLOSE_AT_ONCE_BYTES, MAX_FILES, FileTable
from vhca.vfio_user.proto import Command


def how(rig: Rig) -> dict[str, int]:
    """How many maps of each kind there were."""
    return {name[8:]: count for name, count in rig.server.counters.items() if name.startswith("dma_map_")}


def test_sealed_memory_is_mapped(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE), memfd(PAGE, seals=fcntl.F_SEAL_SHRINK)) as fds:
        for i, fd in enumerate(fds):
            client.dma_map(i * PAGE, PAGE, fd=fd)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
    assert how(rig) == {"mapped": 2}


def shared_file(kind: str, size: int) -> int:
    if kind == "memfd":
        return memfd(size, seals=0)
    path = Path("/dev/shm") / f"vhca-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    path.unlink()
    os.ftruncate(fd, size)
    return fd


@pytest.mark.parametrize("kind", ["memfd", "tmpfs"])
def test_memory_that_may_shrink_is_copied(rig: Rig, client: Client, kind: str) -> None:
    """A store to the missing page would end the process by SIGBUS."""
    before = open_fds()
    with closing(shared_file(kind, 3 * PAGE)) as (fd,):
        client.dma_map(0, 3 * PAGE, fd=fd)
        client.dma_map(0x10000, PAGE, flags=READ, fd=fd)
        rig.server.dma.write(PAGE - 3, b"across")
        assert os.pread(fd, 6, PAGE - 3) == b"across"
        assert rig.server.dma.read(PAGE - 3, 6) == b"across"
        assert rig.server.dma.read(0x10000 + PAGE - 3, 3) == b"acr"
        assert rig.server.dma.view(0, 4) is None
        os.ftruncate(fd, PAGE)
        for address, size in ((PAGE, 4), (PAGE - 2, 4), (2 * PAGE, PAGE)):
            with pytest.raises(DmaError):
                rig.server.dma.read(address, size)
            with pytest.raises(DmaError):
                rig.server.dma.write(address, bytes(size))
        assert os.fstat(fd).st_size == PAGE
        os.ftruncate(fd, 3 * PAGE)
        rig.server.dma.write(PAGE, b"again")
        assert rig.server.dma.read(PAGE, 5) == b"again"
    assert how(rig) == {"copied": 2}
    client.dma_unmap(0, 0, flags=2)
    assert open_fds() == before


def test_a_hole_in_a_full_file_system_is_an_error(rig: Rig, client: Client, tmp_path: Path) -> None:
    """No file was shortened: somebody else has filled the file system of the guest's memory."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        with (tmp_path / "ram").open("w+b") as ram, (tmp_path / "filler").open("wb", buffering=0) as filler:
            os.ftruncate(ram.fileno(), 32 * PAGE)
            client.dma_map(0, 32 * PAGE, fd=ram.fileno())
            rig.server.dma.write(0, b"there is room")
            assert filler.write(bytes(1 << 20)) < 64 << 10
            with pytest.raises(DmaError):
                rig.server.dma.write(8 * PAGE, b"there is none")
            assert rig.server.dma.read(0, 13) == b"there is room"
            assert rig.server.dma.read(8 * PAGE, 4) == bytes(4)
        client.dma_unmap(0, 0, flags=2)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_writer_that_holds_the_file_does_not_hold_the_device(rig: Rig, client: Client) -> None:
    """What a client does to its file may take long and keeps other writes to the file waiting."""
    size = 256 << 20

    def longest_write_and_allocation() -> tuple[float, float]:
        with closing(memfd(size, seals=0)) as (fd,):
            client.dma_map(0, size, fd=fd)
            longest, begin = 0.0, time.monotonic()
            allocating = threading.Thread(target=os.posix_fallocate, args=(fd, PAGE, size - PAGE))
            allocating.start()
            while allocating.is_alive():
                now = time.monotonic()
                rig.server.dma.write(0, b"1234")
                longest = max(longest, time.monotonic() - now)
            took = time.monotonic() - begin
            client.dma_unmap(0, size)
            return longest, took

    # With a lock each write takes as long as the allocation; without, only an unlucky one on a busy host.
    assert any(longest < took / 2 for longest, took in (longest_write_and_allocation() for _ in range(5)))


def test_files_on_a_disk_are_not_touched(rig: Rig, client: Client) -> None:
    """They may be in FUSE or on the network, where an access can take for ever."""
    before = open_fds()
    with tempfile.TemporaryFile(dir=Path(__file__).parent) as file:
        file.truncate(PAGE)
        client.dma_map(0, PAGE, fd=file.fileno())
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(PAGE, 2 * PAGE), [file.fileno()])
    assert how(rig) == {"message": 1}
    assert open_fds() == before
    guest = Guest(client)
    guest.answer_read(0, b"asked")
    assert rig.server.dma.read(0, 5) == b"asked"


def test_slow_memory_is_complained_of_once(rig: Rig, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with closing(memfd(2 * PAGE, seals=0)) as (fd,):
        client.dma_map(0, PAGE, fd=fd)
        client.dma_map(PAGE, PAGE, fd=fd)
    assert caplog.text.count("not a sealed memfd") == 1


def test_a_client_shares_64_files_at_most(rig: Rig, client: Client) -> None:
    before = open_fds()
    for i in range(MAX_FILES):
        with closing(memfd(PAGE)) as (fd,):
            client.dma_map(i * PAGE, PAGE, fd=fd)
    assert open_fds() == before + MAX_FILES
    with closing(memfd(PAGE)) as (fd,):
        refused(client, errno.ENOSPC, Command.DMA_MAP, map_payload(1 << 32, PAGE), [fd])
        client.dma_unmap(0, PAGE)
        client.dma_map(1 << 32, PAGE, fd=fd)
    client.close()
    rig.step()
    # both ends of the socket have gone, too
    assert open_fds() == before - 2


def test_a_large_file_is_closed_beside_the_loop(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes it last gives back its memory, which takes 0.1 s per GiB."""
    before = open_fds()
    threads: list[str] = []
    unmap = FileTable._unmap

    def watched(self: FileTable, mappings: list[mmap.mmap]) -> None:
        threads.append(threading.current_thread().name)
        unmap(self, mappings)

    monkeypatch.setattr(FileTable, "_unmap", watched)
    for size in (CLOSE_AT_ONCE_BYTES, 2 * CLOSE_AT_ONCE_BYTES):
        with closing(memfd(size)) as (fd,):
            client.dma_map(0, size, fd=fd)
        client.dma_unmap(0, size)
    begin = time.monotonic()
    while open_fds() > before and time.monotonic() - begin < 10:
        time.sleep(0.01)
    assert threads == ["MainThread", "vhca-unmap"]
    assert open_fds() == before


@pytest.mark.parametrize("end", ["unmap", "close"])
def test_many_files_are_closed_beside_the_loop_together(
    end: str, rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 files that are each too small for that may be as much as a machine has."""
    closed: list[tuple[str, int]] = []
    unmap = FileTable._unmap

    def watched(self: FileTable, mappings: list[mmap.mmap]) -> None:
        closed.append((threading.current_thread().name, len(mappings)))
        unmap(self, mappings)

    monkeypatch.setattr(FileTable, "_unmap", watched)
    for number in range(4):
        with closing(memfd(CLOSE_AT_ONCE_BYTES)) as (fd,):
            client.dma_map(number * CLOSE_AT_ONCE_BYTES, CLOSE_AT_ONCE_BYTES, fd=fd)
    if end == "unmap":
        client.dma_unmap(0, 4 * CLOSE_AT_ONCE_BYTES)
    else:
        client.close()
        rig.step()
    begin = time.monotonic()
    while not closed and time.monotonic() - begin < 10:
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.name == "vhca-unmap":
            thread.join(10)
    assert closed == [("vhca-unmap", 4)]
