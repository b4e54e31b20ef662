"""SET_IRQS: every check, and the road from raise_irq to the eventfd."""

import errno
import os

import pytest

from tests.wire.client import Client, RemoteError, closing, eventfds, fired, memfd
from tests.wire.conftest import Rig, open_fds
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

NONE, BOOL, EVENTFD = 1, 2, 4
MASK, UNMASK, TRIGGER = 8, 0x10, 0x20
INTX, MSI, MSIX, ERR, REQ = range(5)
BIG = 0xFFFFFFFF


def refused(client: Client, *arguments: int, code: int = errno.EINVAL, **more: object) -> None:
    with pytest.raises(RemoteError) as caught:
        client.set_irqs(*arguments, **more)  # type: ignore[arg-type]
    assert caught.value.errno == code


BAD = {
    "no data kind": (TRIGGER, MSIX, 0, 1),
    "no action": (NONE, MSIX, 0, 1),
    "mask and unmask": (NONE | MASK | UNMASK, MSIX, 0, 1),
    "none and bool": (NONE | BOOL | TRIGGER, MSIX, 0, 1),
    "unknown flag": (NONE | TRIGGER | 0x40, MSIX, 0, 1),
    "index": (NONE | TRIGGER, 5, 0, 1),
    "index far": (NONE | TRIGGER, BIG, 0, 1),
    "index without vectors": (NONE | TRIGGER, MSI, 0, 1),
    "start at the end": (EVENTFD | TRIGGER, MSIX, 32, 1),
    "start past the end": (EVENTFD | TRIGGER, MSIX, BIG, 1),
    "count past the end": (EVENTFD | TRIGGER, MSIX, 0, 33),
    "start and count past the end": (EVENTFD | TRIGGER, MSIX, 31, 2),
    "start and count overflow": (EVENTFD | TRIGGER, MSIX, 1, BIG),
    "both huge": (EVENTFD | TRIGGER, MSIX, BIG, BIG),
    "mask ERR": (NONE | MASK, ERR, 0, 1),
    "unmask REQ": (NONE | UNMASK, REQ, 0, 1),
    "two of ERR": (EVENTFD | TRIGGER, ERR, 0, 2),
    "second of REQ": (EVENTFD | TRIGGER, REQ, 1, 1),
    "count 0 with a start": (NONE | TRIGGER, MSIX, 1, 0),
    "count 0 masks": (NONE | MASK, MSIX, 0, 0),
    "count 0 unmasks": (NONE | UNMASK, MSIX, 0, 0),
    "count 0 with bool": (BOOL | TRIGGER, MSIX, 0, 0),
    "count 0 with eventfd": (EVENTFD | TRIGGER, MSIX, 0, 0),
    "mask by eventfd": (EVENTFD | MASK, INTX, 0, 1),
    "unmask by eventfd": (EVENTFD | UNMASK, INTX, 0, 1),
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_requests_change_nothing(rig: Rig, client: Client, arguments: tuple[int, int, int, int]) -> None:
    refused(client, *arguments)
    assert rig.device.irq_changes == 0


def test_bad_lengths(client: Client) -> None:
    whole = proto.SET_IRQS.pack(20, NONE | TRIGGER, MSIX, 0, 0)
    for payload in (b"", whole[:19], whole + b"\0"):
        with pytest.raises(RemoteError) as caught:
            client.call(Command.DEVICE_SET_IRQS, payload)
        assert caught.value.errno == errno.EINVAL
    refused(client, NONE | TRIGGER, MSIX, 0, 0, argsz=19)
    for bools in (b"", b"\1", b"\1\1\1"):
        refused(client, BOOL | TRIGGER, MSIX, 0, 2, bools=bools)
    refused(client, EVENTFD | TRIGGER, MSIX, 0, 2, bools=b"\1\1")


def test_bad_descriptors_are_closed(rig: Rig, client: Client) -> None:
    before = open_fds()
    with closing(*eventfds(3)) as fds:
        refused(client, EVENTFD | TRIGGER, MSIX, 0, 2, fds=fds)
        refused(client, EVENTFD | TRIGGER, MSIX, 0, 4, fds=fds)
        refused(client, NONE | TRIGGER, MSIX, 0, 3, fds=fds)
        refused(client, NONE | TRIGGER, MSIX, 0, 0, fds=fds)
        refused(client, BOOL | TRIGGER, MSIX, 0, 3, bools=b"\1\1\1", fds=fds)
        refused(client, EVENTFD | TRIGGER, MSIX, 30, 3, fds=fds)
    with closing(*os.pipe(), memfd(16), *eventfds(1)) as fds:
        # a write to one of these could block, or do harm
        refused(client, EVENTFD | TRIGGER, MSIX, 0, 4, fds=fds)
        refused(client, EVENTFD | TRIGGER, MSIX, 0, 1, fds=fds[1:2])
    assert open_fds() == before
    assert not any(rig.server.irqs.armed(vector) for vector in range(32))


def test_twenty_vectors_in_two_messages(rig: Rig, client: Client) -> None:
    with closing(*eventfds(20)) as fds:
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 16, fds=fds[:16])
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 16, 4, fds=fds[16:])
        assert rig.device.irq_changes == 2
        for vector in range(20):
            rig.server.irqs.raise_irq(vector)
        assert [fired(fd) for fd in fds] == [1] * 20
        for _ in range(3):
            rig.server.irqs.raise_irq(7)
        assert fired(fds[7]) == 3


