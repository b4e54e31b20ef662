"""The service port: the real guest agent run as a process of this host, the real client at the other end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.content import some_bytes
from vhca.lab import guest_agent
from vhca.lab.agent_client import AgentClient
from vhca.lab.agent_process import Process, Stream
from vhca.lab.errors import CommandTimeout, GuestError, KernelPanic

SYNC = bytes(range(16))
AGENT = Path(guest_agent.__file__)


def ready(boot_id: bytes) -> bytes:
    """The frame with which an agent greets."""
    fields = [boot_id, b"6.19", b"1", b"0.5", b"0.8", b"1.25"]
    return guest_agent.frame(guest_agent.READY, 0, guest_agent.pack_fields(fields))


def start_agent(end: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(AGENT), f"fd:{end.fileno()}", SYNC.hex(), "0.5", "0.8"]
    return subprocess.Popen(command, pass_fds=[end.fileno()])


@pytest.fixture
def port() -> Iterator[tuple[AgentClient, socket.socket]]:
    ours, theirs = socket.socketpair()
    client = AgentClient(ours, SYNC, "g9")
    yield client, theirs
    client.close()
    theirs.close()


@pytest.fixture
def client(port: tuple[AgentClient, socket.socket]) -> Iterator[AgentClient]:
    agent = start_agent(port[1])
    port[0].wait_ready(20)
    yield port[0]
    agent.kill()
    agent.wait()


def test_a_command_and_its_status(client: AgentClient) -> None:
    done = client.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="in", cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (3, "in", "err\n")


def test_an_agent_says_when_the_power_up_sequence_came_to_it(port: tuple[AgentClient, socket.socket]) -> None:
    agent = start_agent(port[1])
    told = port[0].wait_ready(20)
    agent.kill()
    agent.wait()
    assert (told.begun_s, told.started_s) == (0.5, 0.8)
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert uptime_s - 30 < told.ready_s <= uptime_s


@pytest.mark.parametrize("moment", [b"nan", b"inf", b"-inf", b"soon", b""])
def test_a_guest_whose_clock_says_nonsense_has_not_greeted(
    port: tuple[AgentClient, socket.socket], moment: bytes
) -> None:
    client, theirs = port
    fields = [b"id", b"6.19", b"1", b"0.5", moment, b"1.25"]
    theirs.sendall(SYNC + guest_agent.frame(guest_agent.READY, 0, guest_agent.pack_fields(fields)) + ready(b"id"))
    client.wait_ready(20)
    assert (client.unexpected_frames, client.boots) == (1, 1)


def test_environment_and_folder(client: AgentClient, tmp_path: Path) -> None:
    done = client.run(["sh", "-c", 'echo "$A"; pwd'], env={"A": "b=c d"}, cwd=str(tmp_path))
    assert done.stdout == f"b=c d\n{tmp_path}\n"


def test_what_cannot_be_started(client: AgentClient, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="g9"):
        client.run(["/no/such/program"], cwd="/")
    with pytest.raises(FileNotFoundError):
        client.run(["true"], cwd="/no/such/folder")
    with pytest.raises(PermissionError):
        client.run([str(tmp_path)], cwd="/")
    with pytest.raises(TypeError):
        client.run("true")
    assert client.run(["true"], cwd="/").returncode == 0


def test_more_input_than_any_buffer(client: AgentClient) -> None:
    data = some_bytes(3 * guest_agent.WINDOW + 17)
    process = client.popen(["cat"], cwd="/")
    process.write(data)
    process.close_stdin()
    assert process.stdout.read_all() == data
    assert process.wait(20) == 0


def test_input_that_nobody_reads_is_no_error(client: AgentClient) -> None:
    assert client.run(["true"], stdin=bytes(2 * guest_agent.WINDOW), cwd="/").returncode == 0


def test_signals_reach_the_whole_command(client: AgentClient) -> None:
    process = client.popen(["sh", "-c", "sh -c 'echo $$; sleep 1000; true'; true"], cwd="/")
    inner = int(next(iter(process.stdout)))
    process.terminate()
    assert process.wait(20) == -signal.SIGTERM
    name = re.escape(client.name)
    with pytest.raises(
        CommandTimeout, match=rf"^{name}: sh -c echo said; sleep 1000 did not end within 0\.3 s; .*\nsaid\n"
    ):
        client.run(["sh", "-c", "echo said; sleep 1000"], timeout_s=0.3, cwd="/")
    assert not Path(f"/proc/{inner}").exists() or "Z" in Path(f"/proc/{inner}/stat").read_text().split()[2]


def test_output_left_behind_does_not_delay_the_end(client: AgentClient) -> None:
    done = client.run(["sh", "-c", "sleep 1000 & echo $!"], cwd="/", timeout_s=20)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0


def test_a_terminal_with_its_size(client: AgentClient) -> None:
    process = client.popen(["sh", "-c", "stty size; read line; stty size; cat"], tty=(24, 80), cwd="/")
    lines = iter(process.stdout)
    assert next(lines) == "24 80\r\n"
    process.resize(50, 132)
    process.write(b"go\n")
    assert [next(lines), next(lines)] == ["go\r\n", "50 132\r\n"]
    process.close_stdin()
    assert process.wait(20) == 0


def test_sinks_take_output_instead_of_streams(client: AgentClient) -> None:
    taken: list[bytes] = []
    done = client.run(["echo", "there"], stdout=taken.append, cwd="/")
    assert (b"".join(taken), done.stdout) == (b"there\n", "")


def test_files(client: AgentClient, tmp_path: Path) -> None:
    data = some_bytes(600_000)
    client.put_file(data, str(tmp_path / "new/folder/file"), 0o741)
    assert (tmp_path / "new/folder/file").read_bytes() == data
    assert client.get_file(str(tmp_path / "new/folder/file")) == (data, 0o741)
    client.put_file(b"", str(tmp_path / "empty"))
    assert client.get_file(str(tmp_path / "empty"))[0] == b""
    with pytest.raises(FileNotFoundError):
        client.get_file("/no/such/file")
    with pytest.raises(IsADirectoryError):
        client.put_file(b"x", str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        client.put_file(bytes(100_000), "/dev/full", timeout_s=10)


def test_files_copied_out_are_ordinary_files_of_this_host(client: AgentClient, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "back/target"
    data = some_bytes(300_000)
    source.write_bytes(data)
    before = os.umask(0o027)
    try:
        for theirs, ours in ((0o6777, 0o750), (0o666, 0o640), (0o4100, 0o750), (0o444, 0o640)):
            source.chmod(theirs)
            client.copy_out(str(source), target)
            assert target.stat().st_mode & 0o7777 == ours
            assert target.read_bytes() == data
    finally:
        os.umask(before)
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_copy_replaces_a_link_and_nothing_but_files(client: AgentClient, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "source").write_text("new")
    (tmp_path / "link").symlink_to(victim)
    client.copy_out(str(tmp_path / "source"), tmp_path / "link")
    assert ((tmp_path / "link").read_text(), victim.read_text()) == ("new", "precious")
    (tmp_path / "pipe").symlink_to("/dev/null")
    for target in (tmp_path / "pipe", tmp_path):
        with pytest.raises(FileExistsError):
            client.copy_out(str(tmp_path / "source"), target)


def test_a_file_without_end_is_given_up_by_the_guest(client: AgentClient, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="more than 100000 bytes") as caught:
        client.copy_out("/dev/zero", tmp_path / "zero", max_bytes=100_000)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="/dev/zero: more than"):
        client.get_file("/dev/zero", max_bytes=100_000)
    assert not list(tmp_path.iterdir())
    assert client.run(["echo", "there"], cwd="/").stdout == "there\n"


def test_output_without_end_ends_its_command_alone(client: AgentClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream.__init__, "__defaults__", (200_000,))
    quiet = client.popen(["cat"], cwd="/")
    with pytest.raises(GuestError, match=r"sh printed more than 200000 bytes .* killed"):
        client.run(["sh", "-c", "echo $$ >&2; exec yes"], cwd="/", timeout_s=20)
    process = client.popen(["sh", "-c", "echo $$ >&2; exec yes"], cwd="/")
    with pytest.raises(GuestError, match="printed more"):
        process.wait(20)
    pid = int(process.stderr.read_all())
    assert len(process.stdout.read_all()) <= 200_000
    quiet.write(b"still here")
    quiet.close_stdin()
    assert (quiet.wait(20), quiet.stdout.read_all()) == (0, b"still here")
    end_s = time.monotonic() + 20
    while client._processes:  # the killed ones are kept until the guest says that they are gone
        assert time.monotonic() < end_s, "the guest was not told to kill it"
        client.run(["true"], cwd="/")
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_is_ended_early_was_started(client: AgentClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late its caller is told: its failure is its end's, not its start's."""
    monkeypatch.setattr(Stream.__init__, "__defaults__", (1000,))
    wait_started = Process._wait_started

    def wait_late(process: Process, timeout_s: float) -> None:
        with pytest.raises(GuestError, match="printed more than 1000 bytes"):
            process.wait(20)
        wait_started(process, timeout_s)

    monkeypatch.setattr(Process, "_wait_started", wait_late)
    process = client.popen(["yes"], cwd="/")
    assert process.pid > 0
    with pytest.raises(GuestError, match="printed more than 1000 bytes"):
        process.wait(20)


