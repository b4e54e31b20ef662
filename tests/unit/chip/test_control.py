"""The control socket: whose it is, what clients can do to it and to each other, and what orders are answered."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fabric.test_capture import blocks
from vhca.chip import control, orders
from vhca.chip.control import MAX_CLIENTS, MAX_LINE_BYTES, SOCKET_NAME, ControlSocket
from vhca.chip.orders import MAX_RULES, refusal
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.fabric import Fault
from vhca.wire.packet import RC, SEND, Packet, Route


def connect(path: Path, timeout_s: float = 20.0) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    sock.settimeout(timeout_s)
    return sock


def read_line(sock: socket.socket) -> bytes:
    heard = b""
    while not heard.endswith(b"\n"):
        data = sock.recv(1)
        if not data:
            break
        heard += data
    return heard


def say(sock: socket.socket, line: bytes) -> bytes:
    sock.sendall(line + b"\n")
    return read_line(sock).removesuffix(b"\n")


def until(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def echo(folder: Path, answer: control.Answer = lambda line: line.upper()) -> Iterator[ControlSocket]:
    server = ControlSocket(folder / "c.sock", answer, refusal)
    server.open()
    server.start()
    try:
        yield server
    finally:
        server.stop(5)


# ---- the socket ----


def test_it_is_its_owners_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with echo(tmp_path) as server:
            assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not server.path.exists()


def test_lines_are_answered_in_order_however_they_are_cut(tmp_path: Path) -> None:
    with echo(tmp_path) as server, connect(server.path) as sock:
        sock.sendall(b"on")
        time.sleep(0.05)
        sock.sendall(b"e\ntwo\nthr")
        assert (read_line(sock), read_line(sock)) == (b"ONE\n", b"TWO\n")
        sock.sendall(b"ee\n")
        assert read_line(sock) == b"THREE\n"


def test_half_a_line_is_no_order(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def note(line: bytes) -> bytes:
        heard.append(line)
        return b""

    with echo(tmp_path, note) as server, connect(server.path) as sock:
        sock.sendall(b"whole\nhal")
        sock.shutdown(socket.SHUT_WR)
        assert read_line(sock) == b"\n"
        assert sock.recv(1) == b""
    assert heard == [b"whole"]


def test_the_longest_line_is_taken_and_a_longer_one_refused(tmp_path: Path) -> None:
    with echo(tmp_path) as server:
        with connect(server.path) as sock:
            line = b"a" * (MAX_LINE_BYTES - 1)
            assert say(sock, line) == line.upper()
        with connect(server.path) as sock:
            sock.sendall(b"a" * MAX_LINE_BYTES)
            assert b"at most 4096 bytes" in read_line(sock)
            assert sock.recv(1) == b""


def test_a_silent_or_trickling_client_is_hung_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLIENT_TIMEOUT_S", 0.3)
    with echo(tmp_path) as server:
        with connect(server.path) as silent:
            assert silent.recv(1) == b""
        began = time.monotonic()
        with connect(server.path) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < began + 10:
                sock.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() < began + 5


def test_who_does_not_take_his_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLIENT_TIMEOUT_S", 1.0)
    large = b"x" * (4 << 20)
    with (
        echo(tmp_path, lambda line: large if line == b"large" else line) as server,
        connect(server.path) as slow,
        connect(server.path) as other,
    ):
        slow.sendall(b"large\n")
        time.sleep(0.1)
        began = time.monotonic()
        assert say(other, b"quick") == b"quick"
        assert time.monotonic() < began + 0.7
        until(lambda: len(server._threads) == 1)  # both are gone: one too slow, one silent
        taken = 0
        while data := slow.recv(1 << 20):
            taken += len(data)
        assert taken < len(large)


def test_clients_beyond_the_limit_are_refused_until_one_goes(tmp_path: Path) -> None:
    with echo(tmp_path) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.path)) for _ in range(MAX_CLIENTS)]
        for sock in clients:
            assert say(sock, b"me") == b"ME"
        with connect(server.path) as late:
            assert b"try again" in read_line(late)
            assert late.recv(1) == b""
        clients[0].close()
        until(lambda: len(server._threads) <= MAX_CLIENTS)
        with connect(server.path) as late:
            assert say(late, b"now") == b"NOW"


def test_orders_are_carried_out_one_at_a_time(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def answer(line: bytes) -> bytes:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        return line

    answers: list[bytes] = []

    def client(name: bytes) -> None:
        with connect(server.path) as sock:
            answers.extend(say(sock, b"%s %d" % (name, n)) for n in range(5))

    with echo(tmp_path, answer) as server:
        threads = [threading.Thread(target=client, args=(b"%d" % n,)) for n in range(MAX_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(answers) == sorted(b"%d %d" % (n, m) for n in range(MAX_CLIENTS) for m in range(5))
    assert most == 1


def test_orders_take_a_tenth_of_the_time_at_most(tmp_path: Path) -> None:
    worked_s = 0.0

    def answer(line: bytes) -> bytes:
        nonlocal worked_s
        began_s = time.monotonic()
        time.sleep(0.01)
        worked_s += time.monotonic() - began_s
        return line

    with echo(tmp_path, answer) as server, connect(server.path) as sock:
        began_s = time.monotonic()
        for _ in range(6):
            say(sock, b"again")
        # behind the last there was no pause yet
        assert time.monotonic() - began_s >= worked_s + 5 * 0.01 * control.PAUSE_FACTOR


def test_stop_ends_waiting_clients_and_leaves_no_thread_or_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with echo(tmp_path) as server:
        clients = [connect(server.path) for _ in range(3)]
        assert say(clients[0], b"there?") == b"THERE?"
        server.stop(5)
        for sock in clients:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
            sock.close()
        assert not server._threads
        with pytest.raises(OSError, match="No such file"):
            connect(server.path)
        server.stop(5)
    assert len(os.listdir("/proc/self/fd")) == before


def test_stop_does_not_wait_for_an_order_without_end(tmp_path: Path) -> None:
    release = threading.Event()
    with echo(tmp_path, lambda line: b"%d" % release.wait(30)) as server, connect(server.path) as sock:
        sock.sendall(b"hang\n")
        time.sleep(0.1)
        began = time.monotonic()
        server.stop(0.3)
        assert time.monotonic() < began + 5
        release.set()
        until(lambda: not server._threads)


def test_a_socket_that_took_our_place_stays(tmp_path: Path) -> None:
    with echo(tmp_path) as server:
        server.path.unlink()
        with echo(tmp_path) as other:
            server.stop(5)
            with connect(other.path) as sock:
                assert say(sock, b"still") == b"STILL"


# ---- orders ----


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(2, tmp_path, RackConfig(logs=False)) as rack:
        yield rack


@pytest.fixture
def client(rack: Rack) -> Iterator[socket.socket]:
    with connect(rack.directory / SOCKET_NAME) as sock:
        yield sock


def ask(sock: socket.socket, order: str, **fields: Any) -> dict[str, Any]:
    answer = json.loads(say(sock, json.dumps({"order": order, **fields}).encode()))
    assert isinstance(answer, dict)
    assert len(answer) == 1
    return answer


def test_a_rack_s_control_socket_is_private_and_goes_with_it(tmp_path: Path) -> None:
    with Rack(1, tmp_path, RackConfig(logs=False)) as rack:
        assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
        with connect(tmp_path / SOCKET_NAME) as sock:
            shown = ask(sock, "show")["result"]
        assert (shown["pid"], shown["directory"], shown["capture"]) == (os.getpid(), str(tmp_path), None)
        assert [port["name"] for port in shown["ports"]] == list(rack.fabric.names())
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_killed_rack_s_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with Rack(1, tmp_path, RackConfig(logs=False)), connect(tmp_path / SOCKET_NAME) as sock:
        assert "result" in ask(sock, "show")


def test_cables_are_pulled_and_plugged(rack: Rack, client: socket.socket) -> None:
    assert ask(client, "link_down", cable="h1") == {"result": None}
    (plugged, pulled) = ask(client, "show")["result"]["ports"]
    assert (plugged["plugged"], pulled["plugged"], pulled["up"], pulled["state"]) == (True, False, False, "Down")
    assert not rack.loop.call(lambda: rack._subnet.ports["h1"].link.plugged)
    ask(client, "link_up", cable="h1")
    assert rack.loop.call(lambda: rack._subnet.ports["h1"].link.plugged)


def test_counters_of_all_or_of_one_card(rack: Rack, client: socket.socket) -> None:
    before = rack.fabric.counters().keys()  # a counter appears when it counts for the first time
    asked = ask(client, "counters")["result"].keys()
    assert before <= asked <= rack.fabric.counters().keys()
    assert {key.split(".")[0] for key in ask(client, "counters", card="h1")["result"]} == {"h1"}


def test_rules_inside_a_card(rack: Rack, client: socket.socket) -> None:
    text = "command CREATE_MKEY nth=3 status=NO_RES_ERR syndrome=0x1234"
    made = {"card": "h1", "names": ["h1"], "number": 1, "rule": text, "seen": 0, "hits": 0}
    assert ask(client, "card_fault_add", card="h1", rule=text)["result"] == made
    assert [rule.text for rule in rack.hcas[1].faults.rules()] == [text]
    rack.hcas[0].faults.add("command any lost")
    assert [rule["card"] for rule in ask(client, "card_fault_list")["result"]] == ["h0", "h1"]
    assert ask(client, "card_fault_list", card="h1")["result"] == [made]
    assert ask(client, "card_fault_remove", card="h1", number=1)["result"] == 1
    assert ask(client, "card_fault_remove")["result"] == 1
    assert rack.hcas[0].faults.rules() == ()
    for fields, said in (
        ({"rule": text}, "needs the field card"),
        ({"card": "h9", "rule": text}, "there is no card 'h9'; there are h0, h1"),
        ({"card": "h0", "rule": "command CREATE_MKY lost"}, "did you mean CREATE_MKEY"),
        ({"card": "h0"}, "the rule is empty"),
        ({"card": "h0", "rule": 3}, "rule must be a text"),
        ({"card": "h0", "rule": text, "x": 1}, "there is no field"),
    ):
        assert said in ask(client, "card_fault_add", **fields)["error"]
    assert "has no rule 7" in ask(client, "card_fault_remove", card="h0", number=7)["error"]
    assert "numbers are those of a card" in ask(client, "card_fault_remove", number=7)["error"]


def test_a_fault_is_the_one_that_was_described(rack: Rack, client: socket.socket) -> None:
    said = ask(
        client, "fault_add", cable="h1", action="delay", delay_ms=2.5, opcode="RDMA_WRITE", dest_qp=75, psn=9, skip=1,
        limit=2, probability=0.5, management=True, direction="to_card",
    )  # fmt: skip
    wanted = Fault(
        "delay", delay_ns=2_500_000, opcode="RDMA_WRITE", dest_qp=75, psn=9, skip=1, limit=2, probability=0.5,
        management=True,
    )  # fmt: skip
    assert rack.fabric.faults("h1") == [("to_card", wanted)]
    assert said == {"result": str(wanted)}
    ask(client, "fault_add", cable="h0", action="drop", nth=3)
    assert rack.fabric.faults("h0") == [("both", Fault("drop", nth=3))]
    listed = ask(client, "fault_list")["result"]
    assert [(rule["cable"], rule["direction"], rule["hits"]) for rule in listed] == [
        ("h0", "both", 0),
        ("h1", "to_card", 0),
    ]
    assert ask(client, "fault_clear", cable="h0") == {"result": 1}
    assert ask(client, "fault_clear") == {"result": 1}
    assert ask(client, "fault_list") == {"result": []}


def test_orders_add_a_bounded_number_of_rules(rack: Rack, client: socket.socket) -> None:
    for _ in range(MAX_RULES):
        assert "result" in ask(client, "fault_add", cable="h0", action="drop")
    assert "clear them first" in ask(client, "fault_add", cable="h0", action="drop")["error"]
    assert "result" in ask(client, "fault_add", cable="h1", action="drop")


def test_a_capture_is_started_shown_and_stopped(rack: Rack, client: socket.socket, tmp_path: Path) -> None:
    file = tmp_path / "run.pcapng"
    assert ask(client, "capture_start", file=str(file), ports=["h1"], both_ends=True) == {"result": None}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    told = {"file": str(file), "packets": 0, "dropped": 0, "trouble": "", "ended": False}
    assert ask(client, "show")["result"]["capture"] == told
    assert "stop it first" in ask(client, "capture_start", file=str(tmp_path / "b.pcapng"))["error"]
    assert ask(client, "capture_stop") == {"result": told | {"ended": True}}
    assert "no capture" in ask(client, "capture_stop")["error"]
    assert b"h1" in file.read_bytes()
    assert b"h0" not in file.read_bytes()


def test_a_capture_to_the_file_of_another_or_to_no_file_is_refused(
    rack: Rack, client: socket.socket, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.pcapng")
    with rack.fabric.capture(tmp_path / "own.pcapng"):
        (tmp_path / "link.pcapng").symlink_to("own.pcapng")
        for name, why in (
            ("own.pcapng", "another capture"),
            ("link.pcapng", "another capture"),
            ("pipe.pcapng", "no ordinary file"),
            ("none/a.pcapng", "No such file"),
            ("a.txt", "ends in .pcapng"),
            ("a\0.pcapng", "ends in .pcapng"),
            ("\ud800.pcapng", "file: "),
        ):
            assert why in ask(client, "capture_start", file=f"{tmp_path}/{name}")["error"], name
    assert "absolute" in ask(client, "capture_start", file="a.pcapng")["error"]
    assert "list of ports" in ask(client, "capture_start", file="/a.pcapng", ports=[1])["error"]
    assert '"h7"' in ask(client, "capture_start", file="/a.pcapng", ports=["h7"])["error"]


def test_a_capture_that_a_full_disk_ended_says_so(rack: Rack, client: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "a.pcapng").symlink_to("/dev/full")
    with rack.fabric.capture(tmp_path / "a.pcapng") as full:
        assert full.wait(20)
        assert full.trouble == "No space left on device"
    (tmp_path / "a.pcapng").unlink()
    ask(client, "capture_start", file=str(tmp_path / "a.pcapng"))
    (capture,) = rack._subnet.captures.running
    capture.writer.trouble = "No space left on device"
    assert ask(client, "capture_stop")["result"]["trouble"] == "No space left on device"


def until_eof(sock: socket.socket) -> bytes:
    heard = b""
    while data := sock.recv(1 << 16):
        heard += data
    return heard


def loop_packets(rack: Rack, count: int) -> None:
    """Let h0 send packets to itself."""
    port = rack._subnet.ports["h0"]
    for psn in range(count):
        rack.loop.call(lambda psn=psn: port.looped(Packet(Route(1, 1), RC, SEND, 0x11, psn, bytes(64))))  # type: ignore[misc]


def kinds(data: bytes) -> list[int]:
    return [kind for kind, _ in blocks(data)]


def test_a_live_capture_comes_at_once_and_ends_with_its_reader(rack: Rack) -> None:
    with connect(rack.directory / SOCKET_NAME) as sock:
        assert ask(sock, "capture_live", ports=["h0"]) == {"result": None}
        heard = b""
        for count in (1, 2, 3):
            loop_packets(rack, 1)
            while kinds(heard).count(6) < count:
                heard += sock.recv(1 << 16)
        assert kinds(heard) == [0x0A0D0D0A, 1, 1, 6, 6, 6]
        sock.shutdown(socket.SHUT_WR)
        heard += until_eof(sock)
    assert kinds(heard) == [0x0A0D0D0A, 1, 1, 6, 6, 6, 5, 5]
    assert not rack._subnet.captures.running


def test_a_live_capture_ends_when_its_reader_dies(rack: Rack) -> None:
    with connect(rack.directory / SOCKET_NAME) as sock:
        ask(sock, "capture_live")
        until(lambda: rack._subnet.captures.running)
    until(lambda: not rack._subnet.captures.running)
    until(lambda: len(rack._control._threads) == 1)


def test_a_live_capture_ends_at_its_limit_and_with_the_rack(rack: Rack) -> None:
    with connect(rack.directory / SOCKET_NAME) as sock, connect(rack.directory / SOCKET_NAME) as other:
        ask(sock, "capture_live", packets=2)
        ask(other, "capture_live")
        until(lambda: len(rack._subnet.captures.running) == 2)
        loop_packets(rack, 3)
        assert kinds(until_eof(sock)).count(6) == 2
        rack.stop()
        assert kinds(until_eof(other))[-1] == 5


def test_who_does_not_read_his_capture_holds_nobody_up(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhca.fabric.capture_writer.QUEUE_BYTES", 1 << 16)
    monkeypatch.setattr("vhca.fabric.capture.FLUSH_S", 0.1)
    with connect(rack.directory / SOCKET_NAME) as idle, connect(rack.directory / SOCKET_NAME) as client:
        ask(idle, "capture_live")
        until(lambda: rack._subnet.captures.running)
        (capture,) = rack._subnet.captures.running
        deadline = time.monotonic() + 20
        while not capture.dropped:
            loop_packets(rack, 50)
            assert time.monotonic() < deadline
        began = time.monotonic()
        assert "result" in ask(client, "counters")
        assert time.monotonic() < began + 5
        idle.shutdown(socket.SHUT_WR)
        until(lambda: not rack._subnet.captures.running)
        until(lambda: len(rack._control._threads) == 2)


def test_so_many_captures_are_read_live(rack: Rack) -> None:
    with contextlib.ExitStack() as stack:
        for count in range(orders.MAX_LIVE):
            sock = stack.enter_context(connect(rack.directory / SOCKET_NAME))
            assert ask(sock, "capture_live") == {"result": None}
            until(lambda count=count: len(rack._subnet.captures.running) == count + 1)
        client = stack.enter_context(connect(rack.directory / SOCKET_NAME))
        assert "are read live already" in ask(client, "capture_live")["error"]
        assert "result" in ask(client, "show")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"show",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'"show"',
        b"[" * 4000,
        b"9" * 4000,
        b"{}",
        b'{"order": null}',
        b'{"order": ["show"]}',
        b'{"order": "answer"}',
        b'{"order": "show", "card": "h0"}',
        b'{"order": "link_down"}',
        b'{"order": "link_down", "cable": 1}',
        b'{"order": "link_down", "cable": "h2"}',
        b'{"order": "link_down", "cable": "\\ud800"}',
        b'{"order": "link_down", "cable": "h0", "now": true}',
        b'{"order": "link_up", "card": "h0"}',
        b'{"order": "link_down", "cable": "switch/3"}',
        b'{"order": "link_down", "cable": "/"}',
        b'{"order": "link_flap", "cable": "h0", "times": 0}',
        b'{"order": "link_flap", "cable": "h0", "times": 10001}',
        b'{"order": "link_flap", "cable": "h0", "down": "2h"}',
        b'{"order": "link_flap", "cable": "h0", "up": -1}',
        b'{"order": "link_flap", "cable": "h0", "up": NaN}',
        b'{"order": "link_set", "cable": "h0", "rate": 5}',
        b'{"order": "link_set", "cable": "h0", "rate": "5"}',
        b'{"order": "link_set", "cable": "h0", "rate": "11Tbps"}',
        b'{"order": "link_set", "cable": "h0", "latency": "11s"}',
        b'{"order": "link_set", "cable": "h0", "latency": 1e400}',
        b'{"order": "link_set", "cable": "h0", "bit_error_rate": 0.5}',
        b'{"order": "fault_add", "cable": "h0"}',
        b'{"order": "fault_add", "cable": "h0", "action": "explode"}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "direction": "up"}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "opcode": "NONE"}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "probability": 2}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "probability": NaN}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "probability": true}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "nth": 0}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "nth": 1.5}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "nth": 1, "skip": 1}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "psn": 16777216}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "dest_qp": -1}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "management": 1}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "match": "x"}',
        b'{"order": "fault_add", "cable": "h0", "action": "drop", "delay_ms": 1}',
        b'{"order": "fault_add", "cable": "h0", "action": "delay"}',
        b'{"order": "fault_add", "cable": "h0", "action": "delay", "delay_ms": 1e9}',
        b'{"order": "fault_add", "cable": "h0", "action": "delay", "delay_ms": Infinity}',
        b'{"order": "schedule_start"}',
        b'{"order": "schedule_start", "file": "/"}',
        b'{"order": "schedule_start", "file": "/dev/zero"}',
        b'{"order": "schedule_start", "file": "/\\u0000"}',
        b'{"order": "schedule_start", "file": "/\\ud800"}',
        b'{"order": "schedule_start", "file": "/etc/passwd"}',
        b'{"order": "schedule_stop"}',
        b'{"order": "capture_start"}',
        b'{"order": "capture_start", "file": {}}',
        b'{"order": "capture_start", "file": "/a.pcapng", "files": 2}',
        b'{"order": "capture_start", "file": "/a.pcapng", "file_bytes": 10}',
        b'{"order": "capture_live", "file": "/a.pcapng"}',
        b'{"order": "capture_live", "ports": ["h0", "h9"]}',
        b'{"order": "capture_live", "ports": [[]]}',
        b'{"order": "capture_live", "lids": [65536]}',
        b'{"order": "capture_live", "lids": [true]}',
        b'{"order": "capture_live", "qpns": 3}',
        b'{"order": "capture_live", "service": "RD"}',
        b'{"order": "capture_live", "opcode": "FLY"}',
        b'{"order": "capture_live", "direction": "up"}',
        b'{"order": "capture_live", "management": 1}',
        b'{"order": "capture_live", "management_class": 256}',
        b'{"order": "capture_live", "seconds": 0}',
        b'{"order": "capture_live", "seconds": NaN}',
        b'{"order": "capture_live", "packets": 0}',
        b'{"order": "capture_live", "snap_bytes": 1}',
    ],
)
def test_what_is_no_order_is_refused_with_a_sentence_and_changes_nothing(
    rack: Rack, client: socket.socket, line: bytes
) -> None:
    answer = json.loads(say(client, line))
    assert list(answer) == ["error"]
    assert len(answer["error"]) > 10
    assert "fault of vhca" not in answer["error"]
    shown = ask(client, "show")["result"]
    assert [(port["plugged"], port["rules"]) for port in shown["ports"]] == [(True, 0)] * 2
    assert shown["cables"] == []
    assert shown["capture"] is None


def test_a_fault_of_ours_is_an_answer_and_logged_once(
    rack: Rack, client: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rack._subnet, "status", lambda: 1 // 0)
    for _ in range(2):
        assert "ZeroDivisionError" in ask(client, "show")["error"]
    assert len([record for record in caplog.records if record.name == orders.__name__]) == 1
    assert "result" in ask(client, "counters")


def test_the_page_lists_every_order_and_its_examples_are_answered_so(rack: Rack, client: socket.socket) -> None:
    page = (Path(__file__).parents[3] / "docs" / "fabric.md").read_text("utf-8").split("### The protocol")[1]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`(\w+)`", row)}
    known = orders.Orders(rack.fabric, rack.directory, rack.open_tools, list, list)._orders
    assert listed - {"order"} == known.keys()
    examples = re.findall(r"^-> (.*)\n<- (.*)$", page, re.M)
    assert len(examples) == 3
    for request, answer in examples:
        without_traffic = answer.replace('"seen": 3, "hits": 1', '"seen": 0, "hits": 0')
        assert say(client, request.encode()).decode() == without_traffic
    refused = say(client, b'{"order": "show", "x": 1}')
    assert b"there is no field" in refused
