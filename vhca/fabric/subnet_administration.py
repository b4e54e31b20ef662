"""Subnet administration: the directory of the subnet, answered on QP1 of the subnet manager's port.

Who asks gets paths, groups, nodes, ports, cables and services (15.2 of volume 1); component masks are honoured, tables
go by RMPP. Answers come from what the subnet manager found; joins and leaves make it rewrite multicast tables before
they are answered, so that a joined port misses nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from vhca.fabric import sa_records
from vhca.fabric.multicast import Group, MulticastGroups
from vhca.fabric.rmpp import RmppSender
from vhca.fabric.sa_records import NotOnePath, matches
from vhca.fabric.subnet_manager import SubnetManager
from vhca.fabric.topology import PortKey
from vhca.layout import Layout
from vhca.management.packets import gmp_reply
from vhca.wire import mad as madwire
from vhca.wire import sa
from vhca.wire.mad import METHOD_DELETE, METHOD_GET, METHOD_GET_TABLE, METHOD_SET, InformInfo, SaMad
from vhca.wire.packet import SEND, UD, Packet
from vhca.wire.sa import McMemberRecord, PathRecord, ServiceRecord

RESP_TIME: Final = 18
MAX_SERVICES: Final = 4096
MAX_SUBSCRIBERS: Final = 1024
_ALL_TRAPS: Final = 0xFFFF
_FOREVER: Final = 0xFFFFFFFF

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


@dataclass(frozen=True, slots=True)
class _Subscriber:
    lid: int
    qpn: int
    trap_number: int


class SubnetAdministration:
    """The SA of one subnet; shares knowledge with its subnet manager."""

    def __init__(self, manager: SubnetManager, send: Callable[[Packet], None], now_ns: Callable[[], int]) -> None:
        self.manager = manager
        self.multicast = MulticastGroups()
        self.services: dict[tuple[int, bytes, int], tuple[ServiceRecord, int | None]] = {}
        self.counters: Counter[str] = Counter()
        self._send = send
        self._now_ns = now_ns
        self._rmpp = RmppSender(send, now_ns)
        self._subscribers: set[_Subscriber] = set()
        self._present: set[bytes] = set()
        self._report_tid = 0

    # Outside

    def receive(self, packet: Packet) -> None:
        """A packet for QP1 of the manager's port."""
        mad = packet.payload
        well_formed = packet.dest_qp == 1 and packet.service == UD and len(mad) == madwire.MAD_BYTES
        well_formed = well_formed and mad[0] == madwire.BASE_VERSION and mad[1] == madwire.CLASS_SUBN_ADM
        if not well_formed or packet.qkey != madwire.QP1_QKEY:
            self.counters["bad_packet"] += 1
            return
        request = SaMad.from_bytes(mad)
        if request.rmpp_flags & madwire.RMPP_ACTIVE and request.rmpp_type != madwire.RMPP_DATA:
            self._rmpp.control((packet.slid, packet.src_qp, request.tid), request)
        elif request.method & madwire.METHOD_RESPONSE:
            self.counters["responses"] += 1
        elif request.rmpp_flags & madwire.RMPP_ACTIVE and not request.rmpp_flags & madwire.RMPP_LAST:
            # Requests of several segments exist for MultiPathRecord only.
            self.counters["long_requests"] += 1
        else:
            self.counters["requests"] += 1
            self._dispatch(packet, request)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        return self._rmpp.next_deadline()

    def run_timers(self, now_ns: int) -> None:
        """Repeat segments that were not acknowledged."""
        self._rmpp.run_timers(now_ns)

    def topology_changed(self) -> None:
        """The manager finished a sweep: absent ports leave their groups, subscribers hear who came and went."""
        present = {
            madwire.gid(port.info.gid_prefix, port.guid) for _, port in self.manager.topology.end_ports() if port.lid
        }
        for group, gone in self.multicast.purge(present):
            self._group_changed(group, gone, None)
        for group in self.multicast.groups.values():
            # Members may hang on another port now.
            self._write(group, None)
        for port_gid in sorted(self._present - present):
            self._report(madwire.TRAP_GID_OUT_OF_SERVICE, port_gid)
        for port_gid in sorted(present - self._present):
            self._report(madwire.TRAP_GID_IN_SERVICE, port_gid)
        self._present = present

    # Requests

    def _dispatch(self, packet: Packet, request: SaMad) -> None:
        method, attr_id = request.method, request.attr_id
        if request.class_version != madwire.SA_CLASS_VERSION:
            self._answer(packet, request, madwire.STATUS_BAD_VERSION)
        elif method in (METHOD_GET, METHOD_GET_TABLE):
            self._query(packet, request)
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
        self.counters[f"unsupported_attribute_{request.attr_id:#06x}"] += 1
        self._answer(packet, request, madwire.STATUS_UNSUPPORTED_ATTRIBUTE)

    def _query(self, packet: Packet, request: SaMad) -> None:
        table = request.method == METHOD_GET_TABLE
        if request.attr_id == madwire.ATTR_CLASS_PORT_INFO and not table:
            self._answer(packet, request, 0, _class_port_info())
            return
        layout = _TABLES.get(request.attr_id)
        if layout is None:
            self._unsupported(packet, request)
            return
        wanted = layout.from_bytes(request.data.ljust(layout.SIZE, b"\0"))
        try:
            records = list(self._records(layout, wanted, request.component_mask))
        except NotOnePath as problem:
            self._answer(packet, request, problem.status)
            return
        if table:
            self._answer_table(packet, request, layout, records)
        elif not records:
            self._answer(packet, request, madwire.SA_STATUS_NO_RECORDS)
        elif len(records) > 1 and not isinstance(wanted, PathRecord):
            self._answer(packet, request, madwire.SA_STATUS_TOO_MANY_RECORDS)
        else:
            self._answer(packet, request, 0, records[0])

    def _records(self, layout: type[Layout], wanted: Layout, mask: int) -> Iterable[Layout]:
        if isinstance(wanted, PathRecord):
            return sa_records.paths(self.manager, self.multicast, wanted, mask)
        if isinstance(wanted, McMemberRecord):
            return self.multicast.query(wanted, mask)
        if isinstance(wanted, ServiceRecord):
            every: Iterable[Layout] = self._live_services()
        elif isinstance(wanted, sa.InformInfoRecord):
            every = self._inform_records()
        else:
            every = sa_records.EVERY[layout](self.manager)
        return [record for record in every if matches(record, wanted, mask)]

    def _membership(self, packet: Packet, request: SaMad) -> None:
        wanted = McMemberRecord.from_bytes(request.data)
        mask = request.component_mask
        found = self.manager.topology.by_gid(wanted.port_gid)
        created = gone = False
        if found is None:
            self._answer(packet, request, madwire.SA_STATUS_INVALID_GID)
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
        key = (record.service_id, record.gid, record.pkey)
        if request.method == METHOD_DELETE:
            if self.services.pop(key, None) is None:
                self._answer(packet, request, madwire.SA_STATUS_NO_RECORDS)
                return
        elif key not in self.services and len(self.services) >= MAX_SERVICES:
            self._answer(packet, request, madwire.SA_STATUS_NO_RESOURCES)
            return
        else:
            endless = record.lease_s in (0, _FOREVER)
            expires = None if endless else self._now_ns() + record.lease_s * 1_000_000_000
            self.services[key] = (record, expires)
        self._answer(packet, request, 0, record)

    def _live_services(self) -> list[ServiceRecord]:
        now = self._now_ns()
        expired = [key for key, (_, expires) in self.services.items() if expires is not None and expires <= now]
        for key in expired:
            del self.services[key]
        return [record for record, _ in self.services.values()]

    def _inform(self, packet: Packet, request: SaMad) -> None:
        inform = InformInfo.from_bytes(request.data)
        qpn = inform.qpn or 1
        subscriber = _Subscriber(packet.slid, qpn, inform.trap_number)
        if not inform.subscribe:
            self._subscribers.discard(subscriber)
        elif len(self._subscribers) < MAX_SUBSCRIBERS:
            self._subscribers.add(subscriber)
        else:
            self._answer(packet, request, madwire.SA_STATUS_NO_RESOURCES)
            return
        self._answer(packet, request, 0, inform)

    def _inform_records(self) -> list[Layout]:
        records: list[Layout] = []
        for number, subscriber in enumerate(sorted(self._subscribers, key=lambda s: (s.lid, s.qpn, s.trap_number))):
            found = self.manager.topology.by_lid(subscriber.lid)
            if found is None:
                continue
            port_gid = madwire.gid(found[1].info.gid_prefix, found[1].guid)
            inform = InformInfo(is_generic=1, subscribe=1, trap_number=subscriber.trap_number, qpn=subscriber.qpn)
            records.append(sa.InformInfoRecord(subscriber_gid=port_gid, enumeration=number, inform=inform))
        return records

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
        data = b"".join(record.to_bytes().ljust(stride, b"\0") for record in records)
        key = (packet.slid, packet.src_qp, request.tid)
        self._rmpp.start(key, lambda mad: self._packet_to(packet, mad), header, data)

    def _packet_to(self, request: Packet, mad: bytes) -> Packet:
        return gmp_reply(request, mad, self.manager.lid)

    def _report(self, trap_number: int, about: bytes) -> None:
        """Tell subscribers about a GID (13.4.11); sent once, receivers may sweep for themselves."""
        manager = self.manager
        for subscriber in self._subscribers:
            if subscriber.trap_number not in (trap_number, _ALL_TRAPS):
                continue
            notice = madwire.Notice(
                is_generic=1,
                type=madwire.NOTICE_TYPE_INFORMATION,
                producer_type=madwire.PRODUCER_CLASS_MANAGER,
                trap_number=trap_number,
                issuer_lid=manager.lid,
                details=(bytes(6) + about).ljust(54, b"\0"),
                issuer_gid=madwire.gid(manager.gid_prefix, manager.guid),
            )
            self._report_tid += 1
            report = SaMad(
                base_version=1,
                mgmt_class=madwire.CLASS_SUBN_ADM,
                class_version=madwire.SA_CLASS_VERSION,
                method=madwire.METHOD_REPORT,
                tid=self._report_tid,
                attr_id=madwire.ATTR_NOTICE,
                data=notice.to_bytes().ljust(madwire.SA_DATA_BYTES, b"\0"),
            )
            self.counters["reports"] += 1
            self._send(
                Packet(
                    dlid=subscriber.lid,
                    slid=manager.lid,
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
        capability_mask=sa.CAP_MULTICAST,
        capability_mask2=sa.CAP2_SEND_ONLY_FULL_MEMBER,
        resp_time=RESP_TIME,
    )
