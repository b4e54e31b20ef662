"""A subnet in a box: one switch with a subnet manager inside, and a cable for each card.

Assumes one thread: everything runs in turns of `call_soon`, and time comes from `clock`. The fabric is a timer source
of that loop. Nothing is configured behind the scenes: ports come up because the subnet manager says so by SMP.
"""

import heapq
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, Protocol

from vhca.fabric.capture import INBOUND, OUTBOUND, Capture
from vhca.fabric.faults import Fault, FaultInjector
from vhca.fabric.link import CallSoon, Link, LinkEnd
from vhca.fabric.port import MANAGEMENT_VL, SwitchPort
from vhca.fabric.subnet_administration import SubnetAdministration
from vhca.fabric.subnet_manager import SubnetManager
from vhca.fabric.switch import Switch
from vhca.wire import smp
from vhca.wire.packet import Packet

DEFAULT_SWITCH_GUID: Final = 0x0002C90000FAB000


class Clock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin."""
        ...


class FabricPort:
    """The card's end of a cable."""

    def __init__(self, name: str, link: Link, switch_port: SwitchPort) -> None:
        self.name = name
        self.link = link
        self.switch_port = switch_port
        self._end: LinkEnd = link.a
        self._receive: Callable[[Packet], None] | None = None
        self._link_changed: Callable[[bool], None] | None = None
        self._card_full: Callable[[], bool] | None = None
        self._end.attach(self, enabled=False)

    @property
    def up(self) -> bool:
        """True while the physical link is up."""
        return self.link.up

    def attach(
        self,
        receive: Callable[[Packet], None],
        link_changed: Callable[[bool], None] | None = None,
        full: Callable[[], bool] | None = None,
    ) -> None:
        """Plug a card in and switch its transmitter on; `link_changed` hears soon that the link is up.

        While `full` says so, data for the card waits on the cable.
        """
        self._card_full = full
        self._receive = receive
        self._link_changed = link_changed
        self._end.set_enabled(True)

    def detach(self) -> None:
        """Unplug the card: the link goes down."""
        self._end.set_enabled(False)
        self._receive = None
        self._link_changed = None
        self._card_full = None

    def set_enabled(self, enabled: bool) -> None:
        """Switch the card's transmitter on or off, as a reset does; the other end sees the link go."""
        self._end.set_enabled(enabled)

    def bounce(self) -> None:
        """Take the link down and up again: both ends see both changes, as after a reset of the card."""
        self._end.bounce()

    def send(self, packet: Packet) -> None:
        """Send a packet or burst into the fabric."""
        self._end.send(packet)

    @property
    def full(self) -> bool:
        """True while what was sent has not got far: the card holds back."""
        return self._end.full

    def blocked(self, packet: Packet) -> bool:
        """See :class:`vhca.fabric.link.Endpoint`; management passes a full card's data."""
        return packet.vl != MANAGEMENT_VL and self._card_full is not None and self._card_full()

    def receive(self, packet: Packet) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        if self._receive is not None:
            self._receive(packet)

    def link_changed(self, up: bool) -> None:
        """See :class:`vhca.fabric.link.Endpoint`."""
        if self._link_changed is not None:
            self._link_changed(up)

    def counters(self) -> dict[str, int]:
        """What the card sent (xmit) and was sent (rcv), counted at the switch: words of 4 bytes, packets."""
        counters = self.switch_port.counters
        dropped = self.switch_port.dropped
        values = {
            "xmit_data": counters.rcv_data,
            "rcv_data": counters.xmit_data,
            "xmit_pkts": counters.rcv_pkts,
            "rcv_pkts": counters.xmit_pkts,
            "multicast_xmit_pkts": counters.multicast_rcv_pkts,
            "multicast_rcv_pkts": counters.multicast_xmit_pkts,
            "link_downed": counters.link_downed,
        }
        values |= {f"dropped.{reason}": count for reason, count in sorted(dropped.items())}
        return values | {f"dropped.cable_{reason}": count for reason, count in sorted(self.link.dropped.items())}