def test_output_that_somebody_reads_may_be_any_amount(client: AgentClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream.__init__, "__defaults__", (200_000,))
    taken = 0

    def count(data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    client.run(["head", "-c", "3000000", "/dev/zero"], stdout=count, cwd="/")
    assert taken == 3_000_000


def test_a_sink_that_fails_ends_its_command_alone(client: AgentClient) -> None:
    def full(_data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def broken(_data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(OSError, match="no space"):
        client.run(["yes"], stdout=full, cwd="/", timeout_s=20)
    with pytest.raises(GuestError, match="ZeroDivisionError"):
        client.run(["yes"], stderr=full, stdout=broken, cwd="/", timeout_s=20)
    assert client.run(["echo", "there"], cwd="/").stdout == "there\n"


def test_a_line_without_end_comes_in_pieces() -> None:
    stream = Stream()
    stream.put(b"x" * 2_000_000)
    lines = iter(stream)
    assert next(lines) == "x" * 2_000_000  # and is not waited for any longer
    stream.put(b"y\nend")
    stream.end()
    assert list(lines) == ["y\n", "end"]


def test_many_threads_at_once(client: AgentClient) -> None:
    results: list[str] = []

    def work(number: int) -> None:
        results.append(client.run(["echo", str(number)], cwd="/").stdout)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=int) == [f"{i}\n" for i in range(20)]


def test_ping(client: AgentClient) -> None:
    assert client.ping() < 5


def test_nothing_is_asked_of_a_guest_that_is_not_up(port: tuple[AgentClient, socket.socket]) -> None:
    with pytest.raises(GuestError, match="not up"):
        port[0].run(["true"])
    with pytest.raises(GuestError, match="did not start within"):
        port[0].wait_ready(0)


def test_a_restart_ends_what_ran_and_serves_again(port: tuple[AgentClient, socket.socket]) -> None:
    client, end = port
    first = start_agent(end)
    client.wait_ready(20)
    process = client.popen(["sleep", "1000"], cwd="/")
    first.kill()
    first.wait()
    end.send(guest_agent.frame(guest_agent.STDOUT, 1, bytes(500))[:300])  # the guest died in the middle of a frame
    second = start_agent(end)
    try:
        client.wait_ready(20, after_boots=1)
        with pytest.raises(GuestError, match="restarted"):
            process.wait(5)
        assert client.run(["echo", "again"], cwd="/").stdout == "again\n"
    finally:
        second.kill()
        second.wait()
        os.kill(process.pid, signal.SIGKILL)


def test_the_end_of_the_machine_ends_calls(port: tuple[AgentClient, socket.socket]) -> None:
    client, end = port
    agent = start_agent(end)
    client.wait_ready(20)
    process = client.popen(["sleep", "1000"], cwd="/")
    agent.kill()
    agent.wait()
    end.shutdown(socket.SHUT_RDWR)
    with pytest.raises(GuestError, match="ended"):
        process.wait(5)
    assert process.stdout.read_all() == b""
    os.kill(process.pid, signal.SIGKILL)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_fields_survive_the_trip(fields: list[bytes]) -> None:
    assert guest_agent.unpack_fields(guest_agent.pack_fields(fields)) == fields


@given(st.binary(max_size=400))
def test_any_bytes_as_fields_give_fields_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        guest_agent.unpack_fields(data)


@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.integers(1, 255), st.integers(0, 65535), st.binary(max_size=80)), max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_frames_come_out_however_the_stream_is_cut(
    leftover: bytes, frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = leftover.replace(SYNC, b"") + SYNC + b"".join(guest_agent.frame(*f) for f in frames)
    splitter = guest_agent.Splitter(SYNC)
    out: list[tuple[int, int, bytes]] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        out += splitter.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    if SYNC not in stream[len(stream) - sum(len(guest_agent.frame(*f)) for f in frames) :]:
        assert out == [(0, 0, b""), *frames]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_never_break_the_splitter(chunks: list[bytes]) -> None:
    splitter = guest_agent.Splitter(SYNC)
    splitter.feed(SYNC)
    for chunk in chunks:
        splitter.feed(chunk)
    # whatever came, a sync word gets the stream going again
    assert splitter.feed(SYNC + guest_agent.frame(guest_agent.PING, 3, b"x"))[-1] == (guest_agent.PING, 3, b"x")


class Hostile:
    """A guest that answers the host's one request with what it likes."""

    def __init__(self, end: socket.socket, answer: Callable[[int], Iterator[bytes]]) -> None:
        self._end, self._answer = end, answer
        self.sent = 0
        end.sendall(SYNC + ready(b"id"))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        splitter = guest_agent.Splitter(SYNC)
        while True:
            for kind, channel, _ in splitter.feed(self._end.recv(4096)):
                if kind in (guest_agent.RUN, guest_agent.GET):
                    with contextlib.suppress(OSError):
                        for frame in self._answer(channel):
                            self._end.sendall(frame)
                            self.sent += len(frame)
                    return


def test_a_guest_that_sends_more_than_was_asked_for_fills_nothing(
    port: tuple[AgentClient, socket.socket], tmp_path: Path
) -> None:
    client, end = port

    def flood(channel: int) -> Iterator[bytes]:
        yield guest_agent.frame(guest_agent.STARTED, channel, (0o4777).to_bytes(4, "big"))
        for _ in range(1000):
            yield guest_agent.frame(guest_agent.STDOUT, channel, bytes(30_000))

    hostile = Hostile(end, flood)
    client.wait_ready(20)
    with pytest.raises(OSError, match="more than 100000 bytes came"):
        client.copy_out("/etc/hostname", tmp_path / "hostname", max_bytes=100_000)
    hostile.thread.join(20)  # all of it is taken off the wire, and dropped
    assert hostile.sent > 30_000_000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("frames", [1, 3_000])
def test_small_frames_take_no_more_room_than_their_bytes(port: tuple[AgentClient, socket.socket], frames: int) -> None:
    client, end = port

    def drizzle(channel: int) -> Iterator[bytes]:
        yield guest_agent.frame(guest_agent.STARTED, channel, bytes(4))
        for _ in range(frames):
            yield guest_agent.frame(guest_agent.STDOUT, channel, b"x") * 100
        yield guest_agent.frame(guest_agent.EXIT, channel, bytes(4))

    Hostile(end, drizzle)
    client.wait_ready(20)
    process = client.popen(["true"])
    assert process.wait(20) == 0
    assert sys.getsizeof(process.stdout._data) <= 1000 + 2 * 100 * frames
    assert process.stdout.read_all() == b"x" * 100 * frames


@pytest.mark.parametrize("number", [b"99999999999999999999999", b"-5", b"2"])
def test_why_a_guest_refuses_is_shown_without_what_a_terminal_would_obey(
    port: tuple[AgentClient, socket.socket], number: bytes
) -> None:
    client, end = port

    def refuse(channel: int) -> Iterator[bytes]:
        yield guest_agent.frame(guest_agent.FAILED, channel, guest_agent.pack_fields([number, b"\x1b]0;title\x07 no"]))

    Hostile(end, refuse)
    client.wait_ready(20)
    with pytest.raises(OSError, match=r"\\x1b\]0;title\\x07 no") as caught:
        client.popen(["true"])
    assert os.strerror(caught.value.errno or 0)


def test_garbage_from_a_guest_is_counted_not_believed(port: tuple[AgentClient, socket.socket]) -> None:
    client, end = port
    end.send(
        SYNC
        + guest_agent.frame(guest_agent.READY, 0, b"\xff\xff\xff\xff")
        + guest_agent.frame(guest_agent.EXIT, 77, b"")
        + guest_agent.frame(99, 1)
    )
    end.send(ready(b"id"))
    assert client.wait_ready(20).kernel_release == "6.19"
    assert client.unexpected_frames == 3


def test_what_was_printed_before_a_panic_is_passed_on_first(port: tuple[AgentClient, socket.socket]) -> None:
    client, theirs = port
    theirs.sendall(SYNC + ready(b"boot"))
    client.wait_ready(20)
    got: list[bytes] = []
    panic = KernelPanic("g9", "Kernel panic - not syncing: X", "trace", "/console")

    def slow(data: bytes) -> None:
        if not got:
            client.panicked(panic)
            theirs.sendall(guest_agent.frame(guest_agent.STDOUT, 1, b"second"))
        got.append(data)

    answers = threading.Timer(0.2, theirs.sendall, [guest_agent.frame(guest_agent.STARTED, 1, bytes(4))])
    answers.start()
    process = client.popen(["x"], stdout=slow)
    theirs.sendall(guest_agent.frame(guest_agent.STDOUT, 1, b"first"))
    with pytest.raises(KernelPanic, match="not syncing: X"):
        process.wait(20)
    assert got == [b"first", b"second"]
    with pytest.raises(KernelPanic):
        client.run(["true"])
    with pytest.raises(KernelPanic):
        client.wait_ready(20, after_boots=1)
    theirs.sendall(SYNC + ready(b"boot"))
    end_s = time.monotonic() + 20
    while client.boots < 2:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert client.wait_ready(20, after_boots=1).pid == 1
