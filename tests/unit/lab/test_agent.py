"""The service port: the real guest agent run as a process of this host, the real client at the other end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.lab import guest_agent as wire
from vhca.lab.agent_client import AgentClient
from vhca.lab.errors import CommandTimeout, GuestError

SYNC = bytes(range(16))
AGENT = Path(wire.__file__)


def start_agent(end: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", str(AGENT), f"fd:{end.fileno()}", SYNC.hex()]
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
    data = os.urandom(3 * wire.WINDOW + 17)
    process = client.popen(["cat"], cwd="/")
    process.write(data)
    process.close_stdin()
    assert process.stdout.read_all() == data
    assert process.wait(20) == 0


def test_input_that_nobody_reads_is_no_error(client: AgentClient) -> None:
    assert client.run(["true"], stdin=bytes(2 * wire.WINDOW), cwd="/").returncode == 0


def test_signals_reach_the_whole_command(client: AgentClient) -> None:
    process = client.popen(["sh", "-c", "sh -c 'echo $$; sleep 1000; true'; true"], cwd="/")
    inner = int(next(iter(process.stdout)))
    process.terminate()
    assert process.wait(20) == -signal.SIGTERM
    with pytest.raises(CommandTimeout, match="said"):
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
    data = os.urandom(600_000)
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
    end.send(wire.frame(wire.STDOUT, 1, bytes(500))[:300])  # the guest died in the middle of a frame
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
    assert wire.unpack_fields(wire.pack_fields(fields)) == fields


@given(st.binary(max_size=400))
def test_any_bytes_as_fields_give_fields_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        wire.unpack_fields(data)


@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.integers(1, 255), st.integers(0, 65535), st.binary(max_size=80)), max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_frames_come_out_however_the_stream_is_cut(
    leftover: bytes, frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = leftover.replace(SYNC, b"") + SYNC + b"".join(wire.frame(*f) for f in frames)
    splitter = wire.Splitter(SYNC)
    out: list[tuple[int, int, bytes]] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        out += splitter.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    if SYNC not in stream[len(stream) - sum(len(wire.frame(*f)) for f in frames) :]:
        assert out == [(0, 0, b""), *frames]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_never_break_the_splitter(chunks: list[bytes]) -> None:
    splitter = wire.Splitter(SYNC)
    splitter.feed(SYNC)
    for chunk in chunks:
        splitter.feed(chunk)
    # whatever came, a sync word gets the stream going again
    assert splitter.feed(SYNC + wire.frame(wire.PING, 3, b"x"))[-1] == (wire.PING, 3, b"x")


def test_garbage_from_a_guest_is_counted_not_believed(port: tuple[AgentClient, socket.socket]) -> None:
    client, end = port
    end.send(SYNC + wire.frame(wire.READY, 0, b"\xff\xff\xff\xff") + wire.frame(wire.EXIT, 77, b"") + wire.frame(99, 1))
    end.send(wire.frame(wire.READY, 0, wire.pack_fields([b"id", b"6.19", b"1"])))
    assert client.wait_ready(20).kernel_release == "6.19"
    assert client.unexpected_frames == 3
