"""The subnet manager: finds out what is plugged in, gives addresses, writes tables and brings ports up.

It sits on the management port of a switch and knows the fabric only through SMPs on VL 15 (chapter 14 of volume 1).
A heavy sweep discovers everything by directed route and configures what differs; it runs at the start, when a switch
says that a port changed (trap 128 or the PortStateChange bit) and when something did not answer. A light sweep looks
at switches and ports every `light_sweep_ns`. LIDs stay with their port GUID.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random, SystemRandom
from typing import Final

from vhca.management.fair_queue import CallSoon
from vhca.subnet.audit import Audit
from vhca.subnet.counters import ManagerCount
from vhca.subnet.engines import Engine
from vhca.subnet.mkeys import ManagementKeys
from vhca.subnet.tables import SwitchTables
from vhca.subnet.topology import Node, NodePort, PortKey, Topology
from vhca.subnet.transactions import RETRIES, Request, Transactions, Work
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, PERMISSIVE_LID, SEND, UD, Packet, Route
from vhca.wire.smp import NodeInfo, PortInfo, SmInfo, SwitchInfo

log = logging.getLogger(__name__)

PRIORITY: Final = 14
LIGHT_SWEEP_NS: Final = 10_000_000_000
# Behind a light sweep there is a pause of so much for each request: that of a large subnet is to take some of the time,
# not all. A number of requests, since a guest that does not answer makes them last.
REST_NS: Final = 1_500_000
RETRY_SWEEP_NS: Final = 1_000_000_000
# Anybody can send traps: so many may have a sweep each, then one each half second.
TRAP_SWEEPS: Final = 16
TRAP_SWEEP_NS: Final = 500_000_000
MAX_HOPS: Final = 62
# Nodes that a sweep asks for, and thinks about, in one go.
NODES_PER_TURN: Final = 16
SUBNET_TIMEOUT: Final = 18

Answers = list[Smp | None]
Probe = tuple[tuple[int, ...], PortKey | None]
"""A directed route to look at, and the place at whose other end it ends."""


def _ok(answer: Smp | None) -> bool:
    return answer is not None and answer.status & 0x7FFF == 0


class SubnetManager:
    """The master subnet manager of one subnet.

    `send` puts a packet into the management port. `changed` is called after each heavy sweep. `mkey` is as for
    :class:`vhca.subnet.mkeys.ManagementKeys`; `random` gives what others must not guess. Not thread safe.
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
    ) -> None:
        self._send = send
        self._now_ns = now_ns
        self.gid_prefix = gid_prefix
        self.light_sweep_ns = light_sweep_ns
        self.topology = Topology()
        random = random or SystemRandom()
        self.keys = ManagementKeys(random, mkey)
        self.transactions = Transactions(send, now_ns, call_soon, random)
        self.counters: Counter[ManagerCount] = Counter()
        self.tables = SwitchTables(self.ask, self.transactions.start, lambda: self.topology, self.counters, routing)
        self.changed: Callable[[], None] = lambda: None
        self.lid = 0
        self.guid = 0
        self._lids: dict[int, int] = {}  # port GUID -> LID
        self._trunks: set[PortKey] = set()  # places where a switch answered last, or may
        self._silent: set[PortKey] = set()  # places where nobody answered in the last sweep
        self._sweep_wanted = False
        self._sweeping = False
        self._swept = False
        self._heavy_due_ns: int | None = None
        self._light_due_ns: int | None = None
        self._rest_ns = 0
        self._retry_ns = 0  # pause before the next heavy sweep while something did not come up, else 0
        # How many sweeps traps may still ask for at once, and when that was counted
        self._trap_sweeps, self._counted_ns = float(TRAP_SWEEPS), 0

    # Outside

    def start(self) -> None:
        """Sweep for the first time."""
        self.sweep()

    def sweep(self) -> None:
        """Start a heavy sweep, or another one when the present one is done."""
        self._heavy_due_ns = None
        if self._sweeping:
            self._sweep_wanted = True
            return
        self._sweeping = True
        self._sweep_wanted = False
        self.transactions.start(self._heavy_sweep(), self._sweep_done)

    @property
    def settled(self) -> bool:
        """True if the fabric was swept and no heavy sweep is under way or wanted."""
        return self._swept and not self._sweeping and not self._sweep_wanted

    def receive(self, packet: Packet, port: int) -> None:
        """An SMP that is not for the switch's agent: an answer, a trap, or a question about this manager.

        `port` is the port of the switch that it came in by.
        """
        if len(packet.payload) != madwire.MAD_BYTES:
            self.counters[ManagerCount.BAD_SMP] += 1
            return
        smp = Smp.from_bytes(packet.payload)
        if smp.method == madwire.METHOD_GET_RESP:
            if not self.transactions.answer(smp, port):
                self.counters[ManagerCount.LATE_ANSWERS] += 1
        elif smp.method == madwire.METHOD_TRAP:
            self._trap(packet, smp)
        elif smp.attr_id == smpwire.SM_INFO and smp.method in (METHOD_GET, METHOD_SET):
            self._answer_sm_info(packet, smp)
        else:
            self.counters[ManagerCount.UNEXPECTED_SMP] += 1

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        deadlines = (self.transactions.next_deadline(), self._heavy_due_ns, self._light_due_ns)
        return min((d for d in deadlines if d is not None), default=None)

    def run_timers(self, now_ns: int) -> None:
        """Repeat requests and start sweeps that are due."""
        self.transactions.run_timers(now_ns)
        if self._heavy_due_ns is not None and self._heavy_due_ns <= now_ns:
            self.sweep()
        # Not put off by heavy sweeps: they do not look at everything, and a guest can ask for them.
        if self._light_due_ns is not None and self._light_due_ns <= now_ns:
            self._light_due_ns = now_ns + self.light_sweep_ns + self._rest_ns
            self.counters[ManagerCount.LIGHT_SWEEPS] += 1
            self.transactions.start(self._light_sweep())

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
        return Request(method, attr_id, modifier, node.path_to(port), data, self._key(topology, node, port))

    def _key(self, topology: Topology, node: Node, port: int) -> int:
        return self.keys.at(None if node.is_switch else topology.cables.get((node.guid, port)))

    # Sweeps

    def _sweep_done(self) -> None:
        self._sweeping = False
        self._swept = True
        if self._light_due_ns is None:
            self._light_due_ns = self._now_ns() + self.light_sweep_ns
        self.counters[ManagerCount.HEAVY_SWEEPS] += 1
        self.changed()
        if self._sweep_wanted:
            self.sweep()

    def _heavy_sweep(self) -> Work:
        timeouts = self.transactions.timeouts
        topology = Topology()
        yield from self._discover(topology)
        self.topology = topology
        self._assign_lids(topology)
        yield []
        # Switches first: answers and data of adapters need their tables.
        yield from self._configure_switches(topology)
        yield from self.tables.write_linear(topology)
        yield from self.tables.write_all_groups()
        yield from self._configure_ports(topology)
        again = self.transactions.timeouts != timeouts or not self._all_active(topology)
        # A port that stays silent is asked ever more seldom, down to the pace of light sweeps.
        self._retry_ns = min(self._retry_ns * 2 or RETRY_SWEEP_NS, self.light_sweep_ns) if again else 0
        if again:
            self._sweep_by(self._now_ns() + self._retry_ns)

    def _light_sweep(self) -> Work:
        before = self.transactions.asked
        audit = Audit(self.topology, self.tables, self.counters, self.ask, self._differs)
        yield from audit.work()
        self._rest_ns = (self.transactions.asked - before) * REST_NS
        if audit.dirty:
            self.sweep()

    def _discover(self, topology: Topology) -> Work:
        """Walk all cables, one hop further in each round (14.4.4)."""
        frontier: list[Probe] = [((), None)]
        while frontier:
            fresh: list[tuple[Node, int]] = []
            for at in range(0, len(frontier), NODES_PER_TURN):
                some = frontier[at : at + NODES_PER_TURN]
                answers = yield [self._probe(path, origin) for path, origin in some]
                for (path, origin), answer in zip(some, answers, strict=True):
                    if answer is None or not _ok(answer):
                        self._note_silence(origin)
                    else:
                        self._meet(topology, path, origin, NodeInfo.from_bytes(answer.data), fresh)
            for at in range(0, len(fresh), NODES_PER_TURN):
                yield from self._read_nodes(topology, fresh[at : at + NODES_PER_TURN])
            frontier = self._next_hops(topology, fresh)

    def _meet(
        self,
        topology: Topology,
        path: tuple[int, ...],
        origin: PortKey | None,
        info: NodeInfo,
        fresh: list[tuple[Node, int]],
    ) -> None:
        """Note who answered at the end of a path, behind the port `origin`; what is new is put into `fresh`."""
        here = (info.node_guid, info.local_port_num)
        if origin is not None:
            topology.join(origin, here)
            self._silent.discard(origin)
            if info.node_type == smpwire.NODE_TYPE_SWITCH:
                # Of both ends: next time the cable may be found from the other one.
                self._trunks |= {origin, here}
            else:
                self._trunks.discard(origin)
        node = topology.nodes.get(info.node_guid)
        if node is None:
            node = topology.nodes[info.node_guid] = Node(info.node_guid, info, path)
            fresh.append((node, info.local_port_num))
        elif not node.is_switch and info.local_port_num not in node.port_paths:
            fresh.append((node, info.local_port_num))
        node.port_paths.setdefault(info.local_port_num, path)
        if origin is None:
            self.guid = info.port_guid
        self._note_port_guid(node, info)

    def _probe(self, path: tuple[int, ...], origin: PortKey | None) -> Request:
        """The question that finds a node; who is there, and so the key, is known from the last time only."""
        key = self.keys.at(None if origin in self._trunks else origin)
        # Others wait for a sweep: whoever stays silent does not hold it up as long each time.
        retries = 1 if origin in self._silent else RETRIES
        return Request(METHOD_GET, smpwire.NODE_INFO, 0, path, mkey=key, retries=retries)

    def _note_silence(self, origin: PortKey | None) -> None:
        if origin is not None:
            self._silent.add(origin)
            # Another kind of node may have been plugged in: the next sweep tries the other key.
            self._trunks ^= {origin}

    @staticmethod
    def _note_port_guid(node: Node, info: NodeInfo) -> None:
        if node.is_switch:
            node.port_paths.clear()
            return
        number = info.local_port_num
        port = node.ports.get(number)
        if port is None:
            node.ports[number] = NodePort(number, info.port_guid, PortInfo())

    def _read_nodes(self, topology: Topology, fresh: list[tuple[Node, int]]) -> Work:
        """Read description, switch data and all ports of nodes found in this round."""
        abouts = [self._ask(topology, METHOD_GET, smpwire.NODE_DESCRIPTION, 0, node, port) for node, port in fresh]
        switches = [node for node, _ in fresh if node.is_switch]
        abouts += [self._ask(topology, METHOD_GET, smpwire.SWITCH_INFO, 0, switch, 0) for switch in switches]
        answers = yield abouts
        for (node, _), answer in zip(fresh, answers, strict=False):
            if answer is not None and _ok(answer):
                node.description = answer.data
        clears: list[Request] = []
        for switch, answer in zip(switches, answers[len(fresh) :], strict=True):
            if answer is None or not _ok(answer):
                continue
            info = switch.switch_info = SwitchInfo.from_bytes(answer.data)
            if info.port_state_change:
                # Written 1 to clear, and before the ports are read: a change from here on asks for another sweep.
                clears.append(self._ask(topology, METHOD_SET, smpwire.SWITCH_INFO, 0, switch, 0, info.to_bytes()))
                info.port_state_change = 0
        self._count_refused(clears, (yield clears))
        ports: list[tuple[Node, int]] = []
        for node, port in fresh:
            ports += [(node, n) for n in range(node.info.num_ports + 1)] if node.is_switch else [(node, port)]
        answers = yield [self._ask(topology, METHOD_GET, smpwire.PORT_INFO, n, node, n) for node, n in ports]
        for (node, number), answer in zip(ports, answers, strict=True):
            if answer is not None and _ok(answer):
                guid = node.info.port_guid if node.is_switch else node.ports[number].guid
                node.ports[number] = NodePort(number, guid, PortInfo.from_bytes(answer.data))

    @staticmethod
    def _next_hops(topology: Topology, fresh: list[tuple[Node, int]]) -> list[Probe]:
        """Where to look next: behind every live port of a new switch that is not known yet."""
        frontier: list[Probe] = []
        for node, _ in fresh:
            if not node.is_switch or len(node.path) >= MAX_HOPS:
                continue
            for number, port in node.ports.items():
                key = (node.guid, number)
                if number and port.info.port_state > smpwire.PORT_DOWN and key not in topology.cables:
                    frontier.append((node.path + (number,), key))
        return frontier

    # Addresses and tables

    def _assign_lids(self, topology: Topology) -> None:
        """Known GUIDs keep their LID; new ones keep what they have if it is free, or get the lowest free one."""
        present = {port.guid for _, port in topology.end_ports()}
        if len(self._lids.keys() | present) >= MULTICAST_LID_FIRST:
            self._lids = {guid: lid for guid, lid in self._lids.items() if guid in present}
        taken = set(self._lids.values())
        lowest = 1
        for _, port in topology.end_ports():
            lid = self._lids.get(port.guid)
            if lid is None:
                lid = port.info.lid
                if not 0 < lid < MULTICAST_LID_FIRST or lid in taken:
                    while lowest in taken:
                        lowest += 1
                    lid = lowest
                self._lids[port.guid] = lid
                taken.add(lid)
            port.lid = lid
            if port.guid == self.guid:
                self.lid = lid
        topology.index()

    def _configure_switches(self, topology: Topology) -> Work:
        top = max((port.lid for _, port in topology.end_ports()), default=0)
        requests = []
        for number, switch in enumerate(topology.switches()):
            if number % NODES_PER_TURN == 0:
                yield []
            port = switch.ports.get(0)
            if port is None or switch.switch_info is None:
                continue
            info = PortInfo.from_bytes(port.info.to_bytes())
            info.lid, info.sm_lid, info.gid_prefix = port.lid, self.lid, self.gid_prefix
            info.port_state, info.port_physical_state = smpwire.PORT_NOP, 0
            info.subnet_timeout = SUBNET_TIMEOUT
            self.keys.protect(info, self.keys.switches)
            requests.append(self._ask(topology, METHOD_SET, smpwire.PORT_INFO, 0, switch, 0, info.to_bytes()))
            port.info.lid, port.info.sm_lid, port.info.gid_prefix = port.lid, self.lid, self.gid_prefix
            self.keys.protect(port.info, self.keys.switches)
            if switch.switch_info.linear_fdb_top != top:
                switch.switch_info.linear_fdb_top = top
                data = switch.switch_info.to_bytes()
                requests.append(self._ask(topology, METHOD_SET, smpwire.SWITCH_INFO, 0, switch, 0, data))
        self._count_refused(requests, (yield requests))

    # Ports

    def _configure_ports(self, topology: Topology) -> Work:
        """Write PortInfo of all ports with a cable; then Armed, then Active, switches before adapters."""
        yield from self._set_ports(topology, lambda port: smpwire.PORT_NOP)
        for before, after in (
            (smpwire.PORT_INIT, smpwire.PORT_ARMED),
            (smpwire.PORT_ARMED, smpwire.PORT_ACTIVE),
        ):
            for switches in (True, False):
                yield from self._set_ports(
                    topology,
                    lambda port, before=before, after=after: after if port.info.port_state == before else None,  # type: ignore[misc]
                    switches=switches,
                )

    def _set_ports(
        self,
        topology: Topology,
        state_for: Callable[[NodePort], int | None],
        switches: bool | None = None,
    ) -> Work:
        requests: list[Request] = []
        ports: list[NodePort] = []
        for node in topology.nodes.values():
            if switches is not None and node.is_switch != switches:
                continue
            for port in node.ports.values():
                peer = self._peer(topology, node, port)
                state = state_for(port)
                if peer is None or state is None or (node.is_switch and port.number == 0):
                    continue
                data = self._port_info(topology, node, port, peer, state)
                if data is not None:
                    number = port.number
                    requests.append(self._ask(topology, METHOD_SET, smpwire.PORT_INFO, number, node, number, data))
                    ports.append(port)
            yield []
        answers = yield requests
        self._count_refused(requests, answers)
        for port, answer in zip(ports, answers, strict=True):
            if answer is not None and _ok(answer):
                port.info = PortInfo.from_bytes(answer.data)
                port.reregistered |= bool(port.info.client_reregister)

    @staticmethod
    def _peer(topology: Topology, node: Node, port: NodePort) -> NodePort | None:
        """The port at the other end of the cable, if both ends are up."""
        key = topology.cables.get((node.guid, port.number))
        if key is None or port.info.port_state == smpwire.PORT_DOWN:
            return None
        other = topology.nodes.get(key[0])
        return other.ports.get(key[1]) if other is not None else None

    def _port_info(self, topology: Topology, node: Node, port: NodePort, peer: NodePort, state: int) -> bytes | None:
        """The Set(PortInfo) that takes `port` to `state`; None if nothing would change."""
        now = port.info
        info = PortInfo.from_bytes(now.to_bytes())
        info.neighbor_mtu = min(now.mtu_cap, peer.info.mtu_cap)
        info.operational_vls = min(now.vl_cap, peer.info.vl_cap)
        if not node.is_switch:
            info.lid, info.sm_lid, info.gid_prefix = port.lid, self.lid, self.gid_prefix
            info.sm_sl, info.lmc, info.subnet_timeout = 0, 0, SUBNET_TIMEOUT
            self.keys.protect(info, self._key(topology, node, port.number))
        # With the LID, before the port is armed; with the activation if that order was lost.
        reregister = not node.is_switch and not port.reregistered and now.port_state != smpwire.PORT_ACTIVE
        reregister &= bool(now.capability_mask & smpwire.CAP_CLIENT_REREGISTRATION) and state != smpwire.PORT_ARMED
        if state == smpwire.PORT_NOP and info == now and not reregister:
            return None
        info.port_state, info.port_physical_state = state, 0
        # Counters are reset by writing 0 only.
        info.mkey_violations = info.pkey_violations = info.qkey_violations = 0xFFFF
        info.client_reregister = int(reregister)
        return info.to_bytes()

    def _differs(self, node: Node, port: NodePort, now: PortInfo) -> bool:
        """Tell whether a port is not any more as this manager left it."""
        if node.is_switch and port.number == 0:
            kept = ("mkey", "mkey_protect_bits", "mkey_lease_period", "lid", "sm_lid", "gid_prefix")
            return any(getattr(now, name) != getattr(port.info, name) for name in kept)
        if now.port_state != port.info.port_state:
            return True
        peer = self._peer(self.topology, node, port)
        fresh = replace(port, info=now)
        return peer is not None and self._port_info(self.topology, node, fresh, peer, smpwire.PORT_NOP) is not None

    def _all_active(self, topology: Topology) -> bool:
        """Tell whether every port with a live cable became Active."""
        for node in topology.nodes.values():
            for port in node.ports.values():
                down = port.info.port_state == smpwire.PORT_DOWN
                internal = node.is_switch and port.number == 0
                if not down and not internal and port.info.port_state != smpwire.PORT_ACTIVE:
                    return False
        return bool(topology.nodes)

    def _count_refused(self, requests: list[Request], answers: Answers) -> None:
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None and not _ok(answer):
                self.counters[ManagerCount.REFUSED_SETS] += 1
                log.warning(
                    "agent at %s refused attribute %#06x/%#x: status %#06x",
                    request.path,
                    request.attr_id,
                    request.attr_mod,
                    answer.status,
                )

    # What others send

    def _trap(self, packet: Packet, smp: Smp) -> None:
        """A notice: thank for it (TrapRepress), then look at what changed (14.3.8)."""
        self.counters[ManagerCount.TRAPS] += 1
        number = madwire.Notice.from_bytes(smp.data.ljust(80, b"\0")).trap_number
        repress = Smp.from_bytes(smp.to_bytes())
        repress.method = madwire.METHOD_TRAP_REPRESS
        repress.mkey = self._key_behind(packet.route.slid)
        if smp.mgmt_class == madwire.CLASS_SUBN_LID and packet.route.slid not in (0, PERMISSIVE_LID):
            self._reply(packet, repress.to_bytes(), packet.route.slid)
        if number in (madwire.TRAP_LINK_STATE_CHANGE, madwire.TRAP_CAPABILITY_CHANGE):
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
        return self._key(self.topology, found[0], found[1].number) if found is not None else 0

    def _answer_sm_info(self, packet: Packet, smp: Smp) -> None:
        """Another manager asks who is master (14.4.1); handovers are refused."""
        directed = smp.mgmt_class == madwire.CLASS_SUBN_DR
        status = madwire.STATUS_DIRECTION if directed else 0
        if smp.method == METHOD_SET:
            status |= madwire.STATUS_INVALID_FIELD
        info = SmInfo(
            guid=self.guid,
            act_count=self.counters[ManagerCount.HEAVY_SWEEPS],
            priority=PRIORITY,
            sm_state=smpwire.SM_STATE_MASTER,
        )
        smp.data = info.to_bytes().ljust(64, b"\0")
        smp.method = madwire.METHOD_GET_RESP
        smp.status = status
        if not smp.hop_count:
            smp.hop_pointer = 0
        self._reply(packet, smp.to_bytes(), packet.route.slid)

    def _reply(self, packet: Packet, mad: bytes, dlid: int) -> None:
        self._send(
            Packet(
                route=Route(dlid, self.lid or PERMISSIVE_LID, vl=MANAGEMENT_VL),
                service=UD,
                op=SEND,
                dest_qp=0,
                psn=packet.psn,
                payload=mad,
                mtu=256,
            )
        )
