"""What a server of programs under libumad2sim says to their messages, without a socket."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vhca.ibsim import proto
from vhca.ibsim.counters import ToolCount
from vhca.ibsim.proto import Control, Kind, ProtocolError
from vhca.ibsim.session import MAX_CLIENTS, Session
from vhca.management.program import User
from vhca.wire.smp import NodeInfo, PortInfo

PID = 4711
MAD = bytes(range(256))


class Node:
    """A node that notes what programs do."""

    name = "n1"

    def __init__(self) -> None:
        self.users: list[User] = []
        self.sent: list[tuple[User, bytes, int, int, int, int]] = []

    def node_info(self) -> NodeInfo:
        return NodeInfo(node_guid=0x10, port_guid=0x11, vendor_id=0x2C9, device_id=0x1017, revision=3)

    def port_info(self, number: int) -> PortInfo:
        return PortInfo(lid=7, port_state=4, gid_prefix=0xFE80 << 48, local_port_num=number or 1)

    def pkeys(self) -> bytes:
        return b"\xff\xff".ljust(64, b"\0")

    def open(self, user: User) -> None:
        self.users.append(user)

    def close(self, user: User) -> None:
        self.users.remove(user)

    def set_manager(self, user: User, manager: bool) -> bool:
        if manager and any(other.manager for other in self.users if other is not user):
            return False
        user.manager = manager
        return True

    def send(self, user: User, mad: bytes, dlid: int, dqp: int, sqp: int, length: int) -> None:
        self.sent.append((user, mad, dlid, dqp, sqp, length))

    def serve(self, user: User, descriptor: int, end_ns: int) -> None:
        """Nothing is answered at once."""


class Desk:
    """A session with one node, and what it does with sockets."""

    def __init__(self) -> None:
        self.node = Node()
        self.sockets: dict[int, int] = {}
        self.delivered: list[tuple[int, bytes]] = []
        self.session = Session(
            self._find, open_data=self._open, send_data=lambda *sent: self.delivered.append(sent), close_data=self._shut
        )

    def _find(self, name: str) -> Node:
        if name not in ("", "n1"):
            raise LookupError(f"there is no {name}")
        return self.node

    def _open(self, slot: int, number: int, process: int) -> bool:
        self.sockets[slot] = number
        return number != 666

    def _shut(self, slot: int) -> None:
        del self.sockets[slot]

    def say(self, kind: int, data: bytes = b"", client: int = 0, pid: int = PID) -> Control:
        """Send a control message and give the answer."""
        answer = self.session.control(proto.CONTROL.pack(proto.MAGIC, client, kind, len(data), data), pid)
        assert answer is not None
        return proto.parse_control(answer)

    def connect(self, node: str = "n1", number: int = PID, manager: bool = False, pid: int = PID) -> Control:
        return self.say(Kind.CONNECT, connect_data(node, number, manager), pid=pid)


def connect_data(node: str, number: int, manager: bool) -> bytes:
    return struct.pack("<III32s", number, 0, manager, node.encode())


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_program_connects_and_is_told_its_number_and_node(desk: Desk) -> None:
    answer = desk.connect("")
    assert answer.kind == Kind.CONNECT
    number, _, _, node = struct.unpack_from("<III32s", answer.data)
    assert (number, node.rstrip(b"\0")) == (0, b"n1")
    assert desk.sockets == {0: PID}
    assert struct.unpack_from("<I", desk.connect(number=PID + 1).data) == (1,)
    assert desk.session.clients == 2


def test_a_name_that_was_given_comes_back_as_it_was(desk: Desk) -> None:
    """The library prints a warning otherwise."""
    text = desk.connect("n1;s32;w").data[12:44].rstrip(b"\0")
    assert text == b"n1;s32;w"
    assert desk.node.users[0].classes == frozenset([0x32])
    assert desk.node.users[0].long_answers


@pytest.mark.parametrize("node", ["n2", "n1;s3", "n1;szz", "n1;x", "n1;", "\x80"])
def test_who_names_what_is_not_there_is_refused(desk: Desk, node: str) -> None:
    if node.isascii():
        assert desk.connect(node).kind == Kind.ERROR
    else:
        data = struct.pack("<III32s", PID, 0, 0, b"\x80")
        assert desk.session.control(proto.CONTROL.pack(proto.MAGIC, 0, Kind.CONNECT, 44, data), PID) is None
    assert not desk.sockets
    assert desk.session.clients == 0


def test_there_are_so_many_clients_and_no_more(desk: Desk) -> None:
    for number in range(MAX_CLIENTS):
        assert desk.connect(number=number).kind == Kind.CONNECT
    assert desk.connect(number=MAX_CLIENTS).kind == Kind.ERROR
    desk.session.lost(11)
    assert struct.unpack_from("<I", desk.connect(number=MAX_CLIENTS).data) == (11,)
    assert desk.session.counters[ToolCount.CLIENTS_REFUSED] == 1
    assert desk.session.counters[ToolCount.CLIENTS_LOST] == 1


def test_a_client_without_a_data_socket_is_refused(desk: Desk) -> None:
    assert desk.connect(number=666).kind == Kind.ERROR
    assert desk.session.clients == 0


def test_a_process_that_connects_again_leaves_nothing_behind(desk: Desk) -> None:
    desk.connect()
    desk.connect()
    assert desk.session.clients == len(desk.node.users) == 1


def test_one_manager_at_a_node(desk: Desk) -> None:
    assert desk.connect(manager=True).kind == Kind.CONNECT
    assert desk.connect(number=1, manager=True).kind == Kind.ERROR
    assert desk.connect(number=2).kind == Kind.CONNECT
    assert desk.say(Kind.SET_IS_SM, struct.pack("<I", 1), client=1).kind == Kind.ERROR
    assert desk.say(Kind.SET_IS_SM, struct.pack("<I", 0), client=0).kind == Kind.SET_IS_SM
    assert desk.say(Kind.SET_IS_SM, struct.pack("<I", 1), client=1).kind == Kind.SET_IS_SM


def test_what_the_library_puts_into_sysfs(desk: Desk) -> None:
    desk.connect()
    expected: dict[Kind, bytes] = {
        Kind.GET_PORT: struct.pack("<HB", 7, 4),
        Kind.GET_VENDOR: struct.pack("<III4xQ", 0x2C9, 0x1017, 3, 1),
        Kind.GET_GID: struct.pack(">QQ", 0xFE80 << 48, 0x11),
        Kind.GET_GUID: struct.pack(">Q", 0x10),
        Kind.GET_NODE_INFO: desk.node.node_info().to_bytes(),
        Kind.GET_PORT_INFO: desk.node.port_info(2).to_bytes(),
        Kind.GET_PKEYS: desk.node.pkeys(),
    }
    for kind, data in expected.items():
        answer = desk.say(kind, b"\2")
        assert (answer.kind, answer.data) == (kind, data.ljust(64, b"\0"))


def test_a_client_is_spoken_for_by_its_own_process_only(desk: Desk) -> None:
    desk.connect()
    for kind in Kind:
        if kind != Kind.CONNECT:
            assert desk.say(kind, pid=PID + 1).kind == Kind.ERROR
    assert desk.session.clients == 1


def test_data_goes_to_the_node_with_its_tail_cleared(desk: Desk) -> None:
    desk.connect()
    desk.session.data(0, proto.DATA.pack(0x1234, 0, 1, 1, 0, 64, MAD))
    desk.session.data(0, proto.DATA.pack(0xFFFF, 0xFFFF, 0, 0, 0, 256, MAD))
    assert desk.node.sent == [
        (desk.node.users[0], MAD[:64].ljust(256, b"\0"), 0x1234, 1, 1, 64),
        (desk.node.users[0], MAD, 0xFFFF, 0, 0, 256),
    ]


def test_what_is_delivered_is_in_the_library_s_own_order_of_bytes(desk: Desk) -> None:
    desk.connect()
    desk.node.users[0].deliver(MAD, 0x0102, 0x010203, 1, 110)
    [(slot, message)] = desk.delivered
    assert slot == 0
    assert message[4:6] == b"\1\2"  # the low half of a 32-bit number on these hosts, as ib_umad has it
    assert proto.parse_data(message) == proto.Datagram(0, 0x0102, 0x010203, 1, 110, 256, MAD)


def test_who_has_gone_is_not_heard(desk: Desk) -> None:
    desk.connect()
    assert desk.say(Kind.DISCONNECT).kind == Kind.DISCONNECT
    desk.session.data(0, proto.DATA.pack(1, 0, 1, 1, 0, 256, MAD))
    assert not desk.node.sent
    assert not desk.node.users
    assert desk.say(Kind.GET_PORT).kind == Kind.ERROR


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        pytest.param(proto.parse_control, bytes(79), id="short control"),
        pytest.param(proto.parse_control, bytes(80), id="no magic"),
        pytest.param(proto.parse_data, bytes(287), id="short data"),
        pytest.param(proto.parse_data, proto.DATA.pack(1, 0, 1, 1, 0, 257, MAD), id="long datagram"),
        pytest.param(proto.parse_data, proto.DATA.pack(1, 0, 1, 1, 0, (1 << 64) - 1, MAD), id="length of minus one"),
    ],
)
def test_what_is_no_message_is_told_so(parse: Callable[[bytes], object], message: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(message)


@given(st.binary(max_size=300), st.integers(0, MAX_CLIENTS))
def test_any_bytes_do_no_harm(message: bytes, client: int) -> None:
    desk = Desk()
    desk.connect()
    desk.session.control(message, PID)
    desk.session.data(client, message)
    for kind in range(16):
        desk.session.control(
            proto.CONTROL.pack(proto.MAGIC, client, kind, len(message), message[:64].ljust(64, b"\1")), PID
        )
    desk.session.close()
    assert not desk.node.users
    assert not desk.sockets
