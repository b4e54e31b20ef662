"""DMA_MAP, DMA_UNMAP, and DMA by message where there is no file."""

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

from tests.support.content import some_bytes
from tests.wire.client import ANSWER_TIMEOUT_S, Client, Message, RemoteError, closing, memfd
from tests.wire.conftest import Rig, open_fds
from vhca.hw.memory import DmaError
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.files import CLOSE_AT_ONCE_BYTES, MAX_FILES, FileTable
from vhca.vfio_user.proto import Command

PAGE = 4096
READ, WRITE = 1, 2


def refused(client: Client, code: int, command: int, payload: bytes, fds: list[int] | None = None) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command, payload, fds=fds or [])
    assert caught.value.errno == code


def map_payload(address: int, size: int, offset: int = 0, flags: int = 3, argsz: int = 32) -> bytes:
    return proto.DMA_MAP.pack(argsz, flags, offset, address, size)


def unmap_payload(address: int, size: int, flags: int = 0, argsz: int = 24) -> bytes:
    return proto.DMA_UNMAP.pack(argsz, flags, address, size)


def test_guest_memory_is_shared(rig: Rig, client: Client) -> None:
    with closing(memfd(4 * PAGE)) as (fd,):
        client.dma_map(0x10_0000, 2 * PAGE, offset=PAGE, fd=fd)
        assert rig.device.dma_changes == 1
        rig.server.dma.write(0x10_0000 + PAGE - 2, b"over the page")
        assert os.pread(fd, 13, 2 * PAGE - 2) == b"over the page"
        os.pwrite(fd, b"guest", PAGE)
        assert rig.server.dma.read(0x10_0000, 5) == b"guest"
        client.dma_unmap(0x10_0000, 2 * PAGE)
        assert rig.device.dma_changes == 2
        with pytest.raises(DmaError):
            rig.server.dma.read(0x10_0000, 1)


BAD_MAPS = {
    "argsz": map_payload(0, PAGE, argsz=31),
    "unknown flag": map_payload(0, PAGE, flags=7),
    "size 0": map_payload(0, 0),
    "wraps around": map_payload((1 << 64) - PAGE, 2 * PAGE),
    "offset wraps around": map_payload(0, 2 * PAGE, offset=(1 << 64) - PAGE),
    "size not of pages": map_payload(0, PAGE + 1),
    "address not of pages": map_payload(1, PAGE),
    "offset not of pages": map_payload(0, PAGE, offset=512),
    "short": map_payload(0, PAGE)[:-1],
    "long": map_payload(0, PAGE) + b"\0",
}


@pytest.mark.parametrize("payload", BAD_MAPS.values(), ids=BAD_MAPS.keys())
def test_bad_maps(rig: Rig, client: Client, payload: bytes) -> None:
    before = open_fds()
    with closing(memfd(PAGE)) as (fd,):
        refused(client, errno.EINVAL, Command.DMA_MAP, payload)
        refused(client, errno.EINVAL, Command.DMA_MAP, payload, [fd])
    assert open_fds() == before
    assert rig.server.dma.windows() == []


def test_the_top_of_the_address_space(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        top = (1 << 64) - PAGE
        client.dma_map(top, PAGE, fd=fd)
        rig.server.dma.write(top + PAGE - 1, b"x")
        for size in (2, 1 << 64):
            with pytest.raises(DmaError):
                rig.server.dma.read(top + PAGE - 1, size)


def test_bad_files(rig: Rig, client: Client) -> None:
    before = open_fds()
    pipe = os.pipe()
    readonly = os.open(f"/proc/self/fd/{rig.file}", os.O_RDONLY)
    with closing(memfd(2 * PAGE), memfd(PAGE + 1), *pipe, readonly, os.open("/dev/zero", os.O_RDWR)) as fds:
        two_pages, ragged, *others = fds
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, 3 * PAGE), [two_pages])
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, PAGE, offset=2 * PAGE), [two_pages])
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, 2 * PAGE), [ragged])
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, PAGE), [two_pages, two_pages])
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, PAGE), [pipe[0]])
        refused(client, errno.EINVAL, Command.DMA_MAP, map_payload(0, PAGE), [others[-1]])
        refused(client, errno.EACCES, Command.DMA_MAP, map_payload(0, PAGE), [readonly])
        client.dma_map(0, PAGE, flags=READ, fd=readonly)
        assert rig.server.dma.read(0, 4) == bytes(4)
        client.dma_unmap(0, PAGE)
        client.dma_map(0, PAGE, fd=ragged)
        client.dma_unmap(0, PAGE)
    assert open_fds() == before


