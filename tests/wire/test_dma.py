"""DMA_MAP and DMA_UNMAP: windows of guest memory, and what is refused."""

import errno
import os

import pytest

from tests.wire.client import Client, closing, memfd
from tests.wire.conftest import Rig, open_fds
from tests.wire.guest_memory import PAGE, READ, map_payload, refused, unmap_payload
from vhca.hw.memory import DmaError
from vhca.vfio_user.proto import Command


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
