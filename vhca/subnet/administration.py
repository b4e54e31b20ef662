"""Subnet administration: the directory of the subnet, answered on QP1 of the subnet manager's port.

Who asks gets paths, groups, nodes, ports, cables and services (15.2 of volume 1); component masks are honoured, tables
go by RMPP. Answers come from what the subnet manager found; joins and leaves make it rewrite multicast tables before
they are answered, so that a joined port misses nothing.

A port speaks for itself only: the switch vouches for the LID of a request, and what a request adds, changes or removes
must belong to that port. Joins by proxy are refused. Nobody is trusted more than others (15.4.1): the SM_Key of a
request is 0, or the one that everybody knows, and a request with another one is dropped. Each port has a share of the
groups, services and subscriptions, a bounded queue of requests, and its turn (:mod:`vhca.management.fair_queue`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from typing import Final

from vhca.counting import Tally
from vhca.layout import Layout
from vhca.management.deadlines import earliest
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.packets import gmp_reply
from vhca.management.refusal import refusal, response_method
from vhca.subnet import lanes, paths, records
from vhca.subnet.counters import DirectoryCount, DirectoryCountOf, ManagerCount
from vhca.subnet.election import OPENSM_KEY
from vhca.subnet.manager import SubnetManager
from vhca.subnet.multicast import MulticastGroups
from vhca.subnet.paths import PATH_ENDS, Horizon, NotOnePath
from vhca.subnet.records import matches
from vhca.subnet.registrar import Registrar
from vhca.subnet.registry import Services, Subscribers
from vhca.subnet.rmpp import RmppReceiver, RmppSender, TableResponse
from vhca.wire import mad as madwire
from vhca.wire import sa, smp
from vhca.wire.mad import METHOD_DELETE, METHOD_GET, METHOD_GET_TABLE, METHOD_SET, SaMad
from vhca.wire.packet import UD, Packet
from vhca.wire.sa import McMemberRecord, PathRecord, ServiceRecord

RESP_TIME: Final = 18
REQUESTS_PER_LID: Final = 64
MAX_RECORDS: Final = 1 << 16
"""In one answer; who asks for more is told so, and asks for less."""
RECORDS_PER_TURN: Final = 16
# An asker of the queue that is no LID: the SA itself.
_TOPOLOGY: Final = -2

_TABLES: Final[dict[int, type[Layout]]] = {
    sa.NODE_RECORD: sa.NodeRecord,
    sa.PORT_INFO_RECORD: sa.PortInfoRecord,
    sa.SWITCH_INFO_RECORD: sa.SwitchInfoRecord,
    sa.SM_INFO_RECORD: sa.SmInfoRecord,
    sa.LINK_RECORD: sa.LinkRecord,
    sa.P_KEY_TABLE_RECORD: sa.PKeyTableRecord,
    sa.SERVICE_RECORD: sa.ServiceRecord,
    sa.MC_MEMBER_RECORD: sa.McMemberRecord,
    sa.PATH_RECORD: sa.PathRecord,
    sa.INFORM_INFO_RECORD: sa.InformInfoRecord,
    sa.GUID_INFO_RECORD: sa.GuidInfoRecord,
    sa.LINEAR_TABLE_RECORD: sa.LinearTableRecord,
    sa.MULTICAST_TABLE_RECORD: sa.MulticastTableRecord,
    sa.SL_TO_VL_RECORD: sa.SlToVlRecord,
    sa.VL_ARBITRATION_RECORD: sa.VlArbitrationRecord,
}
_KNOWN: Final = {
    *_TABLES,
    sa.MULTI_PATH_RECORD,
    sa.TRACE_RECORD,
    madwire.ATTR_CLASS_PORT_INFO,
    madwire.ATTR_INFORM_INFO,
}


class SubnetAdministration:
    """The SA of one subnet with `ports` places for adapters; shares knowledge with its subnet manager."""

    def __init__(
        self,
        manager: SubnetManager,
        send: Callable[[Packet], None],
        now_ns: Callable[[], int],
        call_soon: CallSoon,
        ports: int,
        random: Random | None = None,
        group_mtu: int = smp.MTU_4096,
    ) -> None:
        self.manager = manager
        self._horizon = Horizon(manager)
        self.counters: Counter[DirectoryCount] = Counter()
        self.counters_of: Tally[DirectoryCountOf] = Tally()
        self._send = send
        self._now_ns = now_ns
        self._queue = FairQueue(call_soon, REQUESTS_PER_LID)
        self._rmpp = RmppSender(send, now_ns, self._queue)
        self._long = RmppReceiver(send, now_ns)
        self._registrar = Registrar(
            manager,
            send,
            now_ns,
            self._queue,
            ports,
            group_mtu,
            self._horizon,
            random or SystemRandom(),
            self.counters,
            self._answer,
        )

    @property
    def multicast(self) -> MulticastGroups:
        """The groups of the subnet."""
        return self._registrar.multicast

    @property
    def services(self) -> Services:
        """What ports offer."""
        return self._registrar.services

    @property
    def subscribers(self) -> Subscribers:
        """Who wants reports."""
        return self._registrar.subscribers

    # Outside

    def receive(self, packet: Packet) -> None:
        """A packet for QP1 of the manager's port."""
        mad = packet.payload
        well_formed = packet.dest_qp == 1 and packet.service == UD and len(mad) == madwire.MAD_BYTES
        well_formed = well_formed and mad[0] == madwire.BASE_VERSION and mad[1] == madwire.CLASS_SUBN_ADM
        if not well_formed or packet.qkey != madwire.QP1_QKEY:
            self.counters[DirectoryCount.BAD_PACKET] += 1
            return
        if not self.manager.is_master:
            self._refuse(packet)
            return
        request = SaMad.from_bytes(mad)
        key = (packet.route.slid, packet.src_qp, request.tid)
        if request.rmpp_flags & madwire.RMPP_ACTIVE and request.rmpp_type != madwire.RMPP_DATA:
            self._rmpp.control(key, request)
        elif request.method & madwire.METHOD_RESPONSE:
            heard = request.method == madwire.METHOD_REPORT_RESP and self._registrar.reports.heard(
                packet.route.slid, request.tid
            )
            self.counters[DirectoryCount.RESPONSES] += not heard
        elif request.rmpp_flags & madwire.RMPP_ACTIVE:
            whole = self._long.segment(key, request, lambda mad: self._packet_to(packet, mad))
            if whole is not None:
                self._accept(packet, request, whole)
        else:
            self._accept(packet, request, request.data)

    def _refuse(self, packet: Packet) -> None:
        """Another manager is master, so administration is elsewhere: who still asks here is told so at once."""
        self.counters[DirectoryCount.NOT_HERE] += 1
        reply = refusal(packet.payload)
        if reply is not None:
            self._send(self._packet_to(packet, reply))

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        reports = self._registrar.reports
        return earliest(self._rmpp.next_deadline(), self._long.next_deadline(), reports.next_deadline())

    def run_timers(self, now_ns: int) -> None:
        """Repeat segments and reports that were not acknowledged, and forget what did not go on."""
        self._rmpp.run_timers(now_ns)
        self._long.run_timers(now_ns)
        self._registrar.reports.run_timers(now_ns)

    def topology_changed(self) -> None:
        """The manager finished a sweep: absent ports lose what they had, subscribers hear who came and went."""
        self._horizon.forget()
        self._registrar.changed()
        if not self._queue.waiting(_TOPOLOGY):
            self._queue.put(_TOPOLOGY, self._registrar.follow())

    # Requests

    def _accept(self, packet: Packet, request: SaMad, data: bytes) -> None:
        """Put a request into its sender's queue; `data` may have come in several segments."""
        if request.sm_key not in (0, OPENSM_KEY):
            # C15-0.1.5: a request with a wrong key gets no answer.
            self.counters[DirectoryCount.BAD_SM_KEY] += 1
        elif self._queue.put(self._asker(packet), self._dispatch(packet, request, data)):
            self.counters[DirectoryCount.REQUESTS] += 1
        else:
            # Hosts repeat questions that get no answer.
            self.counters[DirectoryCount.TOO_MANY_REQUESTS] += 1

    def _asker(self, packet: Packet) -> int:
        """The base LID of the port that sent a request, whichever of its LIDs it used."""
        found = self.manager.topology.by_lid(packet.route.slid)
        return found[1].lid if found is not None else packet.route.slid

    def _dispatch(self, packet: Packet, request: SaMad, data: bytes) -> Job:
        method, attr_id = request.method, request.attr_id
        if request.class_version != madwire.SA_CLASS_VERSION:
            self._answer(packet, request, madwire.STATUS_BAD_VERSION)
        elif method in (METHOD_GET, METHOD_GET_TABLE):
            yield from self._query(packet, request)
        elif (method, attr_id) == (madwire.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD):
            yield from self._multi_paths(packet, request, data)
        elif (method, attr_id) == (madwire.METHOD_GET_TRACE_TABLE, sa.PATH_RECORD):
            yield from self._trace(packet, request)
        elif method in (METHOD_SET, METHOD_DELETE) and attr_id == sa.MC_MEMBER_RECORD:
            yield from self._registrar.membership(packet, request, self._queue.hold(self._asker(packet)))
        elif method in (METHOD_SET, METHOD_DELETE) and attr_id == sa.SERVICE_RECORD:
            self._registrar.service(packet, request)
        elif method in (METHOD_SET, METHOD_DELETE) and attr_id == sa.GUID_INFO_RECORD:
            yield from self._registrar.alias(packet, request)
        elif method == METHOD_SET and attr_id == madwire.ATTR_INFORM_INFO:
            self._registrar.inform(packet, request)
        elif attr_id in _KNOWN:
            self._answer(packet, request, madwire.STATUS_UNSUPPORTED_METHOD)
        else:
            self._unsupported(packet, request)

    def _unsupported(self, packet: Packet, request: SaMad) -> None:
        self.counters_of.add(DirectoryCountOf.UNSUPPORTED_ATTRIBUTE, request.attr_id)
        self._answer(packet, request, madwire.STATUS_UNSUPPORTED_ATTRIBUTE)

    def _query(self, packet: Packet, request: SaMad) -> Job:
        table = request.method == METHOD_GET_TABLE
        if request.attr_id == madwire.ATTR_CLASS_PORT_INFO and not table:
            self._answer(packet, request, 0, _class_port_info())
            return
        layout = _TABLES.get(request.attr_id)
        if layout is None:
            self._unsupported(packet, request)
            return
        if layout is sa.PKeyTableRecord and request.sm_key != OPENSM_KEY:
            # For those who are trusted (15.4.1.2): with this key anybody is, as with OpenSM.
            self._answer(packet, request, madwire.SA_STATUS_REQ_INVALID)
            return
        wanted = layout.from_bytes(request.data.ljust(layout.SIZE, b"\0"))
        if isinstance(wanted, PathRecord) and not table and not request.component_mask & PATH_ENDS:
            self._answer(packet, request, madwire.SA_STATUS_INSUFFICIENT_COMPONENTS)
            return
        if isinstance(wanted, sa.SlToVlRecord | sa.VlArbitrationRecord):
            yield from self._lanes(packet, request, wanted)
            return
        yield from self._collect(packet, request, layout, self._records(layout, wanted, request, packet.route.slid))

    def _collect(
        self,
        packet: Packet,
        request: SaMad,
        layout: type[Layout],
        every: Iterator[Layout | None],
        *,
        table: bool = False,
    ) -> Job:
        """Answer with the records among these, of which None are not meant."""
        table = table or request.method == METHOD_GET_TABLE
        # One path is as good as another; of other records, two are too many.
        enough = MAX_RECORDS + 1 if table else 1 if layout is PathRecord else 2
        stride = sa.stride_bytes(layout)
        found: list[bytes] = []
        try:
            for number, record in enumerate(every, 1):
                if record is not None:
                    found.append(record.to_bytes().ljust(stride, b"\0"))
                    if len(found) >= enough:
                        break
                if number % RECORDS_PER_TURN == 0:
                    yield
        except NotOnePath as problem:
            self._answer(packet, request, problem.status)
            return
        if len(found) > MAX_RECORDS:
            self._answer(packet, request, madwire.SA_STATUS_NO_RESOURCES)
        elif table:
            yield
            self._answer_table(packet, request, stride, b"".join(found))
        elif not found:
            self._answer(packet, request, madwire.SA_STATUS_NO_RECORDS)
        elif len(found) > 1:
            self._answer(packet, request, madwire.SA_STATUS_TOO_MANY_RECORDS)
        else:
            self._answer(packet, request, 0, layout.from_bytes(found[0]))

    def _multi_paths(self, packet: Packet, request: SaMad, data: bytes) -> Job:
        wanted = sa.MultiPathRecord.from_bytes(data[: sa.MultiPathRecord.SIZE])
        gids = data[sa.MultiPathRecord.SIZE :]
        every = paths.multi_paths(
            self.manager, self.multicast, wanted, gids, request.component_mask, self._horizon.of(packet.route.slid)
        )
        request.attr_id = sa.PATH_RECORD  # what the answer has (15.2.5.20)
        yield from self._collect(packet, request, PathRecord, every, table=True)

    def _trace(self, packet: Packet, request: SaMad) -> Job:
        wanted = PathRecord.from_bytes(request.data)
        sees = self._horizon.of(packet.route.slid)
        path = None
        try:
            every = paths.paths(self.manager, self.multicast, wanted, request.component_mask, sees)
            for number, path in enumerate(every, 1):
                if path is not None:
                    break
                if number % RECORDS_PER_TURN == 0:
                    yield
        except NotOnePath as problem:
            self._answer(packet, request, problem.status)
            return
        request.attr_id = sa.TRACE_RECORD
        sweeps = self.manager.counters[ManagerCount.HEAVY_SWEEPS]
        nodes = iter(()) if path is None else paths.trace(self.manager, path, sweeps)
        yield from self._collect(packet, request, sa.TraceRecord, nodes, table=True)

    def _lanes(self, packet: Packet, request: SaMad, wanted: sa.SlToVlRecord | sa.VlArbitrationRecord) -> Job:
        """Tables of lanes are nobody's business but the agents': ask them, then answer."""
        every = lanes.questions(self.manager, wanted, request.component_mask, self._horizon.of(packet.route.slid))
        questions: list[lanes.Question] = []
        for number, question in enumerate(every, 1):
            if question is not None:
                questions.append(question)
                if len(questions) > lanes.MAX_QUESTIONS:
                    self._answer(packet, request, madwire.SA_STATUS_NO_RESOURCES)
                    return
            if number % RECORDS_PER_TURN == 0:
                yield
        found: list[Layout] = []
        for at in range(0, len(questions), lanes.QUESTIONS_AT_ONCE):
            some = questions[at : at + lanes.QUESTIONS_AT_ONCE]
            self.manager.inquiries.start(lanes.ask(some, found), self._queue.pause())
            yield
        yield from self._collect(packet, request, type(wanted), iter(found))

    def _records(self, layout: type[Layout], wanted: Layout, request: SaMad, asker: int) -> Iterator[Layout | None]:
        """Records that match, and None for each that was looked at and does not; `asker` is a LID."""
        mask = request.component_mask
        sees = self._horizon.of(asker)
        if isinstance(wanted, PathRecord):
            yield from paths.paths(self.manager, self.multicast, wanted, mask, sees)
            return
        if isinstance(wanted, McMemberRecord):
            trusted = request.sm_key == OPENSM_KEY
            yield from self.multicast.query(wanted, mask, self._horizon.pkeys(asker), trusted=trusted)
            return
        if isinstance(wanted, ServiceRecord):
            for service, shown, owner in self.services.all(self._now_ns()):
                theirs = self.manager.topology.by_guid(owner)
                may = theirs is not None and sees(theirs[1])
                yield shown if may and matches(service, wanted, mask) else None
            return
        if isinstance(wanted, sa.InformInfoRecord):
            for inform, subscriber in self._registrar.inform_records():
                yield inform if sees(subscriber) and matches(inform, wanted, mask) else None
            return
        bits = 0
        by_bits = mask & sa.PORT_INFO_CAPABILITY_MASK and request.attr_mod & sa.PORT_INFO_MASK_MATCH
        if isinstance(wanted, sa.PortInfoRecord) and by_bits:
            bits = wanted.info.capability_mask
            mask &= ~sa.PORT_INFO_CAPABILITY_MASK
        for each in records.EVERY[layout](self.manager):
            if each is None:
                yield None
                continue
            row, about = each
            able = not isinstance(row, sa.PortInfoRecord) or row.info.capability_mask & bits == bits
            yield row if able and matches(row, wanted, mask) and all(map(sees, about)) else None

    # Answers

    def _answer(self, packet: Packet, request: SaMad, status: int, record: Layout | None = None) -> None:
        reply = _header(request, status)
        if record is not None:
            reply.data = record.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0")
            reply.attr_offset = sa.stride_bytes(type(record)) // 8
        self._send(self._packet_to(packet, reply.to_bytes()))

    def _answer_table(self, packet: Packet, request: SaMad, stride: int, data: bytes) -> None:
        header = _header(request, 0)
        if request.method != madwire.METHOD_GET_MULTI:
            header.method = madwire.METHOD_GET_TABLE_RESP
        header.attr_offset = stride // 8
        key = (packet.route.slid, packet.src_qp, request.tid)
        self._rmpp.start(key, lambda mad: self._packet_to(packet, mad), TableResponse(header, data))

    def _packet_to(self, request: Packet, mad: bytes) -> Packet:
        return gmp_reply(request, mad, self.manager.lid)


def _header(request: SaMad, status: int) -> SaMad:
    """The answer to a request, without records."""
    reply = SaMad.from_bytes(request.to_bytes())
    reply.method = response_method(request.method)
    reply.status = status
    reply.rmpp_version = madwire.RMPP_VERSION
    reply.rmpp_type = reply.rmpp_flags = reply.rmpp_resp_time = reply.rmpp_status = 0
    reply.segment_number = reply.payload_length = 0
    reply.sm_key = 0
    reply.data = bytes(madwire.SA_DATA_BYTES)
    return reply


def _class_port_info() -> madwire.ClassPortInfo:
    return madwire.ClassPortInfo(
        base_version=1,
        class_version=madwire.SA_CLASS_VERSION,
        capability_mask=sa.CAP_OPTIONAL_RECORDS | sa.CAP_MULTICAST | sa.CAP_MULTI_PATH | sa.CAP_PORT_INFO_MASK_MATCH,
        capability_mask2=sa.CAP2_SEND_ONLY_FULL_MEMBER,
        resp_time=RESP_TIME,
    )
