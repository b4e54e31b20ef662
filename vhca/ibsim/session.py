"""What a simulator's server does with messages: clients, where they are attached, and their datagrams.

No I/O: messages come as bytes and go back as bytes; sockets, and the nodes of the fabric, are handed in. Whatever a
client sends, the other clients and the fabric notice no more of it than of a program that sends management datagrams.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from vhca.ibsim import proto
from vhca.ibsim.counters import ToolCount
from vhca.ibsim.proto import Connect, Control, Kind, ProtocolError
from vhca.management.program import Served, User
from vhca.wire.mad import ATTR_CLASS_PORT_INFO, CLASS_PERF, MAD_BYTES, MadHeader
from vhca.wire.smp import NodeInfo, PortInfo

log = logging.getLogger(__name__)

MAX_CLIENTS: Final = 64
LOGGED: Final = 20
"""Refusals that are logged; a client can provoke any number of them."""
_CLASS_PORT_INFO: Final = ATTR_CLASS_PORT_INFO.to_bytes(2, "big")
_CAP_MASK2_END: Final = 71  # ClassPortInfo begins at byte 64; bytes 4 to 7 are CapabilityMask2 and RespTimeValue
_ADDITIONAL_COUNTERS: Final = 1 << 6


class Node(Protocol):
    """A node with a port where programs can attach: what ib_umad and sysfs are to programs of a host."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def node_info(self) -> NodeInfo:
        """Its NodeInfo."""
        ...

    def port_info(self, number: int) -> PortInfo:
        """PortInfo of a port; of that where programs are attached for 0, and for one that is not there."""
        ...

    def pkeys(self) -> bytes:
        """The first block of its P_Key table."""
        ...

    def open(self, user: User) -> None:
        """Attach a program."""
        ...

    def close(self, user: User) -> None:
        """Forget a program, with all that it waits for."""
        ...

    def set_manager(self, user: User, manager: bool) -> bool:
        """Let it be a subnet manager, or not any more; False if another one is here."""
        ...

    def send(self, user: User, mad: bytes, dlid: int, dqp: int, sqp: int, length: int) -> None:
        """Send a datagram, of which `length` bytes count; what becomes of it is delivered."""
        ...

    def serve(self, user: User, descriptor: int, end_ns: int) -> Served | None:
        """Answer messages at the program's socket at once, until a time of the monotonic clock; None: not now."""
        ...


class Client:
    """One attached program."""

    def __init__(self, session: Session, slot: int, connect: Connect, pid: int, node: Node, options: Options) -> None:
        self.slot = slot
        self.number = connect.number
        self.pid = pid
        self.node = node
        self.send = node.send
        self.manager = False
        self.classes = options.classes
        self.long_answers = options.long_answers
        self._session = session

    def deliver(self, mad: bytes, slid: int, dqp: int, sqp: int, status: int) -> None:
        """See :class:`User`."""
        if status:
            self._session.counters[ToolCount.UNANSWERED] += 1
        if mad[1] == CLASS_PERF and mad[16:18] == _CLASS_PORT_INFO and not self.long_answers:
            # The library loses the last 32 bytes of each datagram, where PortCountersExtended has errors: let programs
            # read them from PortCounters.
            mask = bytes((mad[_CAP_MASK2_END] & ~_ADDITIONAL_COUNTERS,))
            mad = mad[:_CAP_MASK2_END] + mask + mad[_CAP_MASK2_END + 1 :]
        self._session.deliver(self.slot, proto.DATA.pack(0, slid, dqp, sqp, status, MAD_BYTES, mad))


class Options:
    """What stands behind the name of a node in `SIM_HOST`: `tools;s32;w`.

    - `sCLASS`: requests of this management class (two hex digits) go to the program
    - `w`: it gets datagrams whole, and joins the segments of long answers

    The library passes on 31 characters, and nothing else that could be said of a program.
    """

    def __init__(self, text: str) -> None:
        """:raises ProtocolError: there is no such option."""
        self.node, *words = text.split(";")
        classes: set[int] = set()
        self.long_answers = False
        for word in words:
            if re.fullmatch("s[0-9a-f]{2}", word):
                classes.add(int(word[1:], 16))
            elif word == "w":
                self.long_answers = True
            else:
                raise ProtocolError(f"no option {word!r}; there are sCLASS and w")
        self.classes = frozenset(classes)


