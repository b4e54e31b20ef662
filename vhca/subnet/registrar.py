"""What ports tell the directory: memberships, services, subscriptions, alias GUIDs (15.2.5 of volume 1).

A port speaks for itself only: what a request adds, changes or removes must belong to the port that it comes from. What
a port has told goes with the port.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from vhca.layout import Layout
from vhca.management.fair_queue import FairQueue, Job
from vhca.subnet import lanes
from vhca.subnet.aliases import Aliases
from vhca.subnet.counters import DirectoryCount
from vhca.subnet.manager import SubnetManager
from vhca.subnet.multicast import Group, MulticastGroups
from vhca.subnet.paths import Horizon
from vhca.subnet.registry import Services, Subscribers
from vhca.subnet.reports import Event, Reports
from vhca.subnet.topology import NodePort, PortKey
from vhca.wire import mad as madwire
from vhca.wire import sa, smp
from vhca.wire.mad import METHOD_DELETE, METHOD_SET, InformInfo, SaMad
from vhca.wire.packet import Packet
from vhca.wire.sa import GuidInfoRecord, McMemberRecord, ServiceRecord

GROUPS_PER_TURN: Final = 16

Answer = Callable[[Packet, SaMad, int, Layout | None], None]
"""Answers the request in a packet with a status and a record."""


class Registrar:
    """Everything that the ports of a subnet with `ports` places have told; `answer` sends answers.

    :ivar multicast: groups. :ivar services: and :ivar subscribers: by port.
    :ivar aliases: GUIDs that ports have beside their own. :ivar reports: what subscribers hear.
    """

    def __init__(
        self,
        manager: SubnetManager,
        send: Callable[[Packet], None],
        now_ns: Callable[[], int],
        queue: FairQueue,
        ports: int,
        group_mtu: int,
        horizon: Horizon,
        random: Random,
        counters: Counter[DirectoryCount],
        answer: Answer,
    ) -> None:
        self._manager = manager
        self._now_ns = now_ns
        self._queue = queue
        self._ports = ports
        self._group_mtu = group_mtu
        self._counters = counters
        self._answer = answer
        self.aliases = Aliases(random)
        self.reports = Reports(
            send, now_ns, queue, lambda: self.subscribers, horizon, self._issuer, counters, random, ports
        )
        self._empty()
        self._present: dict[bytes, NodePort] = {}  # by GID, without aliases
        self._changed = False  # whether the topology changed since it was last looked at

    def _empty(self) -> None:
        """Nobody has told anything."""
        partitions = self._manager.partitions
        described = partitions.groups if partitions.partitions else None
        self.multicast = MulticastGroups(self._ports, self._group_mtu, described=described)
        self.services = Services(self._ports)
        self.subscribers = Subscribers(self._ports)

    def changed(self) -> None:
        """The topology is another one; :meth:`follow` will look at it."""
        self._changed = True

    def follow(self) -> Job:
        """Absent ports lose what they had, groups are led to where members hang now, subscribers hear of it."""
        while self._changed:
            self._changed = False
            if not self._manager.is_master:
                # Ports register with the new one; when this one is master again, they will do so here.
                self._empty()
                self.aliases.forget()
                self.reports.forget()
                self._present = {}
                continue
            self.aliases.apply(self._manager.topology)
            ends = [port for _, port in self._manager.topology.end_ports() if port.lid]
            present = {madwire.gid(port.info.gid_prefix, port.guid): port for port in ends}
            before, self._present = self._present, present
            yield
            for port_gid in sorted(before.keys() - present):
                port = before[port_gid]
                self.services.forget(port.guid)
                self.subscribers.forget(port.lid)
                yield
            aliases = {madwire.gid(port.info.gid_prefix, guid) for port in ends for guid in port.aliases if guid}
            for port_gid in sorted({*self.multicast.ports()} - present.keys() - aliases):
                yield from self._leave_all(port_gid)
            for number, group in enumerate(list(self.multicast.groups.values()), 1):
                # Members may hang on another port now.
                self._write(group, None)
                if number % GROUPS_PER_TURN == 0:
                    yield
            for port_gid in sorted(before.keys() - present):
                self.reports.tell(Event(madwire.TRAP_GID_OUT_OF_SERVICE, port_gid, before[port_gid]))
            for port_gid in sorted(present.keys() - before):
                self.reports.tell(Event(madwire.TRAP_GID_IN_SERVICE, port_gid, present[port_gid]))

    def _leave_all(self, port_gid: bytes) -> Job:
        """A GID is gone: so are its memberships."""
        for group, gone in self.multicast.purge(port_gid):
            if gone:
                self.reports.tell(_about(madwire.TRAP_GROUP_DELETED, group))
            self._write(group, None)
            yield

    # Requests

    def _is_sender(self, packet: Packet, port_gid: bytes) -> bool:
        """Tell whether a request comes from the port with this GID."""
        found = self._manager.topology.by_gid(port_gid)
        if found is not None and packet.route.slid in found[1].lids:
            return True
        self._counters[DirectoryCount.NOT_ONES_OWN] += 1
        return False

    def membership(self, packet: Packet, request: SaMad, free: Callable[[], None]) -> Job:
        """Set or Delete of an MCMemberRecord: the port joins, makes or leaves a group; `free` goes with the answer.

        What one port asks for meanwhile is written together. Who hears of it does in the turns of this request.
        """
        event: Event | None = None

        def answer(status: int, record: McMemberRecord | None = None) -> None:
            free()
            self._answer(packet, request, status, record)

        wanted = McMemberRecord.from_bytes(request.data)
        mask = request.component_mask
        found = self._manager.topology.by_gid(wanted.port_gid)
        if found is None:
            answer(madwire.SA_STATUS_INVALID_GID)
            return
        if not self._is_sender(packet, wanted.port_gid):
            # o15-0.2.1: only the port itself changes its membership.
            answer(madwire.SA_STATUS_REQ_INVALID)
            return
        if request.method == METHOD_SET:
            status, group, created = self.multicast.join(wanted, mask, found[1])
            event = _about(madwire.TRAP_GROUP_CREATED, group) if created and group is not None else None
        else:
            status, group, gone = self.multicast.leave(wanted, mask)
            event = _about(madwire.TRAP_GROUP_DELETED, group) if gone and group is not None else None
        if group is None:
            answer(status)
            return
        record = group.record_for(wanted.port_gid)  # after a leave, with what is left of the membership
        self._write(group, lambda: answer(0, record))
        if event is not None:
            yield from self.reports.telling(event)

    def _write(self, group: Group, done: Callable[[], None] | None) -> None:
        """Have the tables written for a group as it is now."""
        topology = self._manager.topology
        receivers: set[PortKey] = set()
        senders: set[PortKey] = set()
        for port_gid, state in group.members.items():
            found = topology.by_gid(port_gid)
            place = topology.attachment(*found) if found is not None else None
            if place is not None:
                (receivers if state & (sa.JOIN_FULL | sa.JOIN_NON) else senders).add(place)
        self._manager.set_group(group.record.mlid, receivers, senders, done)

    def service(self, packet: Packet, request: SaMad) -> None:
        """Set or Delete of a ServiceRecord."""
        record = ServiceRecord.from_bytes(request.data)
        asker = self._manager.topology.by_lid(packet.route.slid)
        owner = self._manager.topology.by_guid(int.from_bytes(record.gid[8:], "big"))
        if asker is None or owner is None or owner[1] is not asker[1]:
            self._counters[DirectoryCount.NOT_ONES_OWN] += 1
            status = madwire.SA_STATUS_DENIED
        elif request.method == METHOD_DELETE:
            named = bool(request.component_mask & sa.SERVICE_KEY)
            status = self.services.remove(record, self._now_ns(), key_named=named)
        else:
            status = self.services.register(record, owner[1].guid, self._now_ns())
        shown = ServiceRecord.from_bytes(record.to_bytes())
        shown.key = bytes(len(record.key))  # its owner has it, and nobody else is to
        self._answer(packet, request, status, None if status else shown)

    def alias(self, packet: Packet, request: SaMad) -> Job:
        """Set or Delete of a GUIDInfoRecord; what a port has told by a GUID that it gives up goes with that."""
        wanted = GuidInfoRecord.from_bytes(request.data)
        manager = self._manager
        found = manager.topology.by_lid(wanted.lid)
        lid_named = request.component_mask & 1
        if found is None or not lid_named or packet.route.slid not in found[1].lids:
            # Nobody but the port itself.
            self._counters[DirectoryCount.NOT_ONES_OWN] += 1
            self._answer(packet, request, madwire.SA_STATUS_REQ_INVALID, None)
            return
        node, port = found
        remove = request.method == METHOD_DELETE
        status, lost = self.aliases.change(manager.topology, port, wanted, request.component_mask, remove)
        if status:
            self._answer(packet, request, status, None)
            return
        for guid in lost:
            self.services.withdraw(port.guid, guid)
            yield from self._leave_all(madwire.gid(port.info.gid_prefix, guid))
        table = smp.pack_guids([port.guid, *port.aliases]).ljust(64, b"\0")
        record = GuidInfoRecord(lid=port.lid, block=0, guids=table)
        # Written before it is promised.
        work = lanes.write(manager.ask(METHOD_SET, smp.GUID_INFO, 0, node, port.number, table))
        manager.transactions.start(work, self._queue.pause())
        yield
        self._answer(packet, request, 0, record)

    def inform(self, packet: Packet, request: SaMad) -> None:
        """Set of an InformInfo: the port subscribes, or does not any more."""
        inform = InformInfo.from_bytes(request.data)
        found = self._manager.topology.by_lid(packet.route.slid)
        if found is None:
            status = madwire.SA_STATUS_DENIED
        else:
            status = self.subscribers.change(found[1].lid, inform)
        self._answer(packet, request, status, None if status else inform)

    def inform_records(self) -> Iterator[tuple[Layout, NodePort]]:
        """Who is subscribed to what."""
        for number, subscriber in enumerate(self.subscribers.all()):
            found = self._manager.topology.by_lid(subscriber.lid)
            if found is None:
                continue
            port_gid = madwire.gid(found[1].info.gid_prefix, found[1].guid)
            inform = InformInfo(is_generic=1, subscribe=1, trap_number=subscriber.trap_number, qpn=subscriber.qpn)
            record = sa.InformInfoRecord(subscriber_gid=port_gid, enumeration=number, inform=inform)
            yield record, found[1]

    def _issuer(self) -> tuple[int, bytes]:
        return self._manager.lid, madwire.gid(self._manager.gid_prefix, self._manager.guid)


def _about(trap_number: int, group: Group) -> Event:
    return Event(trap_number, group.record.mgid, group.record.pkey)