@pytest.mark.parametrize(
    ("address", "size"),
    [(0x2000, 0x2000), (0x2000, 0x1000), (0x3000, 0x1000), (0x1000, 0x2000), (0x3000, 0x2000), (0, 0x10000)],
)
def test_overlap(rig: Rig, client: Client, address: int, size: int) -> None:
    client.dma_map(0x2000, 0x2000)
    refused(client, errno.EEXIST, Command.DMA_MAP, map_payload(address, size))
    client.dma_map(0x1000, 0x1000)
    client.dma_map(0x4000, 0x1000)
    assert len(rig.server.dma) == 3


def test_too_big_and_too_many(rig: Rig, client: Client) -> None:
    refused(client, errno.ENOSPC, Command.DMA_MAP, map_payload(0, (8 << 40) + PAGE))
    for i in range(65535):
        rig.server.dma.map(2 * i * PAGE, PAGE, 0, 3, None)
    refused(client, errno.ENOSPC, Command.DMA_MAP, map_payload(1 << 40, PAGE))
    client.dma_unmap(2 * PAGE, PAGE)
    client.dma_map(1 << 40, PAGE)
    client.dma_unmap(0, 0, flags=2)
    assert len(rig.server.dma) == 0


def test_an_unmap_takes_whole_windows_and_cuts_none(rig: Rig, client: Client) -> None:
    client.dma_map(0x2000, 0x2000)
    client.dma_map(0x5000, 0x1000)
    for address, size in ((0x2000, 0x1000), (0x3000, 0x1000), (0x1000, 0x2000), (0x3000, 0x8000), (0x2001, 1)):
        refused(client, errno.EINVAL, Command.DMA_UNMAP, unmap_payload(address, size))
    assert len(rig.server.dma) == 2
    # nothing there: nothing to do
    client.dma_unmap(0x8000, 0x1000)
    client.dma_unmap(0x4000, 0x1000)
    assert len(rig.server.dma) == 2
    client.dma_unmap(0, 1 << 32)
    assert len(rig.server.dma) == 0


