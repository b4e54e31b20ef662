"""The service port inside a guest: runs commands and moves files on request, over one byte stream.

This file is copied into the guest image and run there by its Python; the host imports it for the frame
format alone. It uses few modules so that it starts fast on an emulated processor.

Frames: type (1 byte), zero (1), channel (2), length (4), all big-endian, then `length` bytes, at most
:data:`MAX_PAYLOAD`. Each end starts by sending the 16 bytes of a *sync word* that the host drew at random
for this guest; whatever came before is left over from an earlier boot and is thrown away.
"""

import os
import select
import sys

# host to guest
RUN, STDIN, SIGNAL, PUT, GET, PING, RESIZE = range(1, 8)
# guest to host
READY, STARTED, STDOUT, STDERR, EXIT, FAILED, CREDIT, PONG = range(16, 24)

HEADER_BYTES = 8
MAX_PAYLOAD = 64 * 1024
WINDOW = 256 * 1024  # bytes of input the host may send ahead of the credit it got
CHUNK = 32 * 1024
SYNC_BYTES = 16

_GRACE_S = 0.25  # how long output of processes left behind is still read after a command's end
_TIOCSCTTY, _TIOCSWINSZ, _TCSETSW = 0x540E, 0x5414, 0x5403
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """One frame as it goes over the stream."""
    return b"%c\0%b%b%b" % (kind, channel.to_bytes(2, "big"), len(payload).to_bytes(4, "big"), payload)


def pack_fields(fields: list[bytes]) -> bytes:
    """Several byte strings as one: each with its length (4 bytes) before it."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def unpack_fields(data: bytes) -> list[bytes]:
    """The inverse of :func:`pack_fields`; `ValueError` if a length does not fit."""
    fields = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data) or at + 4 > len(data):
            raise ValueError("field beyond the end")
        fields.append(data[at + 4 : end])
        at = end
    return fields


class Splitter:
    """Cuts a byte stream into frames; before the sync word, and after a bad frame, it only looks for that word."""

    def __init__(self, sync: bytes) -> None:
        self.sync = sync
        self.synced = False
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Take received bytes, return whole frames. A sync word comes out as `(0, 0, b"")`."""
        buffer = self._buffer
        # the last bytes looked at may be the start of a sync word
        search_from = max(0, len(buffer) - SYNC_BYTES + 1)
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        at = buffer.find(self.sync, search_from)
        while at >= 0:
            # what lies before belongs to the time before the other end (re)started: whole frames still count
            if self.synced:
                self._cut(buffer, frames, at)
            del buffer[: buffer.find(self.sync) + SYNC_BYTES]
            frames.append((0, 0, b""))
            self.synced = True
            at = buffer.find(self.sync)
        if self.synced:
            self._cut(buffer, frames, len(buffer))
        else:
            del buffer[: max(0, len(buffer) - SYNC_BYTES + 1)]
        return frames

    def _cut(self, buffer: bytearray, frames: list[tuple[int, int, bytes]], limit: int) -> None:
        start = 0
        while limit - start >= HEADER_BYTES:
            length = int.from_bytes(buffer[start + 4 : start + 8], "big")
            if length > MAX_PAYLOAD:
                self.synced = False
                start = limit
                break
            if start + HEADER_BYTES + length > limit:
                break
            channel = int.from_bytes(buffer[start + 2 : start + 4], "big")
            frames.append((buffer[start], channel, bytes(buffer[start + 8 : start + 8 + length])))
            start += HEADER_BYTES + length
        del buffer[:start]