class Session:
    """All clients of one server.

    - `find`: the node that a text names, "" for the usual one; LookupError says why there is none
    - `open_data`: make the data socket of a client (slot, number, process); False if that is not possible
    - `send_data`: send a message by a client's data socket
    - `close_data`: forget a client's data socket
    """

    def __init__(
        self,
        find: Callable[[str], Node],
        *,
        open_data: Callable[[int, int, int], bool],
        send_data: Callable[[int, bytes], None],
        close_data: Callable[[int], None],
    ) -> None:
        self.counters: Counter[ToolCount] = Counter()
        self._find = find
        self._open_data = open_data
        self.deliver = send_data
        self._close_data = close_data
        self._clients: dict[int, Client] = {}
        self._logged = 0
        self._answers: dict[int, Callable[[Client, Control], bytes | None]] = {
            Kind.DISCONNECT: self._disconnect,
            Kind.GET_PORT: self._get_port,
            Kind.GET_VENDOR: self._get_vendor,
            Kind.GET_GID: self._get_gid,
            Kind.GET_GUID: self._get_guid,
            Kind.GET_NODE_INFO: self._get_node_info,
            Kind.GET_PORT_INFO: self._get_port_info,
            Kind.SET_IS_SM: self._set_is_sm,
            Kind.GET_PKEYS: self._get_pkeys,
        }

    @property
    def clients(self) -> int:
        """How many programs are attached."""
        return len(self._clients)

    def control(self, message: bytes, pid: int) -> bytes | None:
        """Answer a control message of the process `pid`; None if it means nothing."""
        try:
            request = proto.parse_control(message)
            if request.kind == Kind.CONNECT:
                return self._connect(request, pid)
        except ProtocolError as error:
            self.counters[ToolCount.BAD_CONTROL] += 1
            self._log(str(error))
            return None
        answer = self._answers.get(request.kind)
        client = self._clients.get(request.client)
        # Of its own client only: a process that errs does not take another one's socket.
        data = None if answer is None or client is None or client.pid != pid else answer(client, request)
        if data is None:
            self.counters[ToolCount.BAD_CONTROL] += 1
            return proto.control_error(request)
        return proto.control_reply(request, data)

    def data(self, slot: int, message: bytes) -> None:
        """A data message of a client."""
        client = self._clients.get(slot)
        if client is None:
            return
        try:
            datagram = proto.parse_data(message)
        except ProtocolError as error:
            self.counters[ToolCount.BAD_DATA] += 1
            self._log(str(error))
            return
        dlid, _, dqp, sqp, _, length, mad = datagram
        if length < MAD_BYTES:
            if length < MadHeader.SIZE:
                self.counters[ToolCount.BAD_DATA] += 1
                return
            # The library does not clear what it sends behind the end.
            mad = mad[:length].ljust(MAD_BYTES, b"\0")
        self.counters[ToolCount.SENT] += 1
        client.send(client, mad, dlid, dqp, sqp, length)

    def serve(self, slot: int, descriptor: int, end_ns: int) -> Served | None:
        """Have messages answered that need nothing of what is here; None: none are, and the socket is as it was."""
        client = self._clients[slot]
        served = client.node.serve(client, descriptor, end_ns)
        if served is not None:
            self.counters[ToolCount.SENT] += served.sent
            self.counters[ToolCount.DELIVERED] += served.delivered
        return served

    def lost(self, slot: int) -> None:
        """A client has ended, or its socket has."""
        if slot in self._clients:
            self.counters[ToolCount.CLIENTS_LOST] += 1
            self._detach(slot)

    def close(self) -> None:
        """Forget all clients."""
        for slot in list(self._clients):
            self._detach(slot)

    # ---- control messages ----

    def _connect(self, request: Control, pid: int) -> bytes:
        connect = proto.parse_connect(request.data)
        try:
            client = self._attach(connect, pid)
        except (LookupError, ProtocolError) as error:
            self.counters[ToolCount.CLIENTS_REFUSED] += 1
            self._log(f"process {pid} cannot attach: {error.args[0]}")
            return proto.control_error(request)
        self.counters[ToolCount.CLIENTS] += 1
        # A name that was given is given back as it was: the library remarks on any other one.
        name = connect.node or client.node.name
        return proto.control_reply(request, proto.connected(connect, client.slot, name))

    def _attach(self, connect: Connect, pid: int) -> Client:
        for slot, other in list(self._clients.items()):
            if other.number == connect.number:
                self._detach(slot)  # of a program that the same process has run before
        if len(self._clients) >= MAX_CLIENTS:
            raise LookupError(f"{MAX_CLIENTS} programs are attached; end one of them")
        slot = next(slot for slot in range(MAX_CLIENTS) if slot not in self._clients)
        options = Options(connect.node)
        node = self._find(options.node)
        client = Client(self, slot, connect, pid, node, options)
        if not self._open_data(slot, connect.number, pid):
            raise LookupError("its data socket cannot be reached")
        self._clients[slot] = client
        node.open(client)
        if connect.manager and not node.set_manager(client, True):
            self._detach(slot)
            raise LookupError(f"another subnet manager is attached at {node.name}")
        return client

    def _detach(self, slot: int) -> None:
        client = self._clients.pop(slot)
        self._close_data(slot)
        client.node.close(client)

    def _disconnect(self, client: Client, request: Control) -> bytes:
        self._detach(client.slot)
        return b""

    def _get_port(self, client: Client, request: Control) -> bytes:
        info = client.node.port_info(0)
        return proto.port_state(info.lid, info.port_state)

    def _get_vendor(self, client: Client, request: Control) -> bytes:
        info = client.node.node_info()
        return proto.vendor(info.vendor_id, info.device_id, info.revision)

    def _get_gid(self, client: Client, request: Control) -> bytes:
        prefix = client.node.port_info(0).gid_prefix
        return prefix.to_bytes(8, "big") + client.node.node_info().port_guid.to_bytes(8, "big")

    def _get_guid(self, client: Client, request: Control) -> bytes:
        return client.node.node_info().node_guid.to_bytes(8, "big")

    def _get_node_info(self, client: Client, request: Control) -> bytes:
        return client.node.node_info().to_bytes()

    def _get_port_info(self, client: Client, request: Control) -> bytes:
        return client.node.port_info(request.data[0]).to_bytes()

    def _set_is_sm(self, client: Client, request: Control) -> bytes | None:
        wanted = any(request.data[:4])
        return request.data if client.node.set_manager(client, wanted) else None

    def _get_pkeys(self, client: Client, request: Control) -> bytes:
        return client.node.pkeys()

    def _log(self, text: str) -> None:
        self._logged += 1
        if self._logged <= LOGGED:
            log.warning("tools: %s", text)
        if self._logged == LOGGED:
            log.warning("tools: so many lines that no more are written; see the counters")
