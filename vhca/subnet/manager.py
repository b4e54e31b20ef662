"""The subnet manager: finds out what is plugged in, gives addresses, writes tables and brings ports up.

It sits on the management port of a switch and knows the fabric only through SMPs on VL 15 (chapter 14 of volume 1).
A heavy sweep discovers everything by directed route and configures what differs; it runs at the start, when a switch
says that a port changed (trap 128 or the PortStateChange bit) and when something did not answer. A light sweep looks
at switches and ports every `light_sweep_ns`. LIDs stay with their port GUID.

Whether it is master is decided by :mod:`vhca.subnet.election`. As a standby it only asks whether the master is alive.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random, SystemRandom
from typing import Final

from vhca.management.deadlines import earliest
from vhca.management.fair_queue import CallSoon
from vhca.management.packets import smp_packet
from vhca.subnet.addresses import Addresses
from vhca.subnet.answers import ok, refusals
from vhca.subnet.audit import Audit
from vhca.subnet.counters import ManagerCount
from vhca.subnet.discovery import Discovery
from vhca.subnet.election import POLL_NS, Election, Heirs, Rival, Turn
from vhca.subnet.engines import Engine
from vhca.subnet.mkeys import ManagementKeys
from vhca.subnet.partitions import Partitions
from vhca.subnet.port_setup import PortSetup, all_active
from vhca.subnet.tables import SwitchTables
from vhca.subnet.topology import Node, NodePort, PortKey, Topology
from vhca.subnet.transactions import Request, Transactions, Work
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.packet import PERMISSIVE_LID, Packet
from vhca.wire.smp import PortInfo, SmInfo

log = logging.getLogger(__name__)

LIGHT_SWEEP_NS: Final = 10_000_000_000
# Behind a light sweep there is a pause of so much for each request: that of a large subnet is to take some of the time,
# not all. A number of requests, since a guest that does not answer makes them last.
REST_NS: Final = 1_500_000
RETRY_SWEEP_NS: Final = 1_000_000_000
# Anybody can send traps: so many may have a sweep each, then one each half second.
TRAP_SWEEPS: Final = 16
TRAP_SWEEP_NS: Final = 500_000_000
# Other managers that a sweep asks who they are: any host can call itself one.
MAX_RIVALS: Final = 64
_SWEEP_TRAPS: Final = (madwire.TRAP_LINK_STATE_CHANGE, madwire.TRAP_CAPABILITY_CHANGE)


class SubnetManager:
    """The subnet manager of one subnet: its master, unless there is one to whom it hands over (`heirs`).

    `send` puts a packet into the management port. `changed` is called after each heavy sweep, and when it is not master
    any more. `mkey` is as for :class:`vhca.subnet.mkeys.ManagementKeys`; `random` gives what others must not guess;
    `priority` and `heirs` are as for :class:`vhca.subnet.election.Election`; `lids` are those that ports had before, by
    GUID. Not thread safe.
    """

    def __init__(
        self,
        send: Callable[[Packet], None],
        now_ns: Callable[[], int],
        *,
        call_soon: CallSoon,
        random: Random | None = None,
        mkey: int | None = None,
        gid_prefix: int = smpwire.DEFAULT_GID_PREFIX,
        light_sweep_ns: int = LIGHT_SWEEP_NS,
        routing: Engine = "min-hop",
        priority: int | None = None,
        heirs: Heirs | None = None,
        lmc: int = 0,
        partitions: Partitions | None = None,
        lids: Mapping[int, int] | None = None,
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self.gid_prefix = gid_prefix
        self.light_sweep_ns = light_sweep_ns
        self.topology = Topology()
        random = random or SystemRandom()
        self.keys = ManagementKeys(random, mkey)
        self.partitions = partitions if partitions is not None else Partitions()
        self.election = Election(priority, heirs)
        self.transactions = Transactions(send, now_ns, call_soon, random)
        # What others want to know of agents: it neither holds up the manager's own requests nor makes it sweep.
        self.inquiries = Transactions(send, now_ns, call_soon, random)
        self.counters: Counter[ManagerCount] = Counter()
        count_refused = refusals(self.counters)
        self.discovery = Discovery(self._ask, self.keys, count_refused)
        self.addresses = Addresses(lmc, lids)
        self.ports = PortSetup(self._ask, self.keys, count_refused, gid_prefix, lambda: self.lid)
        self.tables = SwitchTables(self.ask, self.transactions.start, lambda: self.topology, self.counters, routing)
        self.changed: Callable[[], None] = lambda: None
        self.lid = 0
        self.rivals: list[Rival] = []  # other managers that the last sweep found, and as they answered polls since
        self._sweep_wanted = False
        self._sweeping = False
        self._looking = False  # whether a light sweep is under way
        self._hurried = False  # whether the last heavy sweep was cut short
        self._swept = False
        self._stranger = False  # whether another manager has been here since this one's last sweep as master
        self._heavy_due_ns: int | None = None
        self._light_due_ns: int | None = None
        self._poll_due_ns: int | None = None
        self._thanking = False  # whether an acknowledgement waits to be sent
        self._leader: PortKey = (0, 0)  # where the one is that a standby follows
        self._rest_ns = 0
        self._retry_ns = 0  # pause before the next heavy sweep while something did not come up, else 0
        # How many sweeps traps may still ask for at once, and when that was counted
        self._trap_sweeps, self._counted_ns = float(TRAP_SWEEPS), 0

    # Outside

    def start(self) -> None:
        """Sweep for the first time."""
        self.sweep()

    def sweep(self) -> None:
        """Start a heavy sweep, or another one when the present one is done; nothing while somebody else is master."""
        self._heavy_due_ns = None
        if not self.election.sweeps:
            return
        if self._sweeping:
            self._sweep_wanted = True
            return
        self._sweeping = True
        self._sweep_wanted = False
        self.transactions.start(self._heavy_sweep(), self._sweep_done)

    @property
    def guid(self) -> int:
        """GUID of the port that it sits on."""
        return self.discovery.guid

    @property
    def is_master(self) -> bool:
        """True while no other manager is master."""
        return self.election.is_master

    @property
    def settled(self) -> bool:
        """True if the fabric was swept and no heavy sweep is under way or wanted."""
        return self._swept and not self._sweeping and not self._sweep_wanted

    def info(self) -> SmInfo:
        """SMInfo of this manager, as it is at this moment."""
        return self.election.info(self.counters[ManagerCount.HEAVY_SWEEPS])

    def receive(self, packet: Packet, port: int) -> None:
        """An SMP that is not for the switch's agent: an answer, a trap, or a question about this manager.

        `port` is the port of the switch that it came in by.
        """
        if len(packet.payload) != madwire.MAD_BYTES:
            self.counters[ManagerCount.BAD_SMP] += 1
            return
        smp = Smp.from_bytes(packet.payload)
        if smp.method == madwire.METHOD_GET_RESP:
            self.answered(smp, port)
        elif smp.method == madwire.METHOD_TRAP:
            self._trap(packet, smp)
        elif smp.attr_id == smpwire.SM_INFO and smp.method in (METHOD_GET, METHOD_SET):
            self._answer_sm_info(packet, smp)
        else:
            self.counters[ManagerCount.UNEXPECTED_SMP] += 1

    def answered(self, smp: Smp, port: int) -> None:
        """An answer of an agent came in by a port of the switch."""
        if not self.transactions.answer(smp, port) and not self.inquiries.answer(smp, port):
            self.counters[ManagerCount.LATE_ANSWERS] += 1

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        return earliest(
            self.transactions.next_deadline(),
            self.inquiries.next_deadline(),
            self._heavy_due_ns,
            self._light_due_ns,
            self._poll_due_ns,
        )

    def run_timers(self, now_ns: int) -> None:
        """Repeat requests and start sweeps that are due."""
        self.transactions.run_timers(now_ns)
        self.inquiries.run_timers(now_ns)
        if self._heavy_due_ns is not None and self._heavy_due_ns <= now_ns:
            self.sweep()
        # Not put off by heavy sweeps: they do not look at everything, and a guest can ask for them.
        if self._light_due_ns is not None and self._light_due_ns <= now_ns:
            self._light_due_ns = now_ns + self.light_sweep_ns + self._rest_ns
            # One that takes longer than that is not followed by another one before its end.
            if not self._looking:
                self._looking = True
                self.counters[ManagerCount.LIGHT_SWEEPS] += 1
                self.transactions.start(self._light_sweep(), self._light_sweep_done)
        if self._poll_due_ns is not None and self._poll_due_ns <= now_ns:
            self._poll_due_ns = None
            self.transactions.start(self._poll())

    def set_group(
        self, mlid: int, receivers: set[PortKey], senders: set[PortKey], done: Callable[[], None] | None = None
    ) -> None:
        """Write the tables for a group, then call `done`; places are those of :meth:`Topology.attachment`."""
        self.tables.set_group(mlid, receivers, senders, done)

    def ask(self, method: int, attr_id: int, modifier: int, node: Node, port: int, data: bytes = b"") -> Request:
        """A request to the agent of a node's port, by its way and with its key."""
        return self._ask(self.topology, method, attr_id, modifier, node, port, data)

    def _ask(
        self, topology: Topology, method: int, attr_id: int, modifier: int, node: Node, port: int, data: bytes = b""
    ) -> Request:
        return Request(method, attr_id, modifier, node.path_to(port), data, self.ports.key(topology, node, port))

    # Sweeps

    def _sweep_done(self) -> None:
        self._sweeping = False
        if self._hurried:
            self.sweep()
            return
        self._swept = True
        self.counters[ManagerCount.HEAVY_SWEEPS] += 1
        if self.election.is_master and self._light_due_ns is None:
            self._light_due_ns = self._now_ns() + self.light_sweep_ns
        self.changed()
        if self._sweep_wanted:
            self._sweep_wanted = False
            self.sweep()

    def _heavy_sweep(self) -> Work:
        timeouts = self.transactions.timeouts
        topology = Topology()
        # While somebody stays silent and a trap says that something is another way now, it is not gone on with. Once:
        # whoever can have both must not keep the subnet from being found.
        outdated = self._hurried = yield from self.discovery.walk(
            topology, None if self._hurried else self._is_outdated
        )
        if outdated:
            return
        self.election.guid = self.discovery.guid
        rivals = self.rivals = []
        if self.election.is_open:
            yield from self._find_rivals(topology, rivals)
            if not self.election.sweeps:
                return  # somebody ordered so meanwhile
            if not self.election.is_master:
                leader = self.election.discovered(rivals)
                if leader is not None:
                    self.topology = topology
                    self._stand_by(leader)
                    return
        self._meet_strangers()
        for _ in self.addresses.assign(topology):
            yield []
        for _ in self.partitions.apply(topology, self.guid):
            yield []
        self.topology = topology
        own = topology.by_guid(self.guid)
        self.lid = own[1].lid if own is not None else self.lid
        yield []
        # Switches first: answers and data of adapters need their tables.
        yield from self.ports.switches(topology)
        yield from self.tables.write_linear(topology)
        yield from self.tables.write_all_groups()
        yield from self.ports.ports(topology)
        again = self.transactions.timeouts != timeouts or not all_active(topology)
        # A port that stays silent is asked ever more seldom, down to the pace of light sweeps.
        self._retry_ns = min(self._retry_ns * 2 or RETRY_SWEEP_NS, self.light_sweep_ns) if again else 0
        if again:
            self._sweep_by(self._now_ns() + self._retry_ns)
        yield from self._hand_over(rivals)

    def _is_outdated(self) -> bool:
        return self._sweep_wanted

    def _light_sweep_done(self) -> None:
        self._looking = False

    def _light_sweep(self) -> Work:
        if not self.election.is_master:
            return
        before = self.transactions.asked
        partitioned = bool(self.partitions.partitions)
        audit = Audit(self.topology, self.tables, self.counters, self.ask, self._differs, partitioned=partitioned)
        yield from audit.work()
        self._rest_ns = (self.transactions.asked - before) * REST_NS
        rivals: list[Rival] = []
        if self.election.is_open:
            # One that was about to find out who is master has done so, or was given a higher priority.
            yield from self._find_rivals(self.topology, rivals)
        if audit.dirty or self.election.heir(rivals) is not None:
            self.sweep()

    def _differs(self, node: Node, port: NodePort, now: PortInfo) -> bool:
        return self.ports.differs(self.topology, node, port, now)

    # Other managers

    def _meet_strangers(self) -> None:
        """Nothing is as this manager left it if another one has been here."""
        if self._stranger:
            self._stranger = False
            self.addresses.forget()
            self.tables.forget()
            self.ports.forget()

    def _find_rivals(self, topology: Topology, rivals: list[Rival]) -> Work:
        """Ask each port that says it has a manager, and that may be master, for its SMInfo."""
        places = [
            (node, port)
            for node, port in topology.end_ports()
            if port.info.capability_mask & smpwire.CAP_IS_SM and self.election.may_lead(port.guid)
        ][:MAX_RIVALS]
        answers = yield [
            self._ask(topology, METHOD_GET, smpwire.SM_INFO, 0, node, port.number) for node, port in places
        ]
        for (node, port), answer in zip(places, answers, strict=True):
            if answer is None or not ok(answer):
                continue
            info = SmInfo.from_bytes(answer.data)
            if info.guid == port.guid:
                rivals.append(Rival((node.guid, port.number), info))

    def _hand_over(self, rivals: list[Rival]) -> Work:
        """Give the subnet to a better manager that waits for it; the answer to HANDOVER is its word."""
        heir = self.election.heir(rivals)
        if heir is None or not self.election.is_master:
            return
        # Who is to send what is another one's to say from now on; only this manager knows that switches look.
        yield from self.tables.open_sources(self.topology)
        node = self.topology.nodes[heir.place[0]]
        data = self.info().to_bytes()
        (answer,) = yield [self.ask(METHOD_SET, smpwire.SM_INFO, smpwire.SM_HANDOVER, node, heir.place[1], data)]
        if ok(answer) and self.election.is_master:
            log.info("handed the subnet over to the manager at %#018x", heir.info.guid)
            self.counters[ManagerCount.HANDOVERS] += 1
            self.election.follow(heir)
            self._stand_by(heir)
        else:
            self._sweep_by(self._now_ns() + RETRY_SWEEP_NS)

    def _stand_by(self, leader: Rival) -> None:
        self._leader = leader.place
        self._stranger = True
        self.tables.forget()
        self._heavy_due_ns = self._light_due_ns = None
        self._retry_ns = 0
        self._sweep_wanted = False
        self._poll_due_ns = self._now_ns() + POLL_NS

    def _poll(self) -> Work:
        """Ask the master whether it is alive, and be the next one if it is not."""
        if self.election.state != smpwire.SM_STATE_STANDBY:
            return
        node = self.topology.nodes.get(self._leader[0])
        answer = None
        if node is not None:
            request = self.ask(METHOD_GET, smpwire.SM_INFO, 0, node, self._leader[1])
            request.retries = 0
            (answer,) = yield [request]
        if self.election.state != smpwire.SM_STATE_STANDBY:
            return
        info = SmInfo.from_bytes(answer.data) if answer is not None and ok(answer) else None
        if info is not None:
            others = [rival for rival in self.rivals if rival.info.guid != info.guid]
            self.rivals = [Rival(self._leader, info), *others]
        if self.election.polled(info):
            self._poll_due_ns = self._now_ns() + POLL_NS
        else:
            log.info("the manager at %#018x is gone", self.election.leader)
            self.counters[ManagerCount.TAKEOVERS] += 1
            self.sweep()

    def _answer_sm_info(self, packet: Packet, smp: Smp) -> None:
        """Another manager asks who this one is, or orders what it is to do (14.4.1)."""
        status = madwire.STATUS_DIRECTION if smp.mgmt_class == madwire.CLASS_SUBN_DR else 0
        turn: Turn = "nothing"
        info = self.info()  # as it is before it does what it is told
        if smp.method == METHOD_SET:
            sender = SmInfo.from_bytes(smp.data)
            # Orders are for whoever may change the subnet: the key says who.
            if self.keys.switches not in (0, smp.mkey):
                status |= madwire.STATUS_INVALID_FIELD
            else:
                refused, turn = self.election.order(smp.attr_mod, sender)
                status |= refused
            self.counters[
                ManagerCount.REFUSED_ORDERS if status & ~madwire.STATUS_DIRECTION else ManagerCount.ORDERS
            ] += 1
        smp.data = info.to_bytes().ljust(64, b"\0")
        smp.method = madwire.METHOD_GET_RESP
        smp.status = status
        if not smp.hop_count:
            smp.hop_pointer = 0
        self._reply(packet, smp.to_bytes(), packet.route.slid)
        if turn != "nothing":
            self._obey(turn, sender.guid)

    def _obey(self, turn: Turn, sender: int) -> None:
        """Do what an order of the manager at the port `sender` asks; the state is the new one already."""
        self._poll_due_ns = None
        if turn == "take over":
            self._stranger = True
            if not self._thanking:
                self._thanking = True
                self.transactions.start(self._acknowledge(sender))
            self._sweep_for_trap()
        elif turn == "sweep":
            # Like traps: whoever may give orders may give many.
            self._sweep_for_trap()
        elif turn == "follow":
            self._leader = next(self._places_of(sender), (0, 0))
            self._poll_due_ns = self._now_ns() + POLL_NS

    def _acknowledge(self, sender: int) -> Work:
        """Tell who handed the subnet over that it is taken."""
        self._thanking = False
        for guid, number in self._places_of(sender):
            info = self.info()
            info.sm_state = smpwire.SM_STATE_STANDBY
            node = self.topology.nodes[guid]
            yield [self.ask(METHOD_SET, smpwire.SM_INFO, smpwire.SM_ACKNOWLEDGE, node, number, info.to_bytes())]

    def _places_of(self, port_guid: int) -> Iterator[PortKey]:
        return ((node.guid, port.number) for node, port in self.topology.end_ports() if port.guid == port_guid)

    # What others send

    def _trap(self, packet: Packet, smp: Smp) -> None:
        """A notice: thank for it (TrapRepress), then look at what changed (14.3.8)."""
        self.counters[ManagerCount.TRAPS] += 1
        if not self.election.is_master:
            return
        number = madwire.Notice.from_bytes(smp.data.ljust(80, b"\0")).trap_number
        repress = Smp.from_bytes(smp.to_bytes())
        repress.method = madwire.METHOD_TRAP_REPRESS
        repress.mkey = self._key_behind(packet.route.slid)
        if smp.mgmt_class == madwire.CLASS_SUBN_LID and packet.route.slid not in (0, PERMISSIVE_LID):
            self._reply(packet, repress.to_bytes(), packet.route.slid)
        if number in _SWEEP_TRAPS:
            self._sweep_for_trap()

    def _sweep_for_trap(self) -> None:
        now_ns = self._now_ns()
        earned = (now_ns - self._counted_ns) / TRAP_SWEEP_NS
        self._trap_sweeps, self._counted_ns = min(TRAP_SWEEPS, self._trap_sweeps + earned), now_ns
        soon = self._heavy_due_ns is not None and self._heavy_due_ns <= now_ns + TRAP_SWEEP_NS
        if soon or self._sweep_wanted:
            return
        self._trap_sweeps = max(-1, self._trap_sweeps - 1)
        if self._trap_sweeps >= 0:
            self.sweep()
        else:
            self._sweep_by(now_ns + int(-self._trap_sweeps * TRAP_SWEEP_NS))

    def _sweep_by(self, due_ns: int) -> None:
        self._heavy_due_ns = due_ns if self._heavy_due_ns is None else min(due_ns, self._heavy_due_ns)

    def _key_behind(self, lid: int) -> int:
        found = self.topology.by_lid(lid)
        return self.ports.key(self.topology, found[0], found[1].number) if found is not None else 0

    def _reply(self, packet: Packet, mad: bytes, dlid: int) -> None:
        self._send(smp_packet(mad, dlid, self.lid or PERMISSIVE_LID, packet.psn))