class _Command:
    """A running command, or a file on its way in or out."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.pid = 0
        self.pidfd = -1
        self.stdin = -1
        self.pending = bytearray()
        self.stdin_ends = False
        self.outputs: dict[int, int] = {}  # descriptor -> frame type
        self.tty = -1
        self.status: int | None = None
        self.deadline = 0.0
        self.put = False


class Agent:
    """Serves one stream until it breaks."""

    def __init__(self, port: int, sync: bytes, moments: list[bytes]) -> None:
        self.port = port
        self.moments = moments
        self.splitter = Splitter(sync)
        self.poll = select.poll()
        self.commands: dict[int, _Command] = {}
        self.owner: dict[int, _Command] = {}  # descriptor -> command
        os.set_blocking(port, False)

    # ---- the stream ----
    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send one frame."""
        self.write(frame(kind, channel, payload))

    def write(self, data: bytes) -> None:
        """Write all of `data` to the port, waiting while the host does not read."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.port, view) :]
            except BlockingIOError:
                waiter = select.poll()
                waiter.register(self.port, select.POLLOUT)
                waiter.poll(1000)

    def serve(self) -> None:
        """Greet the host and do what it asks, until the port ends."""
        with open("/proc/sys/kernel/random/boot_id", "rb") as boot:
            boot_id = boot.read().strip()
        self.write(self.splitter.sync)
        with open("/proc/uptime", "rb") as uptime:
            now = uptime.read().split()[0]
        release, pid = os.uname().release.encode(), b"%d" % os.getpid()
        self.send(READY, 0, pack_fields([boot_id, release, pid, *self.moments, now]))
        self.poll.register(self.port, select.POLLIN)
        while True:
            for descriptor, event in self.poll.poll(self._timeout_ms()):
                if descriptor == self.port:
                    if not self._receive():
                        return
                elif descriptor in self.owner:
                    self._ready(self.owner[descriptor], descriptor, event)
            self._reap_late()

    def _receive(self) -> bool:
        try:
            data = os.read(self.port, MAX_PAYLOAD)
        except BlockingIOError:
            return True
        if not data:
            return False
        for kind, channel, payload in self.splitter.feed(data):
            if kind == 0:
                self._forget_all()
            else:
                try:
                    self._handle(kind, channel, payload)
                except (OSError, ValueError, IndexError) as error:
                    self._fail(channel, error)
        return True

    def _fail(self, channel: int, error: Exception) -> None:
        number = (error.errno or 0) if isinstance(error, OSError) else 22
        self.send(FAILED, channel, pack_fields([b"%d" % number, str(error).encode()]))
        command = self.commands.get(channel)
        if command is not None and not command.pid:
            self._forget(command)

    # ---- requests ----
    def _handle(self, kind: int, channel: int, payload: bytes) -> None:
        command = self.commands.get(channel)
        if kind == PING:
            self.send(PONG, channel, payload)
        elif kind in (RUN, PUT, GET):
            if command is not None:
                raise ValueError("channel is in use")
            command = self.commands[channel] = _Command(channel)
            {RUN: self._run, PUT: self._put, GET: self._get}[kind](command, unpack_fields(payload))
        elif command is None:
            return  # it ended while this was on its way
        elif kind == STDIN:
            if payload:
                command.pending += payload
            else:
                command.stdin_ends = True
            self._feed(command)
        elif kind == SIGNAL and command.status is None and command.pid:
            number = int.from_bytes(payload, "big")
            try:
                os.killpg(command.pid, number)
            except ProcessLookupError:  # its session is not made yet
                os.kill(command.pid, number)
        elif kind == RESIZE and command.tty >= 0:
            _resize(command.tty, payload)

    def _run(self, command: _Command, fields: list[bytes]) -> None:
        cwd, tty, count = fields[0] or b"/root", fields[1], int(fields[2])
        argv, variables = fields[3 : 3 + count], fields[3 + count :]
        environment = dict(os.environb)
        for variable in variables:
            name, _, value = variable.partition(b"=")
            environment[name] = value
        ours: tuple[int, ...]
        if tty:
            master, slave = os.openpty()
            _resize(master, tty)
            theirs, ours = (slave, slave, slave), (os.dup(master), master)
            command.tty = master
            environment.setdefault(b"TERM", b"linux")
        else:
            stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
            theirs, ours = (stdin[0], stdout[1], stderr[1]), (stdin[1], stdout[0], stderr[0])
        errors_out, errors_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(argv, environment, cwd, theirs, errors_in, bool(tty))
        os.close(errors_in)
        for descriptor in set(theirs):
            os.close(descriptor)
        trouble = os.read(errors_out, 512)
        os.close(errors_out)
        if trouble:
            os.waitpid(pid, 0)
            for descriptor in set(ours):
                os.close(descriptor)
            number, _, text = trouble.partition(b" ")
            raise OSError(int(number), text.decode("utf-8", "replace"))
        command.pid = pid
        command.pidfd = os.pidfd_open(pid)
        command.stdin = ours[0]
        command.outputs = dict(zip(ours[1:], (STDOUT, STDERR), strict=False))
        for descriptor in (*command.outputs, command.stdin):
            os.set_blocking(descriptor, False)
        for descriptor in (*command.outputs, command.pidfd):
            self._watch(command, descriptor, select.POLLIN)
        self.owner[command.stdin] = command
        self.send(STARTED, command.channel, pid.to_bytes(4, "big"))

    def _put(self, command: _Command, fields: list[bytes]) -> None:
        path, mode = fields[0], int(fields[1])
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        command.put = True
        command.stdin = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.fchmod(command.stdin, mode)
        self.send(STARTED, command.channel, bytes(4))

    def _get(self, command: _Command, fields: list[bytes]) -> None:
        source = os.open(fields[0], os.O_RDONLY)
        left = int(fields[1])
        try:
            mode = os.fstat(source).st_mode
            self.send(STARTED, command.channel, (mode & 0o7777).to_bytes(4, "big"))
            while data := os.read(source, CHUNK):
                left -= len(data)
                if left < 0:  # some files have no end
                    raise OSError(27, f"{os.fsdecode(fields[0])}: more than {int(fields[1])} bytes")
                self.send(STDOUT, command.channel, data)
        finally:
            os.close(source)
        self.send(EXIT, command.channel, bytes(4))
        self._forget(command)

    # ---- descriptors ----
    def _watch(self, command: _Command, descriptor: int, events: int) -> None:
        self.owner[descriptor] = command
        self.poll.register(descriptor, events)

    def _drop(self, descriptor: int) -> None:
        self.owner.pop(descriptor, None)
        with _suppress(KeyError):
            self.poll.unregister(descriptor)
        os.close(descriptor)

    def _ready(self, command: _Command, descriptor: int, event: int) -> None:
        if descriptor == command.stdin:
            self._feed(command)
        elif descriptor == command.pidfd:
            _, status = os.waitpid(command.pid, 0)
            command.status = os.waitstatus_to_exitcode(status)
            command.deadline = _now() + _GRACE_S
            self._drop(command.pidfd)
            command.pidfd = -1
        elif descriptor in command.outputs and event & _READABLE:
            self._drain(command, descriptor)
        self._finish(command)

    def _drain(self, command: _Command, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose last user is gone
            data = b""
        if data:
            self.send(command.outputs[descriptor], command.channel, data)
        else:
            del command.outputs[descriptor]
            if descriptor == command.tty:
                command.tty = -1
            self._drop(descriptor)

    def _feed(self, command: _Command) -> None:
        """Write what is pending to the command's input, as far as it takes it."""
        used = 0
        while command.stdin >= 0 and command.pending:
            try:
                written = os.write(command.stdin, command.pending[:CHUNK])
            except BlockingIOError:
                break
            except OSError as error:
                if command.put:
                    raise
                del error
                self._close_stdin(command)  # nobody reads it any more
                break
            used += written
            del command.pending[:written]
        if command.stdin < 0:
            used += len(command.pending)
            command.pending.clear()
        if used:
            self.send(CREDIT, command.channel, used.to_bytes(4, "big"))
        if command.pending:
            self._watch(command, command.stdin, select.POLLOUT)
        elif command.stdin >= 0:
            if command.stdin_ends:
                self._close_stdin(command)
            elif not command.put:
                with _suppress(KeyError):
                    self.poll.unregister(command.stdin)
        if command.put and command.stdin < 0:
            self.send(EXIT, command.channel, bytes(4))
            self._forget(command)

    def _close_stdin(self, command: _Command) -> None:
        if command.tty >= 0:  # a terminal has no end of input but this character
            with _suppress(OSError):
                os.write(command.stdin, b"\x04")
        self._drop(command.stdin)
        command.stdin = -1

    # ---- ends ----
    def _finish(self, command: _Command) -> None:
        if command.status is None or (command.outputs and _now() < command.deadline):
            return
        if command.channel in self.commands:
            self.send(EXIT, command.channel, command.status.to_bytes(4, "big", signed=True))
            self._forget(command)

    def _timeout_ms(self) -> int:
        ending = [c.deadline for c in self.commands.values() if c.status is not None]
        return max(0, int(1000 * (min(ending) - _now())) + 1) if ending else -1

    def _reap_late(self) -> None:
        for command in list(self.commands.values()):
            self._finish(command)

    def _forget(self, command: _Command) -> None:
        self.commands.pop(command.channel, None)
        for descriptor in (*command.outputs, command.stdin, command.pidfd):
            if descriptor >= 0:
                self._drop(descriptor)
        command.outputs.clear()
        command.stdin = command.pidfd = -1

    def _forget_all(self) -> None:
        """The host starts anew: end what an earlier host left running."""
        for command in list(self.commands.values()):
            if command.pid and command.status is None:
                with _suppress(OSError):
                    os.killpg(command.pid, 9)
                os.waitpid(command.pid, 0)
            self._forget(command)