class Fabric:
    """One subnet; `call_soon(fn)` runs `fn` in a later turn of the caller's loop.

    `mkey` protects agents: None, the default, a random key for each port; a number, that key for all; 0, no key, and
    everybody on the fabric can be its manager.
    """

    def __init__(
        self,
        call_soon: CallSoon,
        clock: Clock,
        *,
        num_ports: int = 36,
        switch_guid: int = DEFAULT_SWITCH_GUID,
        seed: int = 0,
        mkey: int | None = None,
        random: Random | None = None,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._seed = seed
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._captures: dict[Capture, list[tuple[Link, Callable[[LinkEnd, Packet], None]]]] = {}
        self.ports: dict[str, FabricPort] = {}
        self.switch = Switch(call_soon, switch_guid, num_ports, now_ns=clock.now_ns)
        self.manager = SubnetManager(
            self.switch.send_from_management, clock.now_ns, call_soon=call_soon, random=random, mkey=mkey
        )
        self.administration = SubnetAdministration(
            self.manager, self.switch.send_from_management, clock.now_ns, call_soon, num_ports, random
        )
        self.manager.changed = self.administration.topology_changed
        self.switch.management = self._from_management_port
        # Other managers look for this bit, to find out that there is a master.
        self.switch.ports[0].info.capability_mask |= smp.CAP_IS_SM
        call_soon(self.manager.start)

    # Cables

    def add_port(self, name: str) -> FabricPort:
        """A cable from the lowest free port of the switch; ValueError if the name is taken, LookupError if full."""
        if name in self.ports:
            raise ValueError(f"the fabric has a port called {name} already")
        switch_port = self.switch.free_port()
        link = Link(self._call_soon, self._call_later, name, f"switch/{switch_port.number}")
        port = self.ports[name] = FabricPort(name, link, switch_port)
        switch_port.plug(link.b)
        for capture in self._captures:
            self._tap(capture, port)
        return port

    def link_down(self, name: str) -> None:
        """Pull a port's cable; KeyError if there is no such port."""
        self.ports[name].link.set_plugged(False)

    def link_up(self, name: str) -> None:
        """Plug a port's cable in again; KeyError if there is no such port."""
        self.ports[name].link.set_plugged(True)

    def add_fault(self, name: str, fault: Fault, *, toward_card: bool = True) -> None:
        """Let something go wrong on a port's cable, in one direction; see :class:`vhca.fabric.faults.Fault`."""
        link = self.ports[name].link
        end = link.b if toward_card else link.a
        if end.faults is None:
            end.faults = FaultInjector(self._seed + 2 * self.ports[name].switch_port.number + toward_card)
        end.faults.rules.append(fault)

    def clear_faults(self, name: str) -> None:
        """Repair a port's cable."""
        for end in (self.ports[name].link.a, self.ports[name].link.b):
            if end.faults is not None:
                held = end.faults.flush()
                end.faults = None
                for packet in held:
                    end.send(packet)

    # State

    def active(self, *names: str) -> bool:
        """True if the subnet manager brought these ports (all attached ones, if none is named) to Active."""
        ports = [self.ports[name] for name in names] or [port for port in self.ports.values() if port.up]
        return self.manager.settled and all(self._port_active(port) for port in ports)

    def lid(self, name: str) -> int:
        """LID of the card's port at this cable, 0 if it has none yet."""
        known = self._known_port(self.ports[name])
        return known.lid if known is not None else 0

    def _known_port(self, port: FabricPort) -> smp.PortInfo | None:
        topology = self.manager.topology
        peer = topology.cables.get((self.switch.node_guid, port.switch_port.number))
        node = topology.nodes.get(peer[0]) if peer is not None else None
        found = node.ports.get(peer[1]) if node is not None and peer is not None else None
        return found.info if found is not None else None

    def _port_active(self, port: FabricPort) -> bool:
        known = self._known_port(port)
        near = port.switch_port.state == smp.PORT_ACTIVE
        return near and known is not None and known.port_state == smp.PORT_ACTIVE

    def counters(self) -> dict[str, int]:
        """All counters, by name: port.counter, switch.dropped.reason, sm.counter, sa.counter."""
        values = {f"{name}.{key}": n for name, port in self.ports.items() for key, n in port.counters().items()}
        values |= {f"switch.dropped.{reason}": n for reason, n in sorted(self.switch.dropped().items())}
        values |= {f"sm.{key}": n for key, n in sorted(self.manager.counters.items())}
        values["sm.timeouts"] = self.manager.transactions.timeouts
        return values | {f"sa.{key}": n for key, n in sorted(self.administration.counters.items())}

    # Capture

    def capture(self, path: Path | str) -> Capture:
        """Record what passes all cables, those added later too, until :meth:`stop_capture`."""
        offset_ns = time.time_ns() - self._clock.now_ns()
        capture = Capture(path, lambda: self._clock.now_ns() + offset_ns)
        self._captures[capture] = []
        for port in self.ports.values():
            self._tap(capture, port)
        return capture

    def stop_capture(self, capture: Capture) -> None:
        """End a recording and close its file."""
        for link, tap in self._captures.pop(capture, []):
            link.taps.remove(tap)
        capture.close()

    def close(self) -> None:
        """End all recordings."""
        for capture in list(self._captures):
            self.stop_capture(capture)

    def _tap(self, capture: Capture, port: FabricPort) -> None:
        interface = capture.interface(port.name)
        card = port.link.a

        def tap(end: LinkEnd, packet: Packet) -> None:
            capture.record(interface, packet, OUTBOUND if end is card else INBOUND)

        port.link.taps.append(tap)
        self._captures[capture].append((port.link, tap))

    # Timers

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        deadlines = [self.manager.next_deadline(), self.administration.next_deadline()]
        if self._later:
            deadlines.append(self._later[0][0])
        return min((d for d in deadlines if d is not None), default=None)

    def run_timers(self, now_ns: int) -> None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        self.manager.run_timers(now_ns)
        self.administration.run_timers(now_ns)

    def _call_later(self, delay_ns: int, fn: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._later, (self._clock.now_ns() + delay_ns, self._sequence, fn))

    def _from_management_port(self, packet: Packet, arrival: int) -> None:
        # QP0 exists on VL 15 only, whatever a sender claims (13.5.1).
        if packet.vl == MANAGEMENT_VL:
            self.manager.receive(packet, arrival)
        else:
            self.administration.receive(packet)
