"""A subnet in a box: switches, the first with a subnet manager inside, and a cable for each card.

Assumes one thread: everything runs in turns of `call_soon`, and time comes from `clock`. The fabric is a timer source
of that loop. Nothing is configured behind the scenes: ports come up because the subnet manager says so by SMP.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, Protocol

from vhca.counting import shown
from vhca.fabric.cables import Cables, CableStatus
from vhca.fabric.capture import Capture
from vhca.fabric.capture_writer import File, Ring
from vhca.fabric.captures import CaptureChoice, Captures
from vhca.fabric.counters import Drop
from vhca.fabric.express import Express
from vhca.fabric.fabric_port import FabricPort
from vhca.fabric.faults import Direction, Fault
from vhca.fabric.line import PLAIN, LineConfig
from vhca.fabric.link import CallLater, Link, LinkEnd
from vhca.fabric.plant import Plant
from vhca.fabric.schedule import Player, Schedule
from vhca.fabric.swift import WORDS
from vhca.fabric.switch import Switch
from vhca.fabric.tool_nodes import ToolNodes
from vhca.fabric.topology import Node, Topology, TopologyError
from vhca.fabric.user_mads import UserMads
from vhca.fabric.wires import Wires
from vhca.management.deadlines import earliest
from vhca.management.fair_queue import CallSoon
from vhca.subnet.administration import SubnetAdministration
from vhca.subnet.counters import ManagerCount
from vhca.subnet.election import Heirs
from vhca.subnet.engines import Engine
from vhca.subnet.manager import SubnetManager
from vhca.subnet.partitions import Partitions
from vhca.wire import mad as madwire
from vhca.wire import smp
from vhca.wire.mad import Smp
from vhca.wire.packet import MANAGEMENT_VL, PERMISSIVE_LID, Packet

USUAL_CAPTURE: Final = CaptureChoice()
_FIRST_HOP: Final = 129
"""Where an SMP names the port by which its route leaves the first switch."""
DEFAULT_SWITCH_GUID: Final = 0x0002C90000FAB000
_STATES: Final = {
    smp.PORT_DOWN: "Down",
    smp.PORT_INIT: "Initialize",
    smp.PORT_ARMED: "Armed",
    smp.PORT_ACTIVE: "Active",
}


ManagerState = Literal["not active", "discovering", "standby", "master"]
_MANAGER_STATES: Final[dict[int, ManagerState]] = {
    smp.SM_STATE_NOTACTIVE: "not active",
    smp.SM_STATE_DISCOVERING: "discovering",
    smp.SM_STATE_STANDBY: "standby",
    smp.SM_STATE_MASTER: "master",
}


class Clock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin."""
        ...


@dataclass(frozen=True, slots=True)
class PortStatus:
    """How a card's port and its cable are.

    - `plugged`: the cable is in; `up`: the link is, so the card has power, too
    - `state`: of the switch's port, "Down", "Initialize", "Armed" or "Active"
    - `lid`: 0 while it has none
    - `rules`, `hits`: fault rules of the cable, and the packets that those hit
    """

    name: str
    plugged: bool
    up: bool
    state: str
    lid: int
    rules: int
    hits: int


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """A subnet manager: the node that it runs on (as that describes itself), the GUID of its port, its rank and state.

    - `inside`: it is the one in the first switch
    """

    name: str
    guid: int
    priority: int
    state: ManagerState
    inside: bool


class Counting(Protocol):
    """What leads to another rack, as far as it counts."""

    counters: Counter[Any]


