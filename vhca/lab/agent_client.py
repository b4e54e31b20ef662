"""The host's end of a guest's service port: commands, files and signals over one byte stream.

Assumes a connected stream whose other end runs :mod:`vhca.lab.guest_agent`, sooner or later. Guarantees:
safe between threads; a guest that reboots, hangs, or sends anything at all ends calls with a
:class:`GuestError`, never blocks them past their time limit; what a guest sends is bounded per frame, and what is
kept of it per command (:data:`STREAM_MAX_BYTES`) and per file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from vhca.lab import guest_agent
from vhca.lab.agent_process import STREAM_MAX_BYTES, Process, Sink, Stream
from vhca.lab.errors import CommandTimeout, Completed, GuestError, KernelPanic

_SEND_AHEAD_BYTES = 1 << 20
_LAST_FRAMES_S: Final = 0.1  # of silence: what a guest sent before its panic has come
FILE_MAX_BYTES: Final = 1 << 30
"""What a file that is copied out may have, unless the caller says otherwise."""


@dataclass(slots=True, frozen=True)
class Ready:
    """What a guest's agent says when it starts.

    :ivar begun_s: when the power-up sequence began, on the guest's clock; `started_s`: when the agent was started;
        `ready_s`: when it said so.
    """

    boot_id: str
    kernel_release: str
    pid: int
    begun_s: float
    started_s: float
    ready_s: float


class AgentClient:
    """One guest's service port. Owns `connection` and a thread that moves its bytes."""

    def __init__(self, connection: socket.socket, sync: bytes, name: str = "guest") -> None:
        self.name = name
        self.unexpected_frames = 0
        self._sync = sync
        self._socket = connection
        self._socket.setblocking(False)
        self._splitter = guest_agent.Splitter(sync)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._outgoing = bytearray()
        self._processes: dict[int, Process] = {}
        self._pings: dict[bytes, threading.Event] = {}
        self._next_channel = 1
        self._ready: Ready | None = None
        self.boots = 0
        self._closed: str = ""
        self._panic: KernelPanic | None = None
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"agent-{name}", daemon=True)
        self._thread.start()

    # ---- for users ----
    def wait_ready(self, timeout_s: float, after_boots: int = 0) -> Ready:
        """Wait until the agent has started more than `after_boots` times; `GuestError` if it does not."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._panic or (self.boots > after_boots and self._ready), timeout_s
            )
            self._check_alive()
            if self.boots <= after_boots or self._ready is None:
                raise GuestError(f"{self.name}: the guest's agent did not start within {timeout_s:.0f} s")
            return self._ready

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        tty: tuple[int, int] | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
        start_timeout_s: float = 60.0,
    ) -> Process:
        """Start a command.

        `tty` (rows, columns) gives it a terminal; `stdout` and `stderr` are called with what comes in,
        from the port's thread, instead of filling the process's streams. `OSError` if it cannot be started.
        """
        if isinstance(argv, str) or not argv:
            raise TypeError("argv is a list: the program and its arguments")
        size = tty[0].to_bytes(2, "big") + tty[1].to_bytes(2, "big") if tty else b""
        variables = [f"{name}={value}".encode() for name, value in (env or {}).items()]
        fields = [cwd.encode(), size, b"%d" % len(argv), *(os.fsencode(a) for a in argv), *variables]
        return self._start(guest_agent.RUN, fields, argv, stdout, stderr, start_timeout_s)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes | str = b"",
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Completed:
        """Run a command to its end; on a time-out kill it and raise :class:`CommandTimeout` with what it said."""
        deadline_s = time.monotonic() + timeout_s
        process = self.popen(argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr, start_timeout_s=timeout_s)
        try:
            process.write(stdin.encode() if isinstance(stdin, str) else stdin, deadline_s - time.monotonic())
            process.close_stdin()
            status = process.wait(max(0.0, deadline_s - time.monotonic()))
        except CommandTimeout:
            process.kill()
            with contextlib.suppress(GuestError, OSError):
                process.wait(5.0)
            said = b""
            for stream in (process.stdout, process.stderr):
                with contextlib.suppress(TimeoutError):
                    said += stream.read(0)
            what = f"{self.name}: {' '.join(argv)} did not end within {timeout_s:g} s"
            raise CommandTimeout(f"{what}; it had said:\n{said[-2000:].decode('utf-8', 'replace')}") from None
        out, err = process.stdout.read_all(), process.stderr.read_all()
        return Completed(list(argv), status, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def put_file(self, data: bytes, target: str, mode: int = 0o644, timeout_s: float = 60.0) -> None:
        """Write a file in the guest, with its folders."""
        self._put(io.BytesIO(data), target, mode, timeout_s)

    def _put(self, source: BinaryIO, target: str, mode: int, timeout_s: float) -> None:
        process = self._start(
            guest_agent.PUT, [os.fsencode(target), b"%d" % mode], ["put", target], None, None, timeout_s
        )
        while data := source.read(guest_agent.WINDOW):
            process.write(data, timeout_s)
        process.close_stdin()
        process.wait(timeout_s)

    def get_file(self, source: str, timeout_s: float = 60.0, max_bytes: int = STREAM_MAX_BYTES) -> tuple[bytes, int]:
        """Read a file of the guest: content and mode. `OSError` (EFBIG) if it has more than `max_bytes`."""
        kept = Stream(max_bytes)
        mode = self._get(source, kept.put, timeout_s, max_bytes)
        kept.end()
        return kept.read_all(), mode

    def _get(self, source: str, sink: Sink, timeout_s: float, max_bytes: int) -> int:
        """Pass a file of the guest on piece by piece; returns its mode, as the guest tells it."""
        fields = [os.fsencode(source), b"%d" % max_bytes]
        process = self._start(guest_agent.GET, fields, ["get", source], sink, None, timeout_s)
        try:
            process.wait(timeout_s)
        finally:
            process.abandon_output()
        return process.pid

    def copy_in(self, source: Path, target: str, timeout_s: float = 60.0) -> None:
        """Copy a host file, or a folder with all below it, to `target` in the guest."""
        if source.is_dir():
            for path in sorted(source.rglob("*")):
                if path.is_file():
                    self.copy_in(path, f"{target}/{path.relative_to(source).as_posix()}", timeout_s)
            return
        with source.open("rb") as stream:
            self._put(stream, target, source.stat().st_mode & 0o777, timeout_s)

    def copy_out(self, source: str, target: Path, timeout_s: float = 60.0, max_bytes: int = FILE_MAX_BYTES) -> None:
        """Copy a file of the guest to the host. `OSError` (EFBIG) if it has more than `max_bytes`.

        `target` becomes an ordinary new file, as the umask says; whether it can be executed is all that is taken over
        of the guest's mode. It appears when it is complete.
        """
        if target.exists() and not target.is_file():
            raise FileExistsError(errno.EEXIST, "is there and is no file", str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name[:200]}-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(beside, flags, 0o666), "wb") as stream:
                taken = 0

                def write(data: bytes) -> None:
                    nonlocal taken
                    taken += len(data)
                    if taken > max_bytes:
                        raise OSError(errno.EFBIG, f"{self.name}: more than {max_bytes} bytes came of {source}")
                    stream.write(data)

                if self._get(source, write, timeout_s, max_bytes) & 0o100:
                    mode = os.fstat(stream.fileno()).st_mode & 0o777
                    os.fchmod(stream.fileno(), mode | (mode & 0o444) >> 2)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    def ping(self, timeout_s: float = 5.0) -> float:
        """Round-trip time to the agent, in seconds; `GuestError` if it does not answer in time."""
        token, answered = os.urandom(8), threading.Event()
        started_s = time.monotonic()
        self._pings[token] = answered
        try:
            self.send(guest_agent.PING, 0, token)
            if not answered.wait(timeout_s):
                raise GuestError(f"{self.name}: the agent does not answer")
        finally:
            self._pings.pop(token, None)
        return time.monotonic() - started_s

    def panicked(self, panic: KernelPanic | None) -> None:
        """Let all that waits for the guest, now or later, raise this; the output that came before is passed on first.

        Ends with the next boot; `None` ends it at once.
        """
        with self._changed:
            self._panic = panic
            self._changed.notify_all()
        self._poke()

    def close(self, why: str = "the connection was closed") -> None:
        """End the connection and all that waits for it."""
        self._fail_all(why, final=True)
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # ---- the stream ----
    def _start(
        self, kind: int, fields: list[bytes], args: Sequence[str], out: Sink | None, err: Sink | None, timeout_s: float
    ) -> Process:
        request = guest_agent.pack_fields(fields)
        if len(request) > guest_agent.MAX_PAYLOAD:
            raise ValueError(f"the command line and environment are {len(request)} bytes long, too long")
        with self._lock:
            self._check_open()
            channel = self._free_channel()
            process = self._processes[channel] = Process(self, channel, args, out, err)
        self.send(kind, channel, request)
        process._wait_started(timeout_s)
        return process

    def _free_channel(self) -> int:
        for _ in range(0xFFFE):
            channel = self._next_channel
            self._next_channel = channel % 0xFFFE + 1
            if channel not in self._processes:
                return channel
        raise GuestError(f"{self.name}: too many commands at once")

    def _check_alive(self) -> None:
        if self._panic is not None:
            raise self._panic
        if self._closed:
            raise GuestError(f"{self.name}: {self._closed}")

    def _check_open(self) -> None:
        self._check_alive()
        if self._ready is None:
            raise GuestError(f"{self.name}: the guest is not up")

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame; waits while the guest takes none. `GuestError` if it is gone."""
        with self._changed:
            self._check_open()
            # frames wait here only while the guest does not read; input has its own window
            if not self._changed.wait_for(lambda: len(self._outgoing) < _SEND_AHEAD_BYTES or self._closed, 30):
                raise GuestError(f"{self.name}: the guest does not read from its agent's port")
            self._check_open()
            self._outgoing += guest_agent.frame(kind, channel, payload)
        self._poke()

    def send_at_once(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """The same from the port's own thread, which must not wait for room: for a few small frames."""
        with self._changed:
            if not self._closed and self._ready is not None:
                self._outgoing += guest_agent.frame(kind, channel, payload)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake, selectors.EVENT_READ)
        selector.register(self._socket, selectors.EVENT_READ)
        try:
            while not self._closed:
                with self._lock:
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
                selector.modify(self._socket, wanted)
                ready = selector.select(_LAST_FRAMES_S if self._panic is not None else None)
                if not ready:
                    self._fail_all("its kernel panicked", final=False)
                for key, events in ready:
                    if key.fileobj == self._wake:
                        os.read(self._wake, 4096)
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._flush()
                    if events & selectors.EVENT_READ and not self._receive():
                        self._fail_all("the guest's machine has ended", final=True)
        except OSError as error:
            self._fail_all(f"the agent's port broke: {error}", final=True)
        finally:
            selector.close()
            self._socket.close()
            os.close(self._wake)
            waker, self._waker = self._waker, -1
            os.close(waker)

    def _flush(self) -> None:
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                sent = self._socket.send(self._outgoing[:65536])
                del self._outgoing[:sent]
            self._changed.notify_all()

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return True
        for kind, channel, payload in self._splitter.feed(data):
            if kind == 0:
                self._restarted()
            elif kind == guest_agent.READY:
                self._on_ready(payload)
            elif kind == guest_agent.PONG:
                if event := self._pings.get(payload):
                    event.set()
            else:
                self._dispatch(kind, channel, payload)
        return bool(data)

    def _dispatch(self, kind: int, channel: int, payload: bytes) -> None:
        with self._lock:
            process = self._processes.get(channel)
        if process is None:
            self.unexpected_frames += 1
        elif process._take(kind, payload):
            with self._lock:
                self._processes.pop(channel, None)

    def _restarted(self) -> None:
        """The other end begins anew: what was asked of its predecessor is lost."""
        self._fail_all("the guest was restarted", final=False)
        with self._lock:
            self._outgoing[:] = self._sync
        self._poke()

    def _on_ready(self, payload: bytes) -> None:
        try:
            boot_id, release, pid, *clock = guest_agent.unpack_fields(payload)
            begun_s, started_s, ready_s = map(float, clock)
            if not math.isfinite(begun_s + started_s + ready_s):
                raise ValueError("no moment of any clock")
            ready = Ready(boot_id.decode(), release.decode(), int(pid), begun_s, started_s, ready_s)
        except ValueError:
            self.unexpected_frames += 1
            return
        with self._changed:
            self._ready = ready
            self._panic = None
            self.boots += 1
            self._changed.notify_all()

    def _fail_all(self, why: str, *, final: bool) -> None:
        with self._changed:
            processes = list(self._processes.values())
            self._processes.clear()
            self._ready = None
            if final and not self._closed:
                self._closed = why
            self._changed.notify_all()
        for process in processes:
            process._abandon(self._panic or GuestError(f"{self.name}: {why} while {process.args[0]} ran"))
