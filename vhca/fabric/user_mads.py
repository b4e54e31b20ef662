"""Programs at a port of a simulated host: what Linux's ib_mad and ib_umad are to those of a real one.

A program sends management datagrams and gets the answers to its own; one that is a subnet manager also gets what is for
managers. A request that nobody answers is repeated, and in the end comes back to its program with a status, so that no
program waits for ever. Programs hold the M_Keys of all ports, as whoever runs the fabric may: a request without a key
gets that of its target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vhca.fabric.end_node import EndPort
from vhca.fabric.express import Express
from vhca.fabric.link import CallLater
from vhca.fabric.long_mads import LongMads, is_control, is_segment, is_to_be_sent
from vhca.fabric.swift import Swift
from vhca.management import directed
from vhca.management.fair_queue import CallSoon
from vhca.management.packets import gmp_packet, smp_packet
from vhca.management.program import ETIMEDOUT, Served, User
from vhca.management.subnet import SMP_CLASSES, for_agent, is_answered
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID, Packet
from vhca.wire.smp import NodeInfo, PortInfo

TRIES: Final = 3
TRY_NS: Final = 250_000_000
"""For the answer of an agent, before the request is sent again."""
DIRECTORY_NS: Final = 4_000_000_000
"""For that of subnet administration, which is asked once: a manager in a guest takes its time."""
MOST_ASKED: Final = 256
"""Requests of one program that wait for answers; one more comes back at once."""
CHECK_NS: Final = 50_000_000

_OWN_TID: Final = 0xFFFFFFFFFFFF  # the bits of a transaction number that stay a program's own
_ALONE: Final = madwire.RMPP_FIRST | madwire.RMPP_LAST
_NO_KEY: Final = bytes(8)
_KEY: Final = slice(24, 32)


@dataclass(slots=True)
class _Asked:
    """A request that waits for its answer: as the program gave it, and as it is sent."""

    user: User
    mad: bytes
    sent: bytes
    dlid: int
    dqp: int
    sqp: int
    due_ns: int
    left: int


Key = tuple[int, int]
"""Management class and transaction number of a request that was sent."""


def _key_of(mad: bytes) -> Key:
    return mad[1], int.from_bytes(mad[8:16], "big")


class UserMads:
    """The programs at one port; `key_of` tells the M_Key of the node that a request goes to, by its DLID.

    With `swift`, C answers what it can.
    """

    def __init__(
        self,
        port: EndPort,
        call_soon: CallSoon,
        call_later: CallLater,
        now_ns: Callable[[], int],
        key_of: Callable[[bytes, int], int],
        swift: Swift | None = None,
    ) -> None:
        self.port = port
        self._call_soon = call_soon
        self._call_later = call_later
        self._now_ns = now_ns
        self._key_of = key_of
        self._users: dict[User, int] = {}
        self._asked: dict[Key, _Asked] = {}
        self._counts: dict[User, int] = {}
        self._checking = False
        self._express = Express(port, swift)
        self._long = LongMads(lambda packet: self._to(packet.route.dlid, packet), now_ns, call_soon)

    # ---- what the host's sysfs shows ----

    @property
    def name(self) -> str:
        """The host's name."""
        return self.port.node.node.name

    def node_info(self) -> NodeInfo:
        """NodeInfo, by this port."""
        return self.port.node.node_info(self.port)

    def port_info(self, number: int) -> PortInfo:
        """PortInfo of a port; of this one for 0, and for one without a cable."""
        return self.port.node.ports.get(number, self.port).info

    def pkeys(self) -> bytes:
        """The first block of the P_Key table."""
        return smpwire.pack_words(self.port.pkeys[: smpwire.P_KEYS_PER_BLOCK])

    # ---- programs ----

    def open(self, user: User) -> None:
        """Attach a program."""
        taken = set(self._users.values())
        self._users[user] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._counts[user] = 0
        self.port.programs = self

    def close(self, user: User) -> None:
        """Forget a program, with all that it waits for."""
        self.set_manager(user, False)
        self._long.forget(self._users[user])
        del self._users[user], self._counts[user]
        for key in [key for key, asked in self._asked.items() if asked.user is user]:
            del self._asked[key]
        if not self._users:
            self.port.programs = None

    def set_manager(self, user: User, manager: bool) -> bool:
        """Let a program be a subnet manager, or not any more; False if another one is here."""
        if manager and any(other.manager for other in self._users if other is not user):
            return False
        if user.manager != manager:
            user.manager = manager
            self.port.set_capability(smpwire.CAP_IS_SM, manager)
        return True

    # ---- what programs send ----

    def send(self, user: User, mad: bytes, dlid: int, dqp: int, sqp: int, length: int = madwire.MAD_BYTES) -> None:
        """Send a datagram, of which `length` bytes count, from `sqp` (0 or 1); what becomes of it is delivered."""
        arrived = False
        if mad[1] == madwire.CLASS_SUBN_DR and dlid == PERMISSIVE_LID:
            answer = self._express.ask(mad)
            if answer:
                user.deliver(answer, PERMISSIVE_LID, sqp, dqp, 0)
                return
            arrived = answer is not None
        directed_way = mad[1] == madwire.CLASS_SUBN_DR
        returning = bool(mad[3] & madwire.METHOD_RESPONSE or (directed_way and mad[4] & 0x80))
        sent = mad
        if not returning and mad[1] in SMP_CLASSES and mad[_KEY] == _NO_KEY:
            sent = mad[:24] + self._key_of(mad, dlid).to_bytes(8, "big") + mad[32:]
        # A trap is answered by a TrapRepress.
        if returning or not (is_answered(mad[3]) or mad[3] == madwire.METHOD_TRAP):
            self._transmit(user, sent, dlid, dqp, sqp, length)
            return
        number = self._users[user]
        tid = int.from_bytes(mad[8:16], "big") & _OWN_TID | number << 48
        sent = sent[:8] + tid.to_bytes(8, "big") + sent[16:]
        key = (mad[1], tid)
        if key not in self._asked:
            if self._counts[user] >= MOST_ASKED:
                self._unanswered(user, mad, dlid, dqp, sqp)
                return
            self._counts[user] += 1
        once = mad[1] == madwire.CLASS_SUBN_ADM
        due_ns = self._now_ns() + (DIRECTORY_NS if once else TRY_NS)
        self._asked[key] = _Asked(user, mad, sent, dlid, dqp, sqp, due_ns, 0 if once else TRIES - 1)
        self._check_later()
        if not arrived:
            self._transmit(user, sent, dlid, dqp, sqp, length)

    def serve(self, user: User, descriptor: int, end_ns: int) -> Served | None:
        """See :class:`vhca.ibsim.session.Node`."""
        return self._express.serve(descriptor, end_ns)

    def _unanswered(self, user: User, mad: bytes, dlid: int, dqp: int, sqp: int) -> None:
        def deliver() -> None:
            if user in self._users:
                user.deliver(mad, dlid, dqp, sqp, ETIMEDOUT)

        self._call_soon(deliver)

    def _transmit(self, user: User, mad: bytes, dlid: int, dqp: int, sqp: int, length: int = madwire.MAD_BYTES) -> None:
        """Put a datagram on the cable, or take it at once if it is for this port."""
        if is_to_be_sent(mad):
            number = self._users[user]
            whole = self._long.send(number, mad, length, dlid, dqp, lambda each: self._gmp(each, dlid, dqp, sqp))
            if whole is None:
                self._check_later()
                return
            mad = whole
        if mad[1] not in SMP_CLASSES:
            self._to(dlid, self._gmp(mad, dlid, dqp, sqp))
        elif mad[1] == madwire.CLASS_SUBN_LID:
            self._to(dlid, smp_packet(mad, dlid, self._slid))
        else:
            self._transmit_directed(Smp.from_bytes(mad), dlid)

    def _gmp(self, mad: bytes, dlid: int, dqp: int, sqp: int) -> Packet:
        return gmp_packet(mad, dlid, self.port.info.lid, dqp, sqp)

    def _transmit_directed(self, smp: Smp, dlid: int) -> None:
        """The rules of the host's subnet management interface (14.2.2), for one that starts here."""
        number, lid = self.port.number, self.port.info.lid
        if smp.status & madwire.STATUS_DIRECTION:
            if smp.dr_dlid != PERMISSIVE_LID:  # its request came by LID at last
                self._to(dlid, smp_packet(smp.to_bytes(), dlid, self._slid))
                return
            smp.hop_pointer = smp.hop_count + 1
            step = directed.response_step(smp, directed.INSIDE, lid)
        elif smp.dr_slid != PERMISSIVE_LID and dlid not in (PERMISSIVE_LID, lid):
            self._to(dlid, smp_packet(smp.to_bytes(), dlid, self._slid))
            return
        elif smp.hop_count == 0 and smp.dr_dlid == PERMISSIVE_LID:
            step = directed.TAKE  # the agent is given it as one that comes in by its cable
        else:
            step = directed.request_step(smp, number, directed.INSIDE, lid)
        if step == directed.TAKE:
            self._loop_back(smp_packet(smp.to_bytes(), PERMISSIVE_LID, PERMISSIVE_LID))
        elif step == directed.ROUTE:
            self._to(smp.dr_dlid, smp_packet(smp.to_bytes(), smp.dr_dlid, self._slid))
        elif step == directed.LEAVE + number:
            self.port.send(smp_packet(smp.to_bytes(), PERMISSIVE_LID, PERMISSIVE_LID))

    @property
    def _slid(self) -> int:
        return self.port.info.lid or PERMISSIVE_LID

    def _to(self, dlid: int, packet: Packet) -> None:
        info = self.port.info
        if info.lid and info.lid <= dlid < info.lid + (1 << info.lmc):
            self._loop_back(packet)
        else:
            self.port.send(packet)

    def _loop_back(self, packet: Packet) -> None:
        self._call_soon(lambda: self.port.take(packet))

    # ---- what arrives ----

    def take(self, packet: Packet) -> bool:
        """Take a datagram that arrived at the port, if it is for a program."""
        mad = packet.payload
        mgmt_class = mad[1]
        if mgmt_class in SMP_CLASSES:
            returning = mad[3] & madwire.METHOD_RESPONSE or (
                mad[3] == madwire.METHOD_TRAP_REPRESS and _key_of(mad) in self._asked
            )
            if not returning and for_agent(mad):
                return False
        else:
            returning = mad[3] & madwire.METHOD_RESPONSE
            if mgmt_class == madwire.CLASS_PERF and not returning:
                return False
            if is_control(mad):
                self._long.control(packet)
                return True
        if returning:
            self._answered(packet)
            return True
        user = self._taker(mgmt_class)
        if user is None:
            return False
        if mgmt_class == madwire.CLASS_SUBN_DR:
            smp = Smp.from_bytes(mad)
            if not directed.end_of_path(smp, self.port.number):
                return True
            mad = smp.to_bytes()
        user.deliver(mad, packet.route.slid, packet.dest_qp, packet.src_qp, 0)
        return True

    def _taker(self, mgmt_class: int) -> User | None:
        """Who takes requests of a class."""
        for_manager = mgmt_class in SMP_CLASSES or mgmt_class == madwire.CLASS_SUBN_ADM
        for user in self._users:
            if mgmt_class in user.classes or (for_manager and user.manager):
                return user
        return None

    def _answered(self, packet: Packet) -> None:
        mad = packet.payload
        key = _key_of(mad)
        asked = self._asked.get(key)
        # A question for MultiPathRecords is answered by PathRecords.
        if asked is None or (mad[1] in SMP_CLASSES and mad[16:18] != asked.mad[16:18]):
            return
        # Switches see to it that nobody sends with another one's LID; with LMC, a port answers with its first one.
        if asked.dlid != PERMISSIVE_LID and (asked.dlid ^ packet.route.slid) >> self.port.info.lmc:
            return
        segments = [mad]
        if is_segment(mad) and mad[26] & _ALONE != _ALONE:
            there, qp = packet.route.slid, packet.src_qp
            whole = self._long.arrived(packet, lambda each: self._gmp(each, there, qp, packet.dest_qp))
            asked.due_ns = self._now_ns() + DIRECTORY_NS
            if whole is None:
                return
            segments = whole if asked.user.long_answers else whole[:1]
        del self._asked[key]
        self._counts[asked.user] -= 1
        for segment in segments:
            self._deliver(asked, segment, packet.route.slid)

    def _deliver(self, asked: _Asked, mad: bytes, slid: int) -> None:
        # The program's own number and key, and for one by directed route no hop left.
        mad = mad[:8] + asked.mad[8:16] + mad[16:]
        if mad[1] in SMP_CLASSES:
            mad = mad[:24] + asked.mad[_KEY] + mad[32:]
            if mad[1] == madwire.CLASS_SUBN_DR:
                mad = mad[:6] + b"\0" + mad[7:]
        asked.user.deliver(mad, slid, asked.sqp, asked.dqp, 0)

    # ---- time ----

    def _check_later(self) -> None:
        if not self._checking:
            self._checking = True
            self._call_later(CHECK_NS, self._check)

    def _check(self) -> None:
        """Repeat what was not answered in time, and give it back after the last try."""
        self._checking = False
        now_ns = self._now_ns()
        for key, asked in [item for item in self._asked.items() if item[1].due_ns <= now_ns]:
            if asked.left:
                asked.left -= 1
                asked.due_ns = now_ns + TRY_NS
                self._transmit(asked.user, asked.sent, asked.dlid, asked.dqp, asked.sqp)
            else:
                del self._asked[key]
                self._counts[asked.user] -= 1
                asked.user.deliver(asked.mad, asked.dlid, asked.dqp, asked.sqp, ETIMEDOUT)
        if self._long.run_timers(now_ns) or self._asked:
            self._check_later()