class Fabric:
    """One subnet; `call_soon(fn)` runs `fn` in a later turn of the caller's loop.

    Without a `topology` it has one switch, of `num_ports` ports. With one it has what that describes, and hosts whose
    places no card takes before the loop turns are simulated; then `num_ports` is how many cards may have their share of
    groups, services and subscriptions. With `local`, names of switches, only those are here, and their hosts; without
    `managed` the manager is elsewhere, too.

    `mkey` protects agents: None, the default, a random key for each port; a number, that key for all; 0, no key, and
    everybody on the fabric can be its manager. `routing`: how it leads packets, see :mod:`vhca.subnet.routing`.
    `group_mtu` is the code of what IPoIB's broadcast group has: a port with less cannot join it. `call_later(delay_ns,
    fn)` runs `fn` when it is time; without it :meth:`run_timers` does.

    The manager inside is master unless `heirs` tells of a port GUID that a manager there may be: then the one with the
    higher `priority` (0 to 15) is. `lmc`: cards have 2**lmc LIDs each. `partitions`: who may speak to whom; None: all.
    `lids`: those that ports have had before, by GUID.

    :ivar cables: all cables, by their names.
    :ivar trunks: what leads to other racks, by the names of the cables.
    """

    def __init__(
        self,
        call_soon: CallSoon,
        clock: Clock,
        *,
        num_ports: int = 36,
        switch_guid: int = DEFAULT_SWITCH_GUID,
        topology: Topology | None = None,
        seed: int = 0,
        mkey: int | None = None,
        routing: Engine = "min-hop",
        random: Random | None = None,
        group_mtu: int = smp.MTU_4096,
        call_later: CallLater | None = None,
        priority: int | None = None,
        heirs: Heirs | None = None,
        lmc: int = 0,
        partitions: Partitions | None = None,
        lids: Mapping[int, int] | None = None,
        local: frozenset[str] | None = None,
        managed: bool = True,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.call_later = call_later if call_later is not None else self._call_later
        self.wires = Wires(clock.now_ns)
        self.cables = Cables(seed, self.call_later)
        self.ports: dict[str, FabricPort] = {}
        self.trunks: dict[str, Counting] = {}
        self.plant: Plant | None = None
        if topology is not None:
            self.plant = Plant(topology, call_soon, self.call_later, clock.now_ns, self.wires, local)
            self.switches = self.plant.switches
            for link in self.plant.links.values():
                self.cables.add(link)
            self.cables.halves |= set(self.plant.trunks.values())
            for cable in topology.cables:
                if cable.line != PLAIN and cable.a in self.plant.links:
                    self.cables.set_line(str(cable.a), cable.line)
        else:
            switch = Switch(call_soon, switch_guid, num_ports, now_ns=clock.now_ns, wires=self.wires)
            self.switches = {switch.name: switch}
        self.captures = Captures(
            self.ports,
            lambda: self.cables,
            lambda name: self.cables.end(name),
            call_soon,
            self.call_later,
            clock.now_ns,
        )
        self.switch = next(iter(self.switches.values()))
        self._tool_nodes = ToolNodes(
            self.switches,
            {} if self.plant is None else self.plant.hosts,
            call_soon=call_soon,
            call_later=self.call_later,
            now_ns=clock.now_ns,
            wires=self.wires,
            card_key=self._card_key,
        )
        self._express = Express(self.switch.ports[0])
        self.manager = SubnetManager(
            self._send_smp,
            clock.now_ns,
            call_soon=call_soon,
            random=random,
            mkey=mkey,
            routing=routing,
            priority=priority,
            heirs=heirs,
            lmc=lmc,
            partitions=partitions,
            lids=lids,
        )
        self.administration = SubnetAdministration(
            self.manager, self.switch.send_from_management, clock.now_ns, call_soon, num_ports, random, group_mtu
        )
        self.manager.changed = self.administration.topology_changed
        self._managed = managed
        if managed:
            self.switch.management = self._from_management_port
            # Other managers look for this bit, to find out that there is a master.
            self.switch.ports[0].info.capability_mask |= smp.CAP_IS_SM
        call_soon(self._power_up)

    def _power_up(self) -> None:
        if self.plant is not None:
            self.plant.power_up()
        if self._managed:
            self.manager.start()

    # Cables

    def add_port(self, name: str, host: str | None = None, alias: str | None = None) -> FabricPort:
        """A cable for a card: from the lowest free port of the switch, or with a topology that of a host.

        `host` names whose place the card takes; None: that of the host with the card's name, else the first one left.
        `alias` is another name of the cable.
        ValueError if a name is taken, LookupError if the switch is full, TopologyError if there is no such place.
        """
        if name in self.ports:
            raise ValueError(f"the fabric has a port called {name} already")
        if self.plant is not None:
            place = self.plant.take(host or (name if self.plant.has_free(name) else None))
            port = self.ports[name] = FabricPort(name, place.link, place.switch_port, place.host, place.cable)
        elif host is not None:
            raise TopologyError(f"{name}: there is no host {host} without a topology; give one")
        else:
            switch_port = self.switch.free_port()
            link = Link(self._call_soon, self.call_later, name, f"switch/{switch_port.number}", self.wires)
            port = self.ports[name] = FabricPort(name, link, switch_port)
            switch_port.plug(link.b)
        self.cables.add_card(name, port, alias)
        self.captures.added(port)
        return port

    def tool_node(self, name: str) -> UserMads:
        """Where programs of the host attach; see :meth:`vhca.fabric.tool_nodes.ToolNodes.find`."""
        if self.plant is not None:
            self.plant.power_up()
        known = self._tool_nodes.plugged
        node = self._tool_nodes.find(name)
        if self._tool_nodes.plugged and not known:
            # A switch that has no LID yet tells nobody that a cable came.
            self.manager.sweep()
        return node

    def _card_key(self, port: FabricPort) -> int:
        """The M_Key that our manager gave a card's port."""
        return self.manager.keys.at((port.switch_port.switch.node_guid, port.switch_port.number))

    def name_cards(self, guids: Mapping[str, int]) -> None:
        """Give partitions that name cards or hosts the GUIDs of their ports; KeyError if there is no such one."""
        hosts = {host.name: host.port_guids[0] for host in self.simulated()}
        self.manager.partitions = self.manager.partitions.with_cards(hosts | dict(guids))

    def simulated(self) -> list[Node]:
        """The hosts of a topology whose place no card has taken."""
        return [] if self.plant is None else self.plant.left()

    def _end(self, name: str) -> LinkEnd:
        return self.cables.end(name)

    def link_down(self, name: str) -> None:
        """Pull a cable; for names see :mod:`vhca.fabric.cables`. KeyError if there is none."""
        self.cables.set_plugged(name, False)

    def link_up(self, name: str) -> None:
        """Plug a cable in again; see :meth:`link_down`."""
        self.cables.set_plugged(name, True)

    def set_line(self, name: str, config: LineConfig) -> None:
        """How a cable is from now on: rate, latency, error rate. KeyError if there is none."""
        self.cables.set_line(name, config)

    def add_fault(self, name: str, fault: Fault, direction: Direction = "both") -> None:
        """See :meth:`vhca.fabric.cables.Cables.add_fault`. KeyError if there is no such cable."""
        self.cables.add_fault(name, fault, direction)

    def faults(self, name: str) -> list[tuple[Direction, Fault]]:
        """See :meth:`vhca.fabric.cables.Cables.faults`. KeyError if there is no such cable."""
        return self.cables.faults(name)

    def clear_faults(self, name: str) -> None:
        """Repair a cable. KeyError if there is none."""
        self.cables.clear_faults(name)

    def play(self, schedule: Schedule) -> Player:
        """Carry a schedule out from now on. ScheduleError if it names a cable that is not there."""
        player = Player(schedule, self.cables, self.call_later, self._clock.now_ns)
        player.start()
        return player

    def knows(self, name: str) -> bool:
        """Tell whether there is a cable of this name."""
        try:
            self.cables.end(name)
        except KeyError:
            return False
        return True

    def cable_status(self) -> list[CableStatus]:
        """The cables to which something was done."""
        return list(self.cables.status())

    # State

    def active(self, *names: str) -> bool:
        """True if a subnet manager brought these ports (all with a link, if none is named) to Active at both ends."""
        ports = [self.ports[name] for name in names] or [port for port in self.ports.values() if port.up]
        return all(port.active for port in ports)

    def lid(self, name: str) -> int:
        """LID of the card's port at this cable, 0 if it has no link or no LID yet."""
        return self.ports[name].lid

    def sm_lid(self, name: str) -> int:
        """LID of the subnet manager that the card's port knows, whoever that is; 0 if it knows none."""
        return self.ports[name].sm_lid

    @property
    def manager_state(self) -> ManagerState:
        """What the manager inside is: master, or what else."""
        return _MANAGER_STATES[self.manager.election.state]

    def managers(self) -> list[ManagerStatus]:
        """The manager inside and those that it knows, as they said last; a master first. None where it is elsewhere."""
        if not self._managed:
            return []
        nodes = self.manager.topology.nodes
        found = [(self.switch.name, self.switch.node_guid, self.manager.info(), True)]
        for rival in self.manager.rivals:
            node = nodes.get(rival.place[0])
            text = node.description.partition(b"\0")[0].decode("ascii", "replace") if node is not None else ""
            found.append((text, rival.info.guid, rival.info, False))
        told = [
            ManagerStatus(name, guid, info.priority, _MANAGER_STATES.get(info.sm_state, "not active"), inside)
            for name, guid, info, inside in found
        ]
        return sorted(told, key=lambda each: each.state != "master")

    def status(self) -> list[PortStatus]:
        """How each card's port and cable are."""
        found = []
        for name, port in self.ports.items():
            rules = [rule for _, rule in self.faults(name)]
            state = _STATES.get(port.switch_port.state, "?")
            hits = sum(rule.hits for rule in rules)
            found.append(PortStatus(name, port.link.plugged, port.up, state, self.lid(name), len(rules), hits))
        return found

    def counters(self) -> dict[str, int]:
        """All counters, by name: port.counter, switch.dropped.reason, trunk.name.counter, sm.counter, sa.counter."""
        values = {f"{name}.{key}": n for name, port in self.ports.items() for key, n in port.counters().items()}
        dropped: Counter[Drop] = Counter()
        for switch in self.switches.values():
            dropped.update(switch.dropped())
        values |= {f"switch.dropped.{reason}": n for reason, n in sorted(dropped.items())}
        for name, trunk in self.trunks.items():
            values |= {f"trunk.{name}.{key}": n for key, n in sorted(trunk.counters.items())}
        values |= {f"sm.{key}": n for key, n in sorted(self.manager.counters.items())}
        values[f"sm.{ManagerCount.TIMEOUTS}"] = self.manager.transactions.timeouts + self.manager.inquiries.timeouts
        directory = shown(self.administration.counters, self.administration.counters_of)
        return values | {f"sa.{key}": n for key, n in sorted(directory.items())}

    # Capture

    def capture(self, path: Path | str, choice: CaptureChoice = USUAL_CAPTURE, *, ring: Ring | None = None) -> Capture:
        """Record in a file, or a ring of files, until :meth:`stop_capture` or a limit.

        A packet is recorded where a card sent it, before any fault of the cable. Where it arrives, behind all faults,
        it is recorded if nobody recorded it before: it comes from the switch, or from a card that is not recorded; with
        `both_ends`, always. What a card sends to itself gets an interface of its own, NAME-loopback.

        KeyError if there is no such port, OSError if the file cannot be written, or is that of a running capture.
        """
        self.captures.check(choice)
        return self.captures.start(File(Path(path), ring), choice)

    def stop_capture(self, capture: Capture) -> None:
        """End a recording; its file is complete behind `capture.wait()`."""
        self.captures.stop(capture)

    def close(self) -> None:
        """End all recordings."""
        for capture in list(self.captures.running):
            self.stop_capture(capture)

    # Timers

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        later = self._later[0][0] if self._later else None
        return earliest(self.manager.next_deadline(), self.administration.next_deadline(), later)

    def run_timers(self, now_ns: int) -> None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        self.manager.run_timers(now_ns)
        self.administration.run_timers(now_ns)

    def _call_later(self, delay_ns: int, fn: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._later, (self._clock.now_ns() + delay_ns, self._sequence, fn))

    def _send_smp(self, packet: Packet) -> None:
        """An SMP of the manager inside: at once there and back, if nothing happens on its way."""
        mad = packet.payload
        answer = None
        if mad[1] == madwire.CLASS_SUBN_DR and packet.route.dlid == PERMISSIVE_LID:
            answer = self._express.ask_with_key(mad)
        if answer is None:
            self.switch.send_from_management(packet)
            return
        inside = self.switch.ports[0].counters
        inside.received_many(1, WORDS, 0, MANAGEMENT_VL)
        if answer:
            inside.sent_many(1, WORDS, 0)
            # It comes in by the port that the request left by.
            self._call_soon(lambda: self.manager.answered(Smp.from_bytes(answer), mad[_FIRST_HOP]))

    def _from_management_port(self, packet: Packet, arrival: int) -> None:
        # QP0 exists on VL 15 only, whatever a sender claims (13.5.1).
        if packet.route.vl == MANAGEMENT_VL:
            self.manager.receive(packet, arrival)
        else:
            self.administration.receive(packet)