class _suppress:
    """`contextlib.suppress`, without the time to import that module."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, self.kind)


def _now() -> float:
    import time

    return time.monotonic()


def _resize(tty: int, size: bytes) -> None:
    """Set a terminal's rows and columns from two 16-bit numbers."""
    import fcntl

    rows, columns = int.from_bytes(size[:2], "big"), int.from_bytes(size[2:4], "big")
    window = rows.to_bytes(2, "little") + columns.to_bytes(2, "little") + bytes(4)
    fcntl.ioctl(tty, _TIOCSWINSZ, window)


def _become(
    argv: list[bytes],
    environment: dict[bytes, bytes],
    cwd: bytes,
    descriptors: tuple[int, int, int],
    errors: int,
    terminal: bool,
) -> None:
    """In the child: turn into the command, or write why not to `errors`. Does not return."""
    try:
        os.setsid()
        for target, source in enumerate(descriptors):
            os.dup2(source, target, inheritable=True)
        if terminal:
            import fcntl

            fcntl.ioctl(0, _TIOCSCTTY, 0)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, environment)
    except BaseException as error:
        number = getattr(error, "errno", None) or 8
        os.write(errors, b"%d %s" % (number, (f"{argv[:1]}: {error}").encode()))
    os._exit(127)


def _enter(root: str) -> None:
    """Make a folder the root. What is imported when it is needed, by `os` too, is not to be found from there."""
    import fcntl  # noqa: F401
    import time  # noqa: F401
    import warnings  # noqa: F401

    os.chroot(root)
    os.chdir("/")
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/vhca/bin"


def main() -> None:
    """`guest_agent.py PORT SYNC BEGUN STARTED [ROOT]`: serve the port (a path, or `fd:N`).

    SYNC is the sync word in hexadecimal; BEGUN and STARTED tell, in seconds of the kernel's clock, when the power-up
    sequence began and when it started this program. ROOT: what is to be the root of all that is run and
    copied.
    """
    where, sync, moments = sys.argv[1], bytes.fromhex(sys.argv[2]), [os.fsencode(word) for word in sys.argv[3:5]]
    if where.startswith("fd:"):
        port = int(where[3:])
        os.set_inheritable(port, False)
    else:
        port = os.open(where, os.O_RDWR | os.O_CLOEXEC)
    # What a command prints reaches the host before its next step, even if that brings the kernel down; and a guest at
    # work still answers. Commands do not inherit it.
    with _suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    if sys.argv[5:]:
        _enter(sys.argv[5])
    Agent(port, sync, moments).serve()


if __name__ == "__main__":
    main()
