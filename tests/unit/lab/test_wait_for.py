"""The guest's program `wait-for`, run by the host's shell."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from vhca.lab import image

SCRIPT = Path(image.__file__).with_name("guest_wait_for.sh")


def wait_for(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_command_line_is_repeated_until_it_succeeds(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    done = wait_for(f"echo again >> {tries}; wc -l < {tries} | grep -x 3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_the_last_output_is_shown_when_it_gives_up() -> None:
    done = wait_for("-t", "0", "echo the state is INIT; false")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "wait-for: after 0 s, still fails: echo the state is INIT; false\nthe state is INIT\n"


def test_a_command_that_does_not_end_is_given_up_too() -> None:
    done = wait_for("-t", "1", "echo waiting; sleep 600")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "waiting")


def test_a_listening_port_is_seen_and_a_closed_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert wait_for("-p", str(port)).returncode == 0
    done = wait_for("-t", "0", "-p", str(port))
    assert (done.returncode, done.stderr) == (1, f"wait-for: after 0 s, nothing listens at TCP port {port}\n")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("",),
        ("-t", "x", "true"),
        ("-t", "1.5", "true"),
        ("-p", "x"),
        ("-p", "1", "true"),
        ("a", "b"),
        ("-z", "true"),
    ],
)
def test_wrong_usage_is_told(words: tuple[str, ...]) -> None:
    done = wait_for(*words)
    assert done.returncode == 2
    assert "usage: wait-for" in done.stderr
