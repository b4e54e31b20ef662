"""Signalling of eventfds that belong to somebody else, without ever waiting.

A write to an eventfd waits while its counter is at the top, unless the open file has O_NONBLOCK: and the open file is
shared with the client, which can take the flag away and fill the counter at any moment, between any check and the
write. So nothing is written. The kernel itself adds 1 to an eventfd when an asynchronous read ends (`IOCB_FLAG_RESFD`
of io_submit(2)), as it does for interrupts of its own, and that never waits: a counter at its top stays there. The read
is one of no bytes from /dev/null and is over when the call returns. It costs 1.0 us, a write costs 0.3 us.

Where the host has no asynchronous I/O (a kernel without CONFIG_AIO, a sandbox that forbids it) eventfds are written
to, and clients have to be trusted with them; that is logged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import logging
import os
import platform
from collections.abc import Callable
from typing import Final, cast

log = logging.getLogger(__name__)

# io_setup, io_destroy, io_getevents, io_submit
_CALLS: Final = {"x86_64": (206, 207, 208, 209)}
_CALLS_ELSEWHERE: Final = (0, 1, 4, 2)
_EVENTS: Final = 64
_REAP: Final = 256
_EVENT_BYTES: Final = 32
_READ: Final = 0
_SIGNAL_EVENTFD: Final = 1


class _Request(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


def is_eventfd(fd: int) -> bool:
    """Tell whether `fd` is an eventfd."""
    return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"


def _system_call(*types: type[ctypes.c_long | ctypes.c_ulong | ctypes.c_void_p]) -> Callable[..., int]:
    """syscall(2) for arguments of these types.

    The interpreter's lock is kept (PyDLL): for calls that never wait that is the cheaper way.
    """
    call = ctypes.PyDLL(None, use_errno=True)["syscall"]
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long, *types)
    return cast(Callable[..., int], call)


class Signaller:
    """Adds 1 to eventfds. One thread at a time.

    :ivar safe: no client can make it wait; false before :meth:`open`, and after it where there is no asynchronous I/O.
    """

    def __init__(self) -> None:
        self.safe = False
        self._setup, self._destroy, self._getevents, self._submit = _CALLS.get(platform.machine(), _CALLS_ELSEWHERE)
        self._null = -1
        self._context = ctypes.c_ulong(0)
        self._request = _Request(opcode=_READ, flags=_SIGNAL_EVENTFD)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._results = ctypes.create_string_buffer(_REAP * _EVENT_BYTES)
        self._send: Callable[[], int] = _not_open

    def open(self) -> None:
        """Get ready; without it, or if the host does not offer what it takes, eventfds are written to."""
        if self.safe:
            return
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        setup = _system_call(ctypes.c_long, ctypes.c_void_p)
        if setup(self._setup, _EVENTS, ctypes.addressof(self._context)):
            os.close(null)
            log.warning(
                "no asynchronous I/O (%s): a client that spoils its eventfds can hold up all cards",
                os.strerror(ctypes.get_errno()),
            )
            return
        self._null = self._request.fd = null
        # The arguments are converted once, not at each call.
        self._send = functools.partial(
            _system_call(ctypes.c_ulong, ctypes.c_long, ctypes.c_void_p),
            ctypes.c_long(self._submit),
            self._context,
            ctypes.c_long(1),
            ctypes.c_void_p(ctypes.addressof(self._requests)),
        )
        self.safe = True

    def close(self) -> None:
        """Give back what :meth:`open` took."""
        if self.safe:
            self.safe = False
            self._send = _not_open
            _system_call(ctypes.c_ulong)(self._destroy, self._context)
            self._context.value = 0
            os.close(self._null)

    def signal(self, fd: int) -> None:
        """Add 1 to the counter of the eventfd `fd`, unless it is at its top; raises OSError if it is no eventfd."""
        self._request.eventfd = fd
        if self._send() == 1:
            return
        if not self.safe:
            _write(fd)
            return
        # Results of earlier requests fill the ring, most likely.
        reap = _system_call(ctypes.c_ulong, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        reap(self._getevents, self._context, 0, _REAP, ctypes.addressof(self._results), None)
        if self._send() == 1:
            return
        if ctypes.get_errno() != errno.EAGAIN:
            raise OSError(ctypes.get_errno(), "io_submit")
        # The kernel has no memory for a request; an interrupt that is lost would be worse than the risk of waiting.
        _write(fd)


def _not_open() -> int:
    return 0


def _write(fd: int) -> None:
    os.set_blocking(fd, False)
    # A counter at its top means that an interrupt is pending already.
    with contextlib.suppress(BlockingIOError):
        os.eventfd_write(fd, 1)
