"""Subnet administration: the directory of the subnet, answered on QP1 of the subnet manager's port.

Who asks gets paths, groups, nodes, ports, cables and services (15.2 of volume 1); component masks are honoured, tables
go by RMPP. Answers come from what the subnet manager found; joins and leaves make it rewrite multicast tables before
they are answered, so that a joined port misses nothing.

A port speaks for itself only: the switch vouches for the LID of a request, and what a request adds, changes or removes
must belong to that port. Joins by proxy are refused. Nobody is trusted (15.4.1): there is no SM_Key to know, and a
request with another one is dropped. Each port has a share of the groups, services and subscriptions, a bounded queue of
requests, and its turn (:mod:`vhca.management.fair_queue`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from typing import Final

from vhca.counting import Tally
from vhca.layout import Layout
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.packets import gmp_reply
from vhca.subnet import records
from vhca.subnet.counters import DirectoryCount, DirectoryCountOf
from vhca.subnet.manager import SubnetManager
from vhca.subnet.multicast import Group, MulticastGroups
from vhca.subnet.records import NotOnePath, matches
from vhca.subnet.registry import Services, Subscribers
from vhca.subnet.rmpp import RmppSender, TableResponse
from vhca.subnet.topology import PortKey
from vhca.wire import mad as madwire
from vhca.wire import sa, smp
from vhca.wire.mad import METHOD_DELETE, METHOD_GET, METHOD_GET_TABLE, METHOD_SET, InformInfo, SaMad
from vhca.wire.packet import SEND, UD, Packet, Route
from vhca.wire.sa import McMemberRecord, PathRecord, ServiceRecord

RESP_TIME: Final = 18
REQUESTS_PER_LID: Final = 64
REPORTS_WAITING: Final = 1024
MAX_RECORDS: Final = 1 << 16
RECORDS_PER_TURN: Final = 16
REPORTS_PER_TURN: Final = 8
GROUPS_PER_TURN: Final = 16
# Askers of the queue that are no LID: the SA itself.
_REPORTS: Final = -1
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
        self.multicast = MulticastGroups(ports, group_mtu)
        self.services = Services(ports)
        self.subscribers = Subscribers(ports)
        self.counters: Counter[DirectoryCount] = Counter()
        self.counters_of: Tally[DirectoryCountOf] = Tally()
        self._send = send
        self._now_ns = now_ns
        self._queue = FairQueue(call_soon, REQUESTS_PER_LID)
        self._rmpp = RmppSender(send, now_ns, self._queue)
        self._present: dict[bytes, int] = {}  # port GID -> LID
        self._changed = False  # whether the topology changed since it was last looked at
        self._report_tid = (random or SystemRandom()).getrandbits(64)

    # Outside

    def receive(self, packet: Packet) -> None:
        """A packet for QP1 of the manager's port."""
        mad = packet.payload
        well_formed = packet.dest_qp == 1 and packet.service == UD and len(mad) == madwire.MAD_BYTES
        well_formed = well_formed and mad[0] == madwire.BASE_VERSION and mad[1] == madwire.CLASS_SUBN_ADM
        if not well_formed or packet.qkey != madwire.QP1_QKEY:
            self.counters[DirectoryCount.BAD_PACKET] += 1
            return
        request = SaMad.from_bytes(mad)
        if request.rmpp_flags & madwire.RMPP_ACTIVE and request.rmpp_type != madwire.RMPP_DATA:
            self._rmpp.control((packet.route.slid, packet.src_qp, request.tid), request)
        elif request.method & madwire.METHOD_RESPONSE:
            self.counters[DirectoryCount.RESPONSES] += 1
        elif request.rmpp_flags & madwire.RMPP_ACTIVE and not request.rmpp_flags & madwire.RMPP_LAST:
            # Requests of several segments exist for MultiPathRecord only.
            self.counters[DirectoryCount.LONG_REQUESTS] += 1
        else:
            self._accept(packet, request)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        return self._rmpp.next_deadline()

    def run_timers(self, now_ns: int) -> None:
        """Repeat segments that were not acknowledged."""
        self._rmpp.run_timers(now_ns)

    def topology_changed(self) -> None:
        """The manager finished a sweep: absent ports lose what they had, subscribers hear who came and went."""
        self._changed = True
        if not self._queue.waiting(_TOPOLOGY):
            self._queue.put(_TOPOLOGY, self._follow_topology())

    def _follow_topology(self) -> Job:
        while self._changed:
            self._changed = False
            ends = [port for _, port in self.manager.topology.end_ports() if port.lid]
            present = {madwire.gid(port.info.gid_prefix, port.guid): port.lid for port in ends}
            before, self._present = self._present, present
            yield
            for port_gid in sorted({*before, *self.multicast.ports()} - present.keys()):
                yield from self._forget(port_gid, before.get(port_gid))
            for number, group in enumerate(list(self.multicast.groups.values()), 1):
                # Members may hang on another port now.
                self._write(group, None)
                if number % GROUPS_PER_TURN == 0:
                    yield
            for port_gid in sorted(before.keys() - present):
                self._report(madwire.TRAP_GID_OUT_OF_SERVICE, port_gid)
            for port_gid in sorted(present.keys() - before):
                self._report(madwire.TRAP_GID_IN_SERVICE, port_gid)

    def _forget(self, port_gid: bytes, lid: int | None) -> Job:
        """A port is gone: so is all that it told."""
        self.services.forget(port_gid)
        if lid is not None:
            self.subscribers.forget(lid)
        yield
        for group, gone in self.multicast.purge(port_gid):
            self._group_changed(group, gone, None)
            yield

    # Requests

    def _accept(self, packet: Packet, request: SaMad) -> None:
        """Put a request into its sender's queue."""
        if request.sm_key:
            # Nobody knows a key (C15-0.1.5: such a request gets no answer).
            self.counters[DirectoryCount.BAD_SM_KEY] += 1
        elif self._queue.put(packet.route.slid, self._dispatch(packet, request)):
            self.counters[DirectoryCount.REQUESTS] += 1
        else:
            # Hosts repeat questions that get no answer.
            self.counters[DirectoryCount.TOO_MANY_REQUESTS] += 1

    def _is_sender(self, packet: Packet, port_gid: bytes) -> bool:
        """Tell whether a request comes from the port with this GID."""
        found = self.manager.topology.by_gid(port_gid)
        if found is not None and found[1].lid == packet.route.slid:
            return True
        self.counters[DirectoryCount.NOT_ONES_OWN] += 1
        return False

    def _dispatch(self, packet: Packet, request: SaMad) -> Job:
        method, attr_id = request.method, request.attr_id
        if request.class_version != madwire.SA_CLASS_VERSION:
            self._answer(packet, request, madwire.STATUS_BAD_VERSION)
        elif method in (METHOD_GET, METHOD_GET_TABLE):
            yield from self._query(packet, request)
        elif method in (METHOD_SET, METHOD_DELETE) and attr_id == sa.MC_MEMBER_RECORD:
            self._membership(packet, request)
        elif method in (METHOD_SET, METHOD_DELETE) and attr_id == sa.SERVICE_RECORD:
            self._service(packet, request)
        elif method == METHOD_SET and attr_id == madwire.ATTR_INFORM_INFO:
            self._inform(packet, request)
        elif attr_id in _TABLES or attr_id in (madwire.ATTR_CLASS_PORT_INFO, madwire.ATTR_INFORM_INFO):
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
        wanted = layout.from_bytes(request.data.ljust(layout.SIZE, b"\0"))
        # One path is as good as another; of other records, two are too many.
        enough = MAX_RECORDS if table else 1 if isinstance(wanted, PathRecord) else 2
        records: list[Layout] = []
        try:
            for number, record in enumerate(self._records(layout, wanted, request), 1):
                if record is not None:
                    records.append(record)
                    if len(records) >= enough:
                        break
                if number % RECORDS_PER_TURN == 0:
                    yield
        except NotOnePath as problem:
            self._answer(packet, request, problem.status)
            return
        if table:
            yield
            self._answer_table(packet, request, layout, records)
        elif not records:
            self._answer(packet, request, madwire.SA_STATUS_NO_RECORDS)
        elif len(records) > 1:
            self._answer(packet, request, madwire.SA_STATUS_TOO_MANY_RECORDS)
        else:
            self._answer(packet, request, 0, records[0])

    def _records(self, layout: type[Layout], wanted: Layout, request: SaMad) -> Iterator[Layout | None]:
        """Records that match, and None for each that was looked at and does not."""
        mask = request.component_mask
        if isinstance(wanted, PathRecord):
            yield from records.paths(self.manager, self.multicast, wanted, mask)
            return
        if isinstance(wanted, McMemberRecord):
            yield from self.multicast.query(wanted, mask)
            return
        if isinstance(wanted, ServiceRecord):
            every: Iterator[Layout] = self.services.all(self._now_ns())
        elif isinstance(wanted, sa.InformInfoRecord):
            every = self._inform_records()
        else:
            every = records.EVERY[layout](self.manager)
        bits = 0
        by_bits = mask & sa.PORT_INFO_CAPABILITY_MASK and request.attr_mod & sa.PORT_INFO_MASK_MATCH
        if isinstance(wanted, sa.PortInfoRecord) and by_bits:
            bits = wanted.info.capability_mask
            mask &= ~sa.PORT_INFO_CAPABILITY_MASK
        for record in every:
            able = not isinstance(record, sa.PortInfoRecord) or record.info.capability_mask & bits == bits
            yield record if able and matches(record, wanted, mask) else None

    def _membership(self, packet: Packet, request: SaMad) -> None:
        wanted = McMemberRecord.from_bytes(request.data)
        mask = request.component_mask
        found = self.manager.topology.by_gid(wanted.port_gid)
        created = gone = False
        if found is None:
            self._answer(packet, request, madwire.SA_STATUS_INVALID_GID)
            return
        if not self._is_sender(packet, wanted.port_gid):
            # o15-0.2.1: only the port itself changes its membership.
            self._answer(packet, request, madwire.SA_STATUS_REQ_INVALID)
            return
        if request.method == METHOD_SET:
            status, group, created = self.multicast.join(wanted, mask)
        else:
            before = self.multicast.groups.get(wanted.mgid)
            left = before.record_for(wanted.port_gid) if before is not None else None
            status, group, gone = self.multicast.leave(wanted, mask)
        if group is None:
            self._answer(packet, request, status)
            return
        record = group.record_for(wanted.port_gid) if request.method == METHOD_SET else left
        if created:
            self._report(madwire.TRAP_GROUP_CREATED, group.record.mgid)
        self._group_changed(group, gone, lambda: self._answer(packet, request, 0, record))

    def _group_changed(self, group: Group, gone: bool, done: Callable[[], None] | None) -> None:
        if gone:
            self._report(madwire.TRAP_GROUP_DELETED, group.record.mgid)
        self._write(group, done)

    def _write(self, group: Group, done: Callable[[], None] | None) -> None:
        """Have the tables written for a group as it is now."""
        topology = self.manager.topology
        receivers: set[PortKey] = set()
        senders: set[PortKey] = set()
        for port_gid, state in group.members.items():
            found = topology.by_gid(port_gid)
            place = topology.attachment(*found) if found is not None else None
            if place is not None:
                (receivers if state & (sa.JOIN_FULL | sa.JOIN_NON) else senders).add(place)
        self.manager.set_group(group.record.mlid, receivers, senders, done)

    def _service(self, packet: Packet, request: SaMad) -> None:
        record = ServiceRecord.from_bytes(request.data)
        if not self._is_sender(packet, record.gid):
            status = madwire.SA_STATUS_DENIED
        elif request.method == METHOD_DELETE:
            status = self.services.remove(record, self._now_ns())
        else:
            status = self.services.register(record, self._now_ns())
        self._answer(packet, request, status, None if status else record)

    def _inform(self, packet: Packet, request: SaMad) -> None:
        inform = InformInfo.from_bytes(request.data)
        if self.manager.topology.by_lid(packet.route.slid) is None:
            status = madwire.SA_STATUS_DENIED
        else:
            status = self.subscribers.change(packet.route.slid, inform)
        self._answer(packet, request, status, None if status else inform)

    def _inform_records(self) -> Iterator[Layout]:
        for number, subscriber in enumerate(self.subscribers.all()):
            found = self.manager.topology.by_lid(subscriber.lid)
            if found is None:
                continue
            port_gid = madwire.gid(found[1].info.gid_prefix, found[1].guid)
            inform = InformInfo(is_generic=1, subscribe=1, trap_number=subscriber.trap_number, qpn=subscriber.qpn)
            yield sa.InformInfoRecord(subscriber_gid=port_gid, enumeration=number, inform=inform)

    # Answers

    def _answer(self, packet: Packet, request: SaMad, status: int, record: Layout | None = None) -> None:
        reply = _header(request, status)
        if record is not None:
            reply.data = record.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0")
            reply.attr_offset = sa.stride_bytes(type(record)) // 8
        self._send(self._packet_to(packet, reply.to_bytes()))

    def _answer_table(self, packet: Packet, request: SaMad, layout: type[Layout], records: list[Layout]) -> None:
        stride = sa.stride_bytes(layout)
        header = _header(request, 0)
        header.method = madwire.METHOD_GET_TABLE_RESP
        header.attr_offset = stride // 8
        key = (packet.route.slid, packet.src_qp, request.tid)
        self._rmpp.start(key, lambda mad: self._packet_to(packet, mad), TableResponse(header, records, stride))

    def _packet_to(self, request: Packet, mad: bytes) -> Packet:
        return gmp_reply(request, mad, self.manager.lid)

    def _report(self, trap_number: int, about: bytes) -> None:
        """Tell subscribers about a GID (13.4.11); sent once, receivers may sweep for themselves."""
        if not self.subscribers:
            return
        if not self._queue.put(_REPORTS, self._send_reports(trap_number, about), limit=REPORTS_WAITING):
            self.counters[DirectoryCount.REPORTS_LOST] += 1

    def _send_reports(self, trap_number: int, about: bytes) -> Job:
        manager = self.manager
        notice = madwire.Notice(
            is_generic=1,
            type=madwire.NOTICE_TYPE_INFORMATION,
            producer_type=madwire.PRODUCER_CLASS_MANAGER,
            trap_number=trap_number,
            issuer_lid=manager.lid,
            details=(bytes(6) + about).ljust(54, b"\0"),
            issuer_gid=madwire.gid(manager.gid_prefix, manager.guid),
        )
        data = notice.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0")
        for number, subscriber in enumerate(self.subscribers.of(trap_number), 1):
            self._report_tid = self._report_tid + 1 & 0xFFFFFFFFFFFFFFFF
            report = SaMad(
                base_version=1,
                mgmt_class=madwire.CLASS_SUBN_ADM,
                class_version=madwire.SA_CLASS_VERSION,
                method=madwire.METHOD_REPORT,
                tid=self._report_tid,
                attr_id=madwire.ATTR_NOTICE,
                data=data,
            )
            self.counters[DirectoryCount.REPORTS] += 1
            self._send(
                Packet(
                    route=Route(subscriber.lid, manager.lid),
                    service=UD,
                    op=SEND,
                    dest_qp=subscriber.qpn,
                    psn=self._report_tid & 0xFFFFFF,
                    payload=report.to_bytes(),
                    mtu=256,
                    qkey=madwire.QP1_QKEY,
                    src_qp=1,
                )
            )
            if number % REPORTS_PER_TURN == 0:
                yield


def _header(request: SaMad, status: int) -> SaMad:
    """The answer to a request, without records."""
    reply = SaMad.from_bytes(request.to_bytes())
    reply.method = request.method | madwire.METHOD_RESPONSE
    if request.method == METHOD_SET:
        reply.method = madwire.METHOD_GET_RESP
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
        capability_mask=sa.CAP_MULTICAST | sa.CAP_PORT_INFO_MASK_MATCH,
        capability_mask2=sa.CAP2_SEND_ONLY_FULL_MEMBER,
        resp_time=RESP_TIME,
    )
