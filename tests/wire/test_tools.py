"""Host programs on the fabric of a rack: who is heard, and that no client takes a card's time, whatever it does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.content import some_bytes
from tests.support.tool import Tool, as_nobody
from tests.wire.client import Client
from tests.wire.test_control import SLOWEST_S, slowest_access_s
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.ibsim import proto
from vhca.ibsim.counters import ToolCount
from vhca.ibsim.proto import Kind
from vhca.ibsim.server import WAITING
from vhca.ibsim.session import MAX_CLIENTS
from vhca.wire import smp as w
from vhca.wire.smp import NodeInfo, PortInfo

FLOODERS = 4


@pytest.fixture
def base(rack: Rack) -> str:
    """The name of the sockets, once programs' port is Active."""
    deadline_s = time.monotonic() + 10
    while not (place := rack.open_tools()).active:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return place.socket_name


def count(rack: Rack, name: ToolCount) -> int:
    tools = rack._tools
    assert tools is not None
    return rack.loop.call(lambda: tools.all_counters()[name])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_there_is_no_socket_until_somebody_asks(rack: Rack) -> None:
    def names() -> bytes:
        return Path("/proc/net/unix").read_bytes()

    assert f"@vhca-{os.getpid()}-{id(rack):x}:".encode() not in names()
    name = rack.open_tools().socket_name.encode()
    assert b"@" + name + b":ctl" in names()
    rack.stop()
    assert b"@" + name + b":" not in names()


def test_a_rack_may_have_its_sockets_from_the_start_under_a_name_of_ones_own(tmp_path: Path) -> None:
    name = f"vhca-test-{os.getpid()}"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Rack(0, tmp_path / "one", RackConfig(logs=False, tools=name)):
        with Tool(name, "tools") as tool:
            assert tool.attached
        late = Rack(1, tmp_path / "two", RackConfig(logs=False, tools=name))
        with pytest.raises(OSError, match="in use"):
            late.start()
        assert not list((tmp_path / "two").iterdir())
    with pytest.raises(ValueError, match="no name of sockets"):
        Rack(0, tmp_path / "two", RackConfig(logs=False, tools="a b")).start()


def test_a_program_reads_what_is_at_the_other_end_of_its_cable(base: str) -> None:
    with Tool(base) as tool:
        own = tool.ask(tool.smp(w.NODE_INFO))
        there = tool.ask(tool.smp(w.NODE_INFO, (1,)))
        assert own is not None
        assert there is not None
        assert NodeInfo.from_bytes(own.data).node_type == w.NODE_TYPE_CA
        assert NodeInfo.from_bytes(there.data).node_type == w.NODE_TYPE_SWITCH
        assert there.hop_pointer == 0
        assert there.mkey == 0
        lid = PortInfo.from_bytes(tool.say(Kind.GET_PORT_INFO, b"\1").data).lid
        by_lid = tool.ask(tool.smp(w.NODE_INFO, mgmt_class=1, dr_slid=0, dr_dlid=0), lid)
        assert by_lid is not None
        assert by_lid.data == own.data


def test_what_nobody_answers_comes_back(base: str) -> None:
    with Tool(base) as tool:
        nowhere = tool.smp(w.NODE_INFO, (1, 30))
        began = time.monotonic()
        assert tool.ask(nowhere) is None
        assert time.monotonic() - began < 5


def test_more_than_ten_programs(base: str) -> None:
    with contextlib.ExitStack() as stack:
        tools = [stack.enter_context(Tool(base)) for _ in range(MAX_CLIENTS)]
        assert sorted(tool.slot for tool in tools) == list(range(MAX_CLIENTS))
        for tool in tools:  # all at once, each with numbers of its own that the others have, too
            for attribute in (w.NODE_INFO, w.NODE_DESCRIPTION):
                tool.send(tool.smp(attribute, (1,)).to_bytes())
        for tool in tools:
            for tid, attribute in ((1, w.NODE_INFO), (2, w.NODE_DESCRIPTION)):
                answer = tool.answer(tid)
                assert answer is not None
                assert answer.attr_id == attribute
        with Tool(base) as late:
            assert not late.attached


