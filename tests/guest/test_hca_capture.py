"""What two guests really exchanged, recorded on the cables and read by a decoder that shares no code with vhca."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.guest.cards import moved
from vhca.lab import Guest, Lab
from vhca.lab.cache import Cache
from vhca.lab.demo import DEVICE, Exchange, run_exchange, wait_port_active
from vhca.lab.tshark import Tshark, frame_trouble, ready_tshark

ROUNDS = 20
SIZE = 10000
MTU = 4096
FIELDS = (
    "frame.interface_name",
    "frame.packet_flags_direction",
    "infiniband.lrh.vl",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "infiniband.reth.dmalen",
    "infiniband.invariant.crc",
    "_ws.malformed",
)
OUTBOUND = 2
RDMA_WRITE = {"first": 0x06, "middle": 0x07, "last": 0x08, "only": 0x0A}


@pytest.fixture(scope="module")
def tshark() -> Tshark:
    found = ready_tshark(Cache())
    if found is None:
        pytest.skip("no tshark on the host or in the cache (vhca fetch): no independent decoder")
    return found


def test_a_run_decodes_frame_by_frame(
    lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    server, client = guest_pair
    for guest in guest_pair:
        wait_port_active(guest)
    capture = tmp_path / "run.pcapng"
    arguments = ("-d", DEVICE, "-F", "-s", str(SIZE), "-n", str(ROUNDS))
    with moved(lab.hcas[0]) as at_server, moved(lab.hcas[1]) as at_client, lab.fabric.capture(capture):
        for program, port in (("ib_write_bw", 18800), ("ib_read_bw", 18801), ("ib_send_bw", 18802)):
            for end in run_exchange(server, client, Exchange(program, arguments, "", str), port):
                assert end.returncode == 0, end.stdout + end.stderr
        for end in run_exchange(
            server, client, Exchange("ibv_ud_pingpong", ("-d", DEVICE, "-n", "20"), "", str), 18803
        ):
            assert end.returncode == 0, end.stdout + end.stderr
    rows = tshark.fields(capture, *FIELDS)
    assert frame_trouble(rows) == []
    assert all(row["infiniband.invariant.crc"] for row in rows)
    data = [row for row in rows if int(row["infiniband.lrh.vl"], 0) != 15]
    for name, counted in (("h0", at_server), ("h1", at_client)):
        sent = [row for row in data if row["frame.interface_name"] == name and _outbound(row)]
        assert len(sent) == counted["tx_packets"] + counted["tx_ud_packets"], name
    opcodes = Counter(
        int(row["infiniband.bth.opcode"], 0) for row in data if row["frame.interface_name"] == "h1" and _outbound(row)
    )
    packets = -(-SIZE // MTU)
    assert opcodes[RDMA_WRITE["first"]] == opcodes[RDMA_WRITE["last"]] == ROUNDS
    assert opcodes[RDMA_WRITE["middle"]] == ROUNDS * (packets - 2)
    lengths = {
        int(row["infiniband.reth.dmalen"], 0)
        for row in data
        if row["infiniband.bth.opcode"] and int(row["infiniband.bth.opcode"], 0) == RDMA_WRITE["first"]
    }
    assert lengths == {SIZE}


def _outbound(row: dict[str, str]) -> bool:
    return int(row["frame.packet_flags_direction"], 0) == OUTBOUND
