"""Signalling of eventfds whose other owner does not want it to end."""

import ctypes
import errno
import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests.wire.client import closing, eventfds, fired
from vhca.vfio_user import eventfd
from vhca.vfio_user.eventfd import Signaller

TOP = (1 << 64) - 2


@pytest.fixture
def signaller() -> Iterator[Signaller]:
    """A signaller; what hangs is ended by an alarm, whose handler raises."""

    def end(*_: object) -> None:
        raise TimeoutError("the signaller waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(5)
    signaller = Signaller()
    yield signaller
    signaller.close()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_every_signal_counts(signaller: Signaller) -> None:
    signaller.open()
    assert signaller.safe
    with closing(*eventfds(2)) as (one, two):
        # more than the kernel keeps results of
        for _ in range(2000):
            signaller.signal(one)
        signaller.signal(two)
        assert (fired(one), fired(two)) == (2000, 1)


def test_a_full_counter_of_a_file_that_may_wait_is_left_as_it_is(signaller: Signaller) -> None:
    signaller.open()
    with closing(*eventfds(1)) as (fd,):
        os.set_blocking(fd, True)
        os.eventfd_write(fd, TOP)
        for _ in range(3):
            signaller.signal(fd)
        assert os.eventfd_read(fd) == TOP + 1
        signaller.signal(fd)
        assert os.eventfd_read(fd) == 1


def test_other_descriptors_are_refused(signaller: Signaller) -> None:
    signaller.open()
    reader, writer = os.pipe()
    with closing(reader, writer), pytest.raises(OSError, match="io_submit"):
        signaller.signal(writer)


def test_a_kernel_without_memory_loses_no_signal(signaller: Signaller, monkeypatch: pytest.MonkeyPatch) -> None:
    signaller.open()

    def no_memory() -> int:
        ctypes.set_errno(errno.EAGAIN)
        return -1

    monkeypatch.setattr(signaller, "_send", no_memory)
    with closing(*eventfds(1)) as (fd,):
        signaller.signal(fd)
        assert fired(fd) == 1


def test_open_and_close_may_be_repeated(signaller: Signaller) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        signaller.open()
        signaller.open()
        with closing(*eventfds(1)) as (fd,):
            signaller.signal(fd)
            assert fired(fd) == 1
        signaller.close()
        signaller.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_host_without_asynchronous_io(
    signaller: Signaller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = (1 << 20,) * 4
    monkeypatch.setattr(eventfd, "_CALLS", {})
    monkeypatch.setattr(eventfd, "_CALLS_ELSEWHERE", nothing)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    signaller = Signaller()
    signaller.open()
    assert not signaller.safe
    assert "can hold up all cards" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before
    with closing(*eventfds(1)) as (fd,):
        signaller.signal(fd)
        assert fired(fd) == 1
        os.set_blocking(fd, True)
        os.eventfd_write(fd, TOP)
        signaller.signal(fd)
        assert os.eventfd_read(fd) == TOP
    signaller.close()