@pytest.mark.skipif(os.geteuid() != 0, reason="root only can be another user")
def test_other_users_are_not_heard(rack: Rack, base: str) -> None:
    connect = proto.CONTROL.pack(proto.MAGIC, 0, Kind.CONNECT, 44, bytes(64))

    def control() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(connect, proto.control_name(base))

    with Tool(base) as tool:

        def data() -> None:
            """Our peer's socket is not for others: the kernel says so."""
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(PermissionError):
                sock.sendto(proto.DATA.pack(1, 0, 1, 1, 0, 256, bytes(256)), proto.data_name(base, tool.slot))
                os._exit(2)

        assert as_nobody(control) == 0
        assert as_nobody(data) == 0
        wait_for(lambda: count(rack, ToolCount.FOREIGN) == 1)
        assert tool.ask(tool.smp(w.NODE_INFO)) is not None
    assert count(rack, ToolCount.CLIENTS) == 1
    assert count(rack, ToolCount.SENT) == 1


def test_who_ends_without_taking_leave_is_forgotten(rack: Rack, base: str) -> None:
    child = os.fork()
    if child == 0:
        Tool(base).send(bytes(256))
        os._exit(0)  # as one that is killed
    os.waitpid(child, 0)
    wait_for(lambda: count(rack, ToolCount.CLIENTS_LOST) == 1)
    tool = Tool(base)
    assert tool.slot == 0
    tool.send(tool.smp(w.NODE_INFO, (1,)).to_bytes())
    tool.close()  # a process that goes on, with its socket closed
    wait_for(lambda: count(rack, ToolCount.CLIENTS_LOST) == 2)


def flood(base: str, message: bytes, stop: threading.Event) -> None:
    """Send this again and again, reading nothing."""
    with Tool(base) as tool:
        tool.data.settimeout(0.2)
        while not stop.is_set():
            with contextlib.suppress(OSError):
                tool.data.send(message)


def _smp(path: bytes) -> bytes:
    head = bytes((1, 0x81, 1, 1, 0, 0, 0, len(path))) + bytes(8) + w.NODE_INFO.to_bytes(2, "big")
    return head.ljust(32, b"\0") + b"\xff\xff\xff\xff" + bytes(92) + (b"\0" + path).ljust(128, b"\0")


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(proto.DATA.pack(0xFFFF, 0, 0, 0, 0, 256, _smp(b"\1")), id="questions without reading"),
        pytest.param(proto.DATA.pack(0xFFFF, 0, 0, 0, 0, 256, _smp(b"\1\2\3\4")), id="ways to nowhere"),
        pytest.param(proto.DATA.pack(1, 0, 1, 1, 0, 256, bytes((1, 3, 2, 0x12)).ljust(256, b"\0")), id="directory"),
        pytest.param(some_bytes(288), id="garbage"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_flood_takes_no_card_s_time(rack: Rack, base: str, machine: Client, message: bytes) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=flood, args=(base, message, stop)) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        assert slowest_access_s(machine) < SLOWEST_S
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with Tool(base) as tool:
        assert tool.ask(tool.smp(w.NODE_INFO, (1,))) is not None


def test_what_waits_for_a_program_that_does_not_read_is_bounded(rack: Rack, base: str) -> None:
    with Tool(base) as tool, Tool(base) as other:
        tools = rack._tools
        assert tools is not None
        for _ in range(4 * WAITING):
            rack.loop.call(lambda: tools._send(tool.slot, bytes(288)))
        assert count(rack, ToolCount.NOT_READ) > WAITING
        assert other.ask(other.smp(w.NODE_INFO, (1,))) is not None
        for _ in range(WAITING):
            tool.data.recv(512)
        tool.send(tool.smp(w.NODE_INFO, (1,)).to_bytes())  # and is heard again when it has read
        assert tool.answer(1) is not None
