"""Programs between two guests that answer from a table: what is run, what is made of what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.unit.cli.fakes import Answer, FakeLab
from vhca.lab import CommandTimeout, Guest, LabError
from vhca.lab.perftest import (
    Exchange,
    bandwidth_figure,
    latency_figure,
    perftest,
    pingpong,
    pingpong_figure,
    run_exchange,
    wait_port_active,
)


def guests(answer: Answer) -> tuple[FakeLab, Guest, Guest]:
    """Two stand-ins, and the same as guests: server and client."""
    lab = FakeLab(answer, Path())
    return lab, cast(Guest, lab.guests[0]), cast(Guest, lab.guests[1])


def well(_name: str, _argv: Sequence[str]) -> tuple[int | None, str]:
    return 0, ""


@pytest.mark.parametrize(
    ("exchange", "command", "figure"),
    [
        (perftest("ib_read_lat", 8, 9), "ib_read_lat -d mlx5_0 -F -s 8 -n 9", latency_figure),
        (perftest("ib_write_bw", 10, 2, "-Q", "1"), "ib_write_bw -d mlx5_0 -F -s 10 -n 2 -Q 1", bandwidth_figure),
        (perftest("ib_send_bw", 10, 2, device="rxe0"), "ib_send_bw -d rxe0 -F -s 10 -n 2", bandwidth_figure),
        (pingpong("srq", 256, 4, "-q", "3"), "ibv_srq_pingpong -d mlx5_0 -s 256 -n 4 -q 3", pingpong_figure),
    ],
)
def test_a_program_is_given_its_words(exchange: Exchange, command: str, figure: object) -> None:
    assert [exchange.program, *exchange.arguments] == command.split()
    assert exchange.figure is figure


@pytest.mark.parametrize(("size_bytes", "said"), [(8, "3 x 8 B"), (4096, "3 x 4 KiB"), (5000, "3 x 5000 B")])
def test_a_load_is_said_for_people(size_bytes: int, said: str) -> None:
    assert perftest("ib_write_bw", size_bytes, 3).load == pingpong("rc", size_bytes, 3).load == said


def test_the_client_is_told_the_server_and_both_the_tcp_port() -> None:
    lab, server, client = guests(well)
    served, asked = run_exchange(server, client, pingpong("rc", 64, 1), 20001)
    assert served.args == ["ibv_rc_pingpong", "-d", "mlx5_0", "-s", "64", "-n", "1", "-p", "20001"]
    assert asked.args == [*served.args, "g0"]
    assert lab.guests[0].processes[0].signals == []


def test_a_server_whose_client_failed_is_ended() -> None:
    lab, server, client = guests(lambda _name, argv: (1 if argv[-1] == "g0" else 0, ""))
    assert run_exchange(server, client, pingpong("rc", 64, 1))[1].returncode == 1
    assert lab.guests[0].processes[0].signals == [15]


def test_a_server_that_does_not_listen_has_no_client() -> None:
    _, server, client = guests(lambda _name, argv: (1 if "/proc/net/tcp" in argv[-1] else 0, ""))
    served, asked = run_exchange(server, client, pingpong("rc", 64, 1))
    assert (served.returncode, asked.returncode) == (-9, -1)
    assert "did not listen" in asked.stderr


def test_no_server_is_left_when_a_client_takes_too_long() -> None:
    def late(_name: str, argv: Sequence[str]) -> tuple[int | None, str]:
        if argv[-1] == "g0":
            raise CommandTimeout("late")
        return 0, ""

    lab, server, client = guests(late)
    with pytest.raises(CommandTimeout):
        run_exchange(server, client, pingpong("rc", 64, 1))
    assert lab.guests[0].processes[0].signals == [9]


def test_a_port_that_does_not_come_up_is_named_with_its_state() -> None:
    _, server, _ = guests(lambda _name, _argv: (1, "2: INIT\n"))
    with pytest.raises(LabError, match="g0: the port of rxe0 is not ACTIVE after 5 s: 2: INIT"):
        wait_port_active(server, 5.0, "rxe0")


@pytest.mark.parametrize("read", [pingpong_figure, bandwidth_figure, latency_figure])
@pytest.mark.parametrize("output", ["", "BW average", "t_typical\n", "BW average\n1 2\n", "t_typical\n1 2 3 4 nan 6\n"])
def test_output_without_a_result_is_refused(read: object, output: str) -> None:
    with pytest.raises(ValueError, match="no result"):
        read(output)  # type: ignore[operator]