def test_replacing_and_deassigning_close_the_old_descriptor(rig: Rig, client: Client) -> None:
    with closing(*eventfds(3)) as fds:
        before = open_fds()
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 2, fds=fds[:2])
        for _ in range(10):
            client.set_irqs(EVENTFD | TRIGGER, MSIX, 1, 1, fds=fds[2:])
        assert open_fds() == before + 2
        rig.server.irqs.raise_irq(1)
        assert [fired(fd) for fd in fds] == [0, 0, 1]
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 32)
        assert open_fds() == before
        rig.server.irqs.raise_irq(0)
        assert [fired(fd) for fd in fds] == [0, 0, 0]


def test_an_interrupt_waits_for_its_eventfd(rig: Rig, client: Client) -> None:
    rig.server.irqs.raise_irq(5)
    rig.server.irqs.raise_irq(5)
    # QEMU turns MSI-X on with "vector 0 unassigned"; that must not lose what waits
    client.set_irqs(NONE | TRIGGER, INTX, 0, 0)
    client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 1)
    assert rig.server.irqs.pending() == {5}
    with closing(*eventfds(1)) as (fd,):
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 5, 1, fds=[fd])
        assert fired(fd) == 1
        assert rig.server.irqs.pending() == frozenset()


def test_disabling_an_index_forgets_all_of_it(rig: Rig, client: Client) -> None:
    with closing(*eventfds(4)) as fds:
        before = open_fds()
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 3, fds=fds[:3])
        client.set_irqs(EVENTFD | TRIGGER, ERR, 0, 1, fds=fds[3:])
        rig.server.irqs.raise_irq(9)
        client.set_irqs(NONE | TRIGGER, MSIX, 0, 0)
        # the error eventfd stays
        assert open_fds() == before + 1
        assert rig.server.irqs.armed(0, ERR)
        assert rig.server.irqs.pending() == frozenset()
        # again, and an index without vectors
        client.set_irqs(NONE | TRIGGER, MSIX, 0, 0)
        client.set_irqs(NONE | TRIGGER, MSI, 0, 0)


def test_trigger_by_message(rig: Rig, client: Client) -> None:
    with closing(*eventfds(4)) as fds:
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 4, fds=fds)
        client.set_irqs(NONE | TRIGGER, MSIX, 1, 2)
        assert [fired(fd) for fd in fds] == [0, 1, 1, 0]
        client.set_irqs(BOOL | TRIGGER, MSIX, 0, 4, bools=b"\1\0\0\xff")
        assert [fired(fd) for fd in fds] == [1, 0, 0, 1]
        # vector 4 has no eventfd: nothing fires
        refused(client, NONE | TRIGGER, MSIX, 3, 2, code=errno.ENOENT)
        refused(client, BOOL | TRIGGER, MSIX, 3, 2, bools=b"\1\1", code=errno.ENOENT)
        assert [fired(fd) for fd in fds] == [0, 0, 0, 0]
        client.set_irqs(BOOL | TRIGGER, MSIX, 3, 2, bools=b"\1\0")
        assert [fired(fd) for fd in fds] == [0, 0, 0, 1]


@pytest.mark.parametrize("index", [INTX, MSIX])
def test_masked_interrupts_wait(rig: Rig, client: Client, index: int) -> None:
    with closing(*eventfds(1)) as (fd,):
        client.set_irqs(EVENTFD | TRIGGER, index, 0, 1, fds=[fd])
        client.set_irqs(NONE | MASK, index, 0, 1)
        rig.server.irqs.raise_irq(0, index)
        rig.server.irqs.raise_irq(0, index)
        assert fired(fd) == 0
        client.set_irqs(BOOL | UNMASK, index, 0, 1, bools=b"\0")
        assert fired(fd) == 0
        client.set_irqs(BOOL | UNMASK, index, 0, 1, bools=b"\1")
        assert fired(fd) == 1
        client.set_irqs(NONE | UNMASK, index, 0, 1)
        assert fired(fd) == 0


def test_a_full_eventfd_does_not_block(rig: Rig, client: Client) -> None:
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    with closing(fd):
        os.eventfd_write(fd, (1 << 64) - 2)
        client.set_irqs(EVENTFD | TRIGGER, MSIX, 0, 1, fds=[fd])
        rig.server.irqs.raise_irq(0)
        # one more than anybody can write: the kernel's own top
        assert fired(fd) == (1 << 64) - 1


@pytest.mark.parametrize("vector", [-1, 32])
def test_a_vector_that_the_device_does_not_have(rig: Rig, vector: int) -> None:
    with pytest.raises(IndexError):
        rig.server.irqs.raise_irq(vector)


def test_reset_leaves_the_eventfds(rig: Rig, client: Client) -> None:
    with closing(*eventfds(1)) as fds:
        client.set_irqs(EVENTFD | TRIGGER, ERR, 0, 1, fds=fds)
        client.call(Command.DEVICE_RESET)
        assert rig.server.irqs.armed(0, ERR)
