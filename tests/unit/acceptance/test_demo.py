"""The demo over guests that answer from a table: what it reads, what it prints, how it fails."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from acceptance import demo
from tests.unit.cli.fakes import Answer, FakeLab
from vhca.lab import Progress

DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				20.99.1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			port_lid:		2
			port_lmc:		0x00
			link_layer:		InfiniBand
"""
PINGPONG = """\
  local address:  LID 0x0002, QPN 0x000011, PSN 0x5d8c35, GID ::
  remote address: LID 0x0003, QPN 0x000011, PSN 0xa2c1f0, GID ::
1638400 bytes in 0.25 seconds = 52.43 Mbit/sec
200 iters in 0.25 seconds = 1250.00 usec/iter
"""
BANDWIDTH = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      300              40.12              38.75  		     0.000620
---------------------------------------------------------------------------------------
"""
LATENCY = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%
 8       200          310.50         900.00       402.25  	       410.00     	30.00		700.00
"""


def healthy(name: str, argv: Sequence[str]) -> tuple[int | None, str]:
    program = argv[0]
    if program == "ibv_devinfo":
        return 0, DEVINFO
    if program.endswith("pingpong"):
        return 0, PINGPONG
    if program.endswith("_bw"):
        return 0, BANDWIDTH
    if program.endswith("_lat"):
        return 0, LATENCY
    return 0, ""


def _run(answer: Answer, tmp_path: Path) -> tuple[str, FakeLab]:
    lab = FakeLab(answer, tmp_path)
    try:
        return demo.run(lab, Progress(quiet=True), lambda: None, io.StringIO()), lab  # type: ignore[arg-type]
    except demo.DemoFailed as failure:
        return str(failure), lab


def test_a_table_of_everything_that_ran(tmp_path: Path) -> None:
    text, lab = _run(healthy, tmp_path)
    for program in ("ibv_devinfo", *(exchange.program for exchange in demo.EXCHANGES), "kernel log"):
        assert program in text
    assert "1250 us per round, 52.4 Mbit/s" in text
    assert "38.8 MiB/s, 620 msg/s" in text
    assert "402 us typical, 310 us least" in text
    assert "ACTIVE, LID 2, SM 1, MTU 4096" in text
    assert "6 packets, 2.0 MiB sent, all received" in text
    assert f"logs: {tmp_path}" in text
    assert lab.stops == [False]
    table = text.split("\n\n")[0].splitlines()
    column = table[0].index("result")
    assert {line[column : column + 2] for line in table[2:]} == {"ok"}


@pytest.mark.parametrize(
    ("program", "answer", "words"),
    [
        ("ib_read_bw", (1, "Completion with error at client"), ["FAILED at: ib_read_bw g1 -> g0", "Completion with"]),
        ("ib_read_bw", (0, "nothing of use"), ["FAILED at: ib_read_bw", "printed no result"]),
        ("ibv_devinfo", (0, DEVINFO.replace("ACTIVE", "INIT")), ["FAILED at: ibv_devinfo on g0", "PORT_INIT"]),
        ("dmesg", (0, "mlx5_core: health poll failed"), ["FAILED at: kernel log of g0", "health poll"]),
    ],
)
def test_a_failure_names_its_step_and_shows_the_logs(
    program: str, answer: tuple[int, str], words: list[str], tmp_path: Path
) -> None:
    def failing(name: str, argv: Sequence[str]) -> tuple[int | None, str]:
        return answer if argv[0] == program else healthy(name, argv)

    text, lab = _run(failing, tmp_path)
    for word in [*words, "log of card h0", "h0: last command", f"the logs of this run are in {tmp_path}"]:
        assert word in text
    assert lab.stops == [True]


def test_a_packet_that_did_not_arrive_is_a_failure(tmp_path: Path) -> None:
    lab = FakeLab(healthy, tmp_path)
    lab.hcas[0].count = {"tx_packets": 9}
    with pytest.raises(demo.DemoFailed, match="sent 12 packets"):
        demo.run(lab, Progress(quiet=True), lambda: None, io.StringIO())  # type: ignore[arg-type]


def test_a_port_that_does_not_come_up_is_the_step_that_failed(tmp_path: Path) -> None:
    def failing(name: str, argv: Sequence[str]) -> tuple[int | None, str]:
        return (1, "2: INIT\n") if "ACTIVE" in argv[-1] else healthy(name, argv)

    text, _ = _run(failing, tmp_path)
    assert "FAILED at: wait until both ports are ACTIVE" in text
    assert "2: INIT" in text


def test_a_server_that_does_not_listen_is_said(tmp_path: Path) -> None:
    def failing(name: str, argv: Sequence[str]) -> tuple[int | None, str]:
        return (1, "") if "/proc/net/tcp" in argv[-1] else healthy(name, argv)

    text, _ = _run(failing, tmp_path)
    assert "FAILED at: ibv_rc_pingpong" in text
    assert "the server did not listen" in text
