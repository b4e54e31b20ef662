"""Beside a card's socket is the control socket: whatever its clients do, a card answers its machine as before."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.content import some_bytes
from tests.support.remote import RemoteDriver, pair
from tests.wire.client import Client
from vhca.chip.control import MAX_CLIENTS, MAX_LINE_BYTES, PAUSE_FACTOR, SOCKET_NAME
from vhca.chip.rack import Rack
from vhca.wire import smp
from vhca.wire.connectx.wqe import WqeOpcode

ACCESSES = 200
SLOWEST_S = 0.5
"""For one access, on a busy host; a held loop would take seconds."""


def slowest_access_s(machine: Client) -> float:
    slowest = 0.0
    for _ in range(ACCESSES):
        began = time.monotonic()
        machine.region_read(0, 0, 4)
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def flood(path: Path, lines: bytes, stop: threading.Event) -> None:
    """Say this again and again, reading nothing, and connect again when hung up."""
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.settimeout(0.2)
            while not stop.is_set():
                sock.sendall(lines)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(b'{"order": "counters"}\n', id="orders without reading"),
        pytest.param(b'{"order": "link_down", "cable": "h1"}\n{"order": "link_up", "cable": "h1"}\n', id="cables"),
        pytest.param(some_bytes(64 << 10), id="garbage"),
        pytest.param(b"[" * (MAX_LINE_BYTES - 1) + b"\n", id="deep"),
        pytest.param(b"\n" * 4096, id="empty lines"),
    ],
)
def test_a_flood_of_orders_takes_no_card_s_time(rack: Rack, machine: Client, lines: bytes) -> None:
    stop = threading.Event()
    control = rack.directory / SOCKET_NAME
    threads = [threading.Thread(target=flood, args=(control, lines, stop)) for _ in range(MAX_CLIENTS + 4)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        assert slowest_access_s(machine) < SLOWEST_S
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def test_the_loop_has_most_of_the_time_while_orders_come_without_end(rack: Rack) -> None:
    inside_s = 0.0
    counters = rack.fabric.counters

    def timed() -> dict[str, int]:
        nonlocal inside_s
        began_s = time.monotonic()
        try:
            return counters()
        finally:
            inside_s += time.monotonic() - began_s

    rack.fabric.counters = timed  # type: ignore[method-assign]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(rack.directory / SOCKET_NAME))
        answers = sock.makefile("rb")
        began_s = time.monotonic()
        while time.monotonic() < began_s + 1:
            sock.sendall(b'{"order": "counters"}\n')
            assert b"result" in answers.readline()
        took_s = time.monotonic() - began_s
    assert 0 < inside_s < took_s / PAUSE_FACTOR


def test_any_bytes_are_an_answer_or_a_hang_up(rack: Rack, machine: Client) -> None:
    chance = random.Random(7)
    orders = ["show", "counters", "link_down", "link_up", "link_flap", "link_disable", "link_enable", "link_set"]
    orders += ["fault_add", "fault_list", "fault_clear", "schedule_start", "schedule_stop", "capture_stop", "x"]
    fields = [
        "card",
        "cable",
        "rate",
        "latency",
        "bit_error_rate",
        "times",
        "down",
        "up",
        "action",
        "nth",
        "skip",
        "limit",
        "opcode",
        "psn",
        "direction",
        "probability",
        "delay_ms",
        "file",
    ]
    values = [
        "h0",
        "h1",
        "drop",
        "delay",
        "SEND",
        0,
        1,
        -1,
        1 << 70,
        0.5,
        1e300,
        True,
        None,
        [],
        {},
        "",
        "\0",
        "\ud800",
    ]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(rack.directory / SOCKET_NAME))
        answers = sock.makefile("rb")
        for _ in range(400):
            request: dict[str, object] = {"order": chance.choice(orders)}
            request |= {chance.choice(fields): chance.choice(values) for _ in range(chance.randrange(5))}
            line = bytearray(json.dumps(request).encode())
            if chance.random() < 0.3:
                line[chance.randrange(len(line))] = chance.choice([i for i in range(256) if i != 10])
            sock.sendall(line + b"\n")
            (kind,) = (answer := json.loads(answers.readline()))
            assert kind in ("result", "error")
            assert "fault of vhca" not in str(answer[kind]), (bytes(line), answer)
    machine.region_read(0, 0, 4)


def test_half_a_line_a_reset_and_a_client_that_only_connects_leave_the_card_alone(rack: Rack, machine: Client) -> None:
    held = []
    for index in range(30):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(rack.directory / SOCKET_NAME))
        with contextlib.suppress(BrokenPipeError):  # refused: there are so many
            sock.sendall(b'{"order": "coun' if index % 2 else b'{"order": "counters"}\n')
        if index % 3:
            sock.close()  # unread answers: a reset
        else:
            held.append(sock)
    assert slowest_access_s(machine) < SLOWEST_S
    for sock in held:
        sock.close()


class Owner:
    """A client that says one order after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._answers = sock.makefile("rb")

    def order(self, name: str, **fields: object) -> Any:
        self._sock.sendall(json.dumps({"order": name, **fields}).encode() + b"\n")
        return json.loads(self._answers.readline())["result"]


@pytest.fixture
def owner(rack: Rack) -> Iterator[Owner]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(rack.directory / SOCKET_NAME))
        yield Owner(sock)


@pytest.fixture
def drivers(rack: Rack) -> Iterator[list[RemoteDriver]]:
    with contextlib.ExitStack() as stack:
        paths = [rack.directory / f"{name}.sock" for name in ("h0", "h1")]
        drivers = [stack.enter_context(contextlib.closing(RemoteDriver(path))) for path in paths]
        for driver in drivers:
            driver.start()
        yield drivers


def test_a_cable_that_an_order_pulls_is_down_for_the_driver(owner: Owner, drivers: list[RemoteDriver]) -> None:
    lid = drivers[1].lid()
    (_, port) = owner.order("show")["ports"]
    assert (port["state"], port["lid"], port["up"]) == ("Active", lid, True)
    downs = owner.order("counters", card="h1")["h1.link_downed"]
    owner.order("link_down", cable="h1")
    time.sleep(0.1)
    assert drivers[1].port_state() == smp.PORT_DOWN
    assert drivers[0].port_state() == smp.PORT_ACTIVE
    assert owner.order("counters", card="h1")["h1.link_downed"] == downs + 1
    owner.order("link_up", cable="h1")
    assert drivers[1].lid() == lid  # waits until it is Active again


def test_the_third_write_is_lost_counted_and_repeated(owner: Owner, drivers: list[RemoteDriver]) -> None:
    a, b = drivers
    left, _ = pair(a, b, {driver: driver.lid() for driver in drivers})
    source, target = a.alloc(4096), b.alloc(4096)
    for index in range(5):
        a.memory.write(source + index * 64, bytes([index + 1]) * 64)
    owner.order("fault_add", cable="h0", action="drop", opcode="RDMA_WRITE", nth=3, direction="from_card")
    for index in range(5):
        segments = left.write(source + index * 64, 64, target + index * 64, b.key)
        left.post(WqeOpcode.RDMA_WRITE, segments, ring=index == 4)
    last = bytes([5]) * 64
    deadline = time.monotonic() + 20
    while b.memory.read(target + 4 * 64, 64) != last:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert b.memory.read(target, 5 * 64) == b"".join(bytes([index + 1]) * 64 for index in range(5))
    (rule,) = owner.order("fault_list", cable="h0")
    assert (rule["seen"], rule["hits"]) == (3, 1)
    assert owner.order("counters", card="h0")["h0.dropped.cable_fault"] == 1