def test_bad_unmaps(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    for payload in (
        unmap_payload(0, PAGE)[:-1],
        unmap_payload(0, PAGE) + b"\0",
        unmap_payload(0, PAGE, argsz=23),
        unmap_payload(0, PAGE, flags=1),
        unmap_payload(0, PAGE, flags=4),
        unmap_payload(0, PAGE, flags=2),
        unmap_payload(PAGE, 0, flags=2),
        unmap_payload(0, 0),
    ):
        refused(client, errno.EINVAL, Command.DMA_UNMAP, payload)
    assert len(rig.server.dma) == 1
    client.dma_unmap(0, 0, flags=2)
    client.dma_unmap(0, 0, flags=2)
    assert len(rig.server.dma) == 0


def test_the_maps_of_a_pc_boot(rig: Rig, client: Client) -> None:
    """One file, mapped as two pieces, cut up for the legacy windows and put together again, often."""
    gap = 0xA0000
    with closing(memfd(1 << 24)) as (ram,):
        before = open_fds()
        for _ in range(20):
            client.dma_map(0, 1 << 23, fd=ram)
            client.dma_map(1 << 32, 1 << 23, offset=1 << 23, fd=ram)
            client.dma_unmap(0, 1 << 23)
            client.dma_map(0, gap, fd=ram)
            client.dma_map(0xC0000, 0x40000, flags=READ)
            client.dma_map(0x100000, (1 << 23) - 0x100000, offset=0x100000, fd=ram)
            # one mapped file, however many windows
            assert open_fds() == before + 1
            rig.server.dma.write(0x100000, b"ram")
            assert os.pread(ram, 3, 0x100000) == b"ram"
            client.dma_unmap(0, 0, flags=2)
        assert open_fds() == before


def test_a_kept_view_does_not_stop_an_unmap(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        client.dma_map(0, PAGE, fd=fd)
        view = rig.server.dma.view(0, 8, writable=True)
        assert view is not None
        client.dma_unmap(0, PAGE)
        assert rig.server.dma.pinned == 1
        view[0] = 1
        view.release()


# ---- files that cannot be trusted ----


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


# ---- by message ----


class Guest:
    """Guest memory behind a client that answers DMA messages whenever the server waits.

    The server waits in poll(); the answers are put into the socket beforehand, in the right order, since
    ids of the server's requests start at 0.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.next_id = 0

    def answer(self, command: int, payload: bytes = b"", *, code: int | None = None) -> None:
        message_id, self.next_id = self.next_id, self.next_id + 1
        if code is not None:
            self.client.post_raw(proto.error_reply(message_id, command, code))
        else:
            self.client.post_raw(proto.reply(message_id, command, payload))

    def answer_read(self, address: int, data: bytes) -> None:
        self.answer(Command.DMA_READ, proto.DMA_ACCESS.pack(address, len(data)) + data)

    def answer_write(self, address: int, size: int) -> None:
        self.answer(Command.DMA_WRITE, proto.DMA_ACCESS.pack(address, size))


def test_read_and_write_by_message(rig: Rig, client: Client) -> None:
    client.dma_map(0, 1 << 30)
    guest = Guest(client)
    guest.answer_read(0x1234, b"from the guest")
    assert rig.server.dma.read(0x1234, 14) == b"from the guest"
    request = client.receive()
    assert (request.command, request.flags) == (Command.DMA_READ, 0)
    assert request.payload == proto.DMA_ACCESS.pack(0x1234, 14)
    guest.answer_write(0x4321, 12)
    rig.server.dma.write(0x4321, b"to the guest")
    request = client.receive()
    assert request.command == Command.DMA_WRITE
    assert request.payload == proto.DMA_ACCESS.pack(0x4321, 12) + b"to the guest"


class Answering:
    """A client that answers DMA messages out of `memory` in a thread of its own, and keeps them."""

    def __init__(self, client: Client, memory: bytearray, count: int) -> None:
        self.messages: list[Message] = []
        self._thread = threading.Thread(
            target=lambda: self.messages.extend(client.serve_dma(memory) for _ in range(count))
        )

    def __enter__(self) -> list[Message]:
        self._thread.start()
        return self.messages

    def __exit__(self, *error: object) -> None:
        self._thread.join(ANSWER_TIMEOUT_S * 2)


def test_large_accesses_come_in_pieces_of_64_kib(rig: Rig, client: Client) -> None:
    client.dma_map(0, 1 << 30)
    memory = bytearray(some_bytes(100_000))
    with Answering(client, memory, 2) as messages:
        assert rig.server.dma.read(1000, 65546) == memory[1000:66546]
    assert [message.payload for message in messages] == [
        proto.DMA_ACCESS.pack(1000, 65536),
        proto.DMA_ACCESS.pack(66536, 10),
    ]
    data = some_bytes(65546)
    with Answering(client, memory, 2) as messages:
        rig.server.dma.write(2000, data)
    assert memory[2000:67546] == data
    assert [len(message.payload) - 16 for message in messages] == [65536, 10]


def test_pieces_obey_the_client(rig: Rig) -> None:
    client = rig.connect()
    client.negotiate(capabilities={"max_data_xfer_size": 8})
    client.dma_map(0, PAGE)
    memory = bytearray(PAGE)
    with Answering(client, memory, 3) as messages:
        rig.server.dma.write(0, b"twenty bytes of data")
    assert memory[:20] == b"twenty bytes of data"
    assert [len(message.payload) - 16 for message in messages] == [8, 8, 4]


def test_an_access_across_a_file_and_messages(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        client.dma_map(0, PAGE, fd=fd)
        client.dma_map(PAGE, PAGE)
        guest = Guest(client)
        guest.answer_write(PAGE, 2)
        rig.server.dma.write(PAGE - 2, b"abcd")
        assert os.pread(fd, 2, PAGE - 2) == b"ab"
        guest.answer_read(PAGE, b"CD")
        assert rig.server.dma.read(PAGE - 2, 4) == b"abCD"
        assert rig.server.dma.view(PAGE - 2, 4) is None
        assert rig.server.dma.view(PAGE, 4) is None


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (errno.ENODEV, errno.ENODEV),
        (errno.E2BIG, errno.E2BIG),
        (errno.ENOSYS, errno.ENOSYS),
        (0xFFFFFFFF, errno.EIO),
        (0, errno.EIO),
    ],
)
def test_the_client_refuses(rig: Rig, client: Client, code: int, meaning: int) -> None:
    client.dma_map(0, PAGE)
    guest = Guest(client)
    guest.answer(Command.DMA_READ, code=code)
    with pytest.raises(DmaError, match=os.strerror(meaning)):
        rig.server.dma.read(0, 4)
    guest.answer_read(0, b"1234")
    assert rig.server.dma.read(0, 4) == b"1234"


@pytest.mark.parametrize(
    "payload",
    [b"", proto.DMA_ACCESS.pack(0, 4), proto.DMA_ACCESS.pack(0, 4) + b"12345", proto.DMA_ACCESS.pack(8, 4) + b"1234"],
)
def test_malformed_replies(rig: Rig, client: Client, payload: bytes) -> None:
    client.dma_map(0, PAGE)
    Guest(client).answer(Command.DMA_READ, payload)
    with pytest.raises(DmaError, match="malformed"):
        rig.server.dma.read(0, 4)


def test_no_answer_is_an_error_after_the_limit_and_a_late_one_is_dropped(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    with pytest.raises(DmaError, match="no reply"):
        rig.server.dma.read(0, 4)
    rig.step()
    guest = Guest(client)
    guest.answer_read(0, b"late")
    guest.answer_read(0, b"good")
    assert rig.server.dma.read(0, 4) == b"good"
    assert rig.server.counters[ServerCount.LATE_REPLY] == 1
    assert rig.server.counters[ServerCount.UNEXPECTED_REPLY] == 0


def test_the_client_hangs_up_while_the_server_waits(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    client.close()
    with pytest.raises(DmaError, match="went away"):
        rig.server.dma.write(0, b"1234")
    rig.step()
    assert not rig.server.connected
    with pytest.raises(DmaError, match="not mapped"):
        rig.server.dma.write(0, b"1234")


def test_dma_to_the_own_bar_is_served_while_waiting(rig: Rig, client: Client) -> None:
    """QEMU turns such a DMA_WRITE into a write to the device and answers only when that is done."""
    client.dma_map(0, PAGE)
    access = proto.REGION_ACCESS.pack(0x10, 0, 8)
    client.post_raw(proto.request(500, Command.REGION_WRITE, access + b"own BAR!", no_reply=True))
    client.post_raw(proto.request(501, Command.REGION_READ, access))
    Guest(client).answer_write(0, 8)
    rig.server.dma.write(0, b"own BAR!")
    assert rig.device.writes == [(0, 0x10, b"own BAR!")]
    assert client.receive().command == Command.DMA_WRITE
    answer = client.receive()
    assert (answer.message_id, answer.payload) == (501, access + b"own BAR!")


def test_ids_of_both_sides_may_collide(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    access = proto.REGION_ACCESS.pack(0, 0, 4)
    client.post_raw(proto.request(0, Command.REGION_READ, access))
    Guest(client).answer_read(0, b"dma!")
    assert rig.server.dma.read(0, 4) == b"dma!"
    assert client.receive().command == Command.DMA_READ
    answer = client.receive()
    assert (answer.message_id, answer.command) == (0, Command.REGION_READ)


def test_message_dma_in_a_posted_write(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    read: list[bytes] = []
    rig.device.on_write = lambda *access: read.append(rig.server.dma.read(0, 4))
    access = proto.REGION_ACCESS.pack(0, 0, 8)
    client.post_raw(proto.request(500, Command.REGION_WRITE, access + bytes(8), no_reply=True))
    Guest(client).answer_read(0, b"dma!")
    rig.step()
    assert read == [b"dma!"]


def test_message_dma_in_a_write_that_waits_for_its_reply_fails_at_once(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    errors: list[str] = []

    def on_write(*access: object) -> None:
        try:
            rig.server.dma.read(0, 4)
        except DmaError as error:
            errors.append(str(error))

    rig.device.on_write = on_write
    client.region_write(0, 0, bytes(8))
    assert len(errors) == 1
    assert "waits for a reply" in errors[0]
    # the server sent nothing for it
    assert client.is_quiet()


def test_nested_message_dma_is_bounded(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    depths: list[str] = []

    def on_write(*access: object) -> None:
        try:
            rig.server.dma.read(0, 4)
        except DmaError as error:
            depths.append(str(error))

    rig.device.on_write = on_write
    access = proto.REGION_ACCESS.pack(0, 0, 8) + bytes(8)
    for i in range(20):
        client.post_raw(proto.request(i, Command.REGION_WRITE, access, no_reply=True))
    guest = Guest(client)
    for _ in range(8):
        guest.answer_read(0, b"1234")
    rig.step()
    assert rig.server.counters[ServerCount.DMA_REFUSED] == 12
    assert len(depths) == 12
    assert [client.receive().command for _ in range(8)] == [Command.DMA_READ] * 8
    assert client.region_read(0, 0, 1) == b"\0"


def test_a_window_unmapped_during_an_access_is_an_error(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        client.dma_map(0, PAGE)
        client.dma_map(PAGE, PAGE, fd=fd)
        client.post_raw(proto.request(900, Command.DMA_UNMAP, unmap_payload(PAGE, PAGE)))
        Guest(client).answer_read(PAGE - 2, b"ab")
        with pytest.raises(DmaError, match="unmapped during"):
            rig.server.dma.read(PAGE - 2, 4)
