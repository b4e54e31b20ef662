"""The wire, seen by a decoder that is not ours: a recorded run must be InfiniBand to tshark."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.guest.cards import load, moved, unload, wait_for
from tests.support.wire_crc import whole_packets, wrong_crcs
from vhca.fabric import Fault
from vhca.lab import Cache, Guest, Lab, Progress
from vhca.lab.perftest import DEVICE, perftest, pingpong, run_exchange, wait_port_active
from vhca.lab.tshark import Tshark, find_tshark, frame_trouble

_ports = iter(range(21000, 22000))

EXCHANGES = [
    perftest("ib_write_bw", 10000, 20),
    perftest("ib_read_bw", 10000, 20),
    pingpong("rc", 1500, 10),
    pingpong("ud", 700, 10),
]


@pytest.fixture
def tshark() -> Tshark:
    return find_tshark(Cache(), Progress(quiet=True))  # where guests boot, it is in the cache or can be fetched


def test_a_recorded_run_decodes(lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path) -> None:
    for guest in guest_pair:
        wait_port_active(guest)
    capture = tmp_path / "run.pcapng"
    with lab.fabric.capture(capture, both_ends=True), moved(lab.hcas[0]) as h0, moved(lab.hcas[1]) as h1:
        for exchange in EXCHANGES:
            ends = run_exchange(*guest_pair, exchange, next(_ports))
            assert [end.returncode for end in ends] == [0, 0], ends
        guest_pair[0].run(["sminfo"], check=True)
    rows = tshark.fields(capture, "_ws.malformed", "infiniband.bth.opcode")
    assert frame_trouble(rows) == []
    opcodes = Counter(row["infiniband.bth.opcode"] for row in rows)
    assert opcodes[""] == 0  # all of it is InfiniBand
    frames = len(rows)
    # every packet crosses two cables, that of its sender and that of its receiver
    sent = sum(card[f"tx_{kind}packets"] for card in (h0, h1) for kind in ("", "ud_"))
    assert frames >= 2 * sent
    # 20 WRITEs of three packets: RC WRITE First, Middle, Last; as many READ responses; 20 requests
    for opcode in (6, 7, 8, 13, 14, 15, 12):
        assert opcodes[str(opcode)] == 2 * 20, opcode
    assert opcodes["0"] == opcodes["2"] == 2 * 20  # RC SEND First, Last
    assert opcodes["100"] >= 2 * 20  # UD SEND Only: the ping-pong's, and management's
    assert opcodes["17"] > 0  # RC Acknowledge


def test_what_a_guest_writes_to_itself_is_recorded(
    lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    guest = guest_pair[0]
    wait_port_active(guest)
    command = f"ib_write_bw -d {DEVICE} -F -s 10000 -n 5"
    script = f"{command} >/dev/null & sleep 2; {command} 127.0.0.1"
    with lab.fabric.capture(tmp_path / "self.pcapng"):
        guest.run(["sh", "-c", script], check=True)
    rows = tshark.fields(tmp_path / "self.pcapng", "_ws.malformed", "infiniband.bth.opcode", "frame.interface_name")
    assert frame_trouble(rows) == []
    seen = Counter(row["infiniband.bth.opcode"] for row in rows if row["frame.interface_name"] == "h0-loopback")
    assert seen["6"] == seen["7"] == seen["8"] == 5


def test_the_third_write_is_lost_as_the_page_says(
    lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    """The example of docs/fabric.md, as it is written there: the packet is where it was sent, and sent again."""
    page = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text("utf-8")
    (code,) = re.findall(r"^## Faults$.*?^```python lab\n(.*?)^```$", page, re.S | re.M)
    before, traffic, after = code.partition(code.splitlines(keepends=True)[3])
    assert traffic.startswith("...")
    for guest in guest_pair:
        wait_port_active(guest)
    names: dict[str, object] = {"lab": lab}
    with lab.fabric.capture(tmp_path / "run.pcapng", both_ends=True), moved(lab.hcas[1]) as card:
        exec(before, names)
        exchange = perftest("ib_write_bw", 10000, 20)
        ends = run_exchange(*guest_pair, exchange, next(_ports))
        assert [end.returncode for end in ends] == [0, 0], ends
        rule = names["rule"]
        assert isinstance(rule, Fault)
        assert rule.hits == 1
        exec(after, names)
    assert lab.fabric.faults("h1") == []
    assert card["retransmits"] > 0
    fields = ("infiniband.bth.opcode", "infiniband.bth.psn", "frame.interface_name")
    rows = tshark.fields(tmp_path / "run.pcapng", *fields)
    sent, arrived = (
        [row[fields[1]] for row in rows if row[fields[2]] == name and row[fields[0]] in ("6", "7", "8")]
        for name in ("h1", "h0")
    )
    lost = sent[2]
    assert sent.count(lost) == 2
    assert arrived.count(lost) == 1
    assert len(sent) == len(arrived) + 1


def test_a_write_of_64_kib_is_sixteen_packets_and_an_acknowledgement(
    lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    """What docs/how-a-write-travels.md says of captures; the two ends write in turns, one WRITE at a time."""
    for guest in guest_pair:
        wait_port_active(guest)
    exchange = perftest("ib_write_lat", 65536, 10)
    with lab.fabric.capture(tmp_path / "run.pcapng"):
        ends = run_exchange(*guest_pair, exchange, next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends
    fields = ("frame.interface_name", "infiniband.bth.opcode", "infiniband.bth.psn")
    rows = [tuple(row[name] for name in fields) for row in tshark.fields(tmp_path / "run.pcapng", *fields)]
    firsts = [int(psn) for name, opcode, psn in rows if (name, opcode) == ("h1", "6")]
    assert len(firsts) == 10
    for first in firsts:
        message = {str(first + number & 0xFFFFFF) for number in range(16)}
        sent = [opcode for name, opcode, psn in rows if name == "h1" and psn in message and opcode in ("6", "7", "8")]
        assert sent == ["6", *["7"] * 14, "8"]
        answers = [psn for name, opcode, psn in rows if (name, opcode) == ("h0", "17") and psn in message]
        assert answers == [str(first + 15 & 0xFFFFFF)]


def test_bring_up_ip_connections_and_rdma_with_what_the_cards_do(
    lab: Lab, guest_pair: tuple[Guest, Guest], tshark: Tshark, tmp_path: Path
) -> None:
    """The whole story in one capture: tshark reads every frame, every CRC is right, and records stand in order."""
    server, client = guest_pair
    unload(server)
    path = tmp_path / "story.pcapng"
    with lab.fabric.capture(path, records=True) as capture:
        load(server)
        wait_port_active(client)
        for guest in guest_pair:
            script = f"modprobe ib_ipoib && ip addr replace 10.9.1.{guest.index + 1}/24 dev ib0 && ip link set ib0 up"
            guest.run(["sh", "-c", script], check=True)
        client.run(["ping", "-c", "3", "-W", "10", "10.9.1.1"], check=True)
        listening = server.popen(["rping", "-s", "-a", "10.9.1.1", "-p", "7175", "-C", "3", "-S", "512"])
        wait_for(lambda: "LISTEN" in server.run(["rdma", "resource", "show", "cm_id"], check=True).stdout)
        done = client.run(["rping", "-c", "-a", "10.9.1.1", "-p", "7175", "-C", "3", "-V", "-S", "512"])
        assert done.returncode == 0, done.stderr
        listening.wait(20)
        ends = run_exchange(*guest_pair, perftest("ib_write_bw", 10000, 20), next(_ports))
        assert [end.returncode for end in ends] == [0, 0], ends
    assert (capture.dropped, capture.trouble) == (0, "")
    names = ("_ws.malformed", "frame.interface_name", "frame.time_epoch", "infiniband.bth.opcode")
    rows = tshark.fields(path, *names, "json.member_with_value", "infiniband.mad.mgmtclass", "infiniband.cm.req")
    assert frame_trouble(rows) == []
    assert len(rows) == capture.packets
    times = [row["frame.time_epoch"] for row in rows]
    assert times == sorted(times)
    packets = [row for row in rows if row["infiniband.bth.opcode"]]
    records = [row for row in rows if row["json.member_with_value"]]
    assert len(packets) + len(records) == len(rows)
    assert {row["frame.interface_name"] for row in records} == {"h0-card", "h1-card"}
    # CRCs, by an implementation of the tests
    assert [trouble for trouble in map(wrong_crcs, whole_packets(path.read_bytes())) if trouble] == []
    # bring-up, IP, connections, RDMA: all of it is there
    classes = Counter(row["infiniband.mad.mgmtclass"] for row in packets)
    assert all(classes[name] for name in ("0x81", "0x03", "0x07")), classes
    assert any(row["infiniband.cm.req"] for row in packets)
    assert sum(1 for row in packets if row["infiniband.bth.opcode"] == "8") >= 20
    words = Counter(member for row in records for member in row["json.member_with_value"].split(","))
    for member in (
        "op:ENABLE_HCA", "op:CREATE_EQ", "op:CREATE_CQ", "op:CREATE_MKEY", "op:RTR2RTS_QP", "status:OK",
        "queue:SQ", "queue:CQ", "queue:EQ", "record:send", "record:receive", "record:completion", "record:event",
        "record:interrupt", "opcode:RDMA_WRITE", "opcode:RESP_SEND", "type:COMP", "type:CMD",
    ):  # fmt: skip
        assert words[member], member
    assert words["opcode:RDMA_WRITE"] >= 20
