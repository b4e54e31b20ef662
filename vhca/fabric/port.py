"""A port of the switch: its PortInfo, its link state, its counters and tables.

Port 0 is the management port inside the switch: always active, without a cable.
"""

from collections import Counter
from typing import Final, Protocol

from vhca.fabric.counters import Drop
from vhca.fabric.line import LinkCount
from vhca.fabric.link import LinkEnd
from vhca.fabric.watched import WatchedPort
from vhca.fabric.wires import Wires
from vhca.management.link_speed import USUAL
from vhca.management.mkey import MKeyGuard
from vhca.management.partitions import admitted_in, admitted_out, default_table
from vhca.management.performance import PortCounters
from vhca.management.port_state import LANES, data_lanes, first_port_info
from vhca.management.samples import TICK_NS
from vhca.management.subnet import LINK_CHANGE_NS
from vhca.wire import smp
from vhca.wire.packet import MANAGEMENT_VL, Packet
from vhca.wire.smp import PortInfo

PARTITION_CAP: Final = 8
"""P_Keys of the management port."""
ENFORCEMENT_CAP: Final = 32
"""P_Keys of each external port."""
VIOLATIONS_MAX: Final = 0xFFFF
MAX_HOQ_LIFE: Final = 19
"""HOQLife above it is no limit (14.2.5.6)."""
STALL: Final = 8
"""A port that stalls does so for so many HOQLifes (18.2.5.4)."""

_FIRST_PKEYS: Final = default_table(PARTITION_CAP), default_table(ENFORCEMENT_CAP)


class Relay(Protocol):
    """What is behind the ports of a switch."""

    wires: Wires
    node_guid: int

    def now_ns(self) -> int:
        """The time."""
        ...

    def receive(self, port: "SwitchPort", packet: Packet) -> None:
        """A packet or burst arrived at `port`."""
        ...

    def blocked(self, port: "SwitchPort", packet: Packet) -> bool:
        """True if this packet must wait on the cable of its arrival."""
        ...

    def port_state_changed(self, port: "SwitchPort") -> None:
        """A cable came or went."""
        ...

    def out_port(self, dlid: int) -> "SwitchPort | None":
        """Where the linear forwarding table sends packets for a unicast LID; None if nowhere."""
        ...


class SwitchPort(WatchedPort):
    """One external port (1..n) or the management port (0), whose `guard` is that of all ports (14.2.4).

    :ivar data_vls: how many data VLs are operational.
    :ivar admits: P_Keys of packets that may come in here, None if that is not enforced; `emits`: that may go out.
    """

    def __init__(self, switch: Relay, number: int, guard: MKeyGuard | None = None) -> None:
        internal = number == 0
        guids = (switch.node_guid,) if internal else ()
        super().__init__(number, _first_info(number), _FIRST_PKEYS[not internal], guids, guard)
        USUAL.train(self.info)
        self.switch = switch
        self.end: LinkEnd | None = None
        self.counters = PortCounters()
        self.dropped: Counter[Drop] = Counter()
        self.held = False
        self._falling = False
        # SL to VL by port of arrival; absent ones are the default.
        self.sl_to_vl: dict[int, bytes] = {}
        # SLIDs taken from the cable are `source_lid` under `source_mask`: all, until a manager writes that.
        self.source_lid = self.source_mask = 0
        self.state: int = self.info.port_state
        self.mtu_bytes = 4096
        self.data_vls = self.data_lanes
        self.admits: frozenset[int] | None = None
        self.emits: frozenset[int] | None = None
        # Since when data waits for this cable, and from when on that is not counted.
        self.stuck_since_ns: int | None = None
        self._uncounted_ns = 0
        # Packets that were given up one behind the other, and until when all are (VLStallCount).
        self._given_up = self._stalled_until_ns = 0

    def receive(self, packet: Packet) -> None:
        """A packet came out of the cable."""
        self.switch.receive(self, packet)

    def blocked(self, packet: Packet) -> bool:
        """See :class:`vhca.fabric.link.Endpoint`."""
        return self.switch.blocked(self, packet)

    @property
    def full(self) -> bool:
        """True while the cable at this port holds so much that no more should be sent to it."""
        return self.end is not None and self.end.full

    def link_changed(self, up: bool) -> None:
        """The cable trained or lost its partner."""
        if up:
            self._set_state(smp.PORT_INIT, smp.PHYS_LINK_UP)
        else:
            self.counters.link_downed += 1
            self._set_state(smp.PORT_DOWN, smp.PHYS_DISABLED if self.disabled else smp.PHYS_POLLING)
        self.switch.port_state_changed(self)

    def plug(self, end: LinkEnd) -> None:
        """Put a cable's end into this port."""
        self.end = end
        end.count = self.count
        end.attach(self)

    def count(self, what: LinkCount, number: int) -> None:
        """Count what the cable noticed."""
        setattr(self.counters, what, getattr(self.counters, what) + number)

    def move(self, state: int) -> None:
        """Armed or Active, by order of the manager."""
        self._set_state(state, self.info.port_physical_state)

    def follow(self) -> None:
        """State, MTU and VLs were written into PortInfo, of a link that is up: let packets pass by them."""
        info = self.info
        self.state = info.port_state
        self.mtu_bytes = smp.mtu_bytes(info.neighbor_mtu)
        self.data_vls = self.data_lanes

    def retrain(self, disabled: bool) -> None:
        """Take the link down, once the answer to who ordered it is out; it trains again unless it is `disabled`.

        PortInfo shows the change at once, packets feel it when the link falls. A port that is held down stays disabled.
        """
        disabled = disabled or self.held
        self.disabled = disabled
        self.info.port_state = smp.PORT_DOWN
        self.info.port_physical_state = smp.PHYS_DISABLED if disabled else smp.PHYS_POLLING
        if self.end is not None and not self._falling:
            self._falling = True
            self.end.link.call_later(LINK_CHANGE_NS, self._fall)

    def hold_down(self, held: bool) -> None:
        """Disable the port until it is let go, whatever managers write; or let it go, and train."""
        self.held = held
        self.retrain(held)

    def _fall(self) -> None:
        self._falling = False
        if self.end is not None:
            self.end.set_enabled(False)
            self.end.set_enabled(not self.disabled)

    @property
    def source(self) -> tuple[int, int]:
        """LID and LMC of what hangs on this port, LID 0 if it may send as anybody."""
        return self.source_lid, (~self.source_mask & 0x7F).bit_count() if self.source_lid else 0

    def set_source(self, lid: int, lmc: int) -> None:
        """Take packets only from these LIDs; from anybody if `lid` is 0."""
        self.switch.wires.changes += 1
        self.source_mask = 0xFFFF << lmc & 0xFFFF if lid else 0
        self.source_lid = lid & self.source_mask

    def is_source(self, lid: int) -> bool:
        """Tell whether what hangs on this port may call itself `lid`."""
        return lid & self.source_mask == self.source_lid

    def lane(self, arrival: int, sl: int) -> int:
        """The VL by which a packet of this service level leaves here that came in at a port."""
        return self.sl_to_vl.get(arrival, LANES)[sl]

    def set_lanes(self, arrival: int, lanes: bytes) -> None:
        """SLtoVLMappingTable for what arrived at a port: the lanes of 16 service levels."""
        self.switch.wires.changes += 1
        self.sl_to_vl[arrival] = lanes

    def set_mtu(self, code: int) -> None:
        """NeighborMTU, by code."""
        self.switch.wires.changes += 1
        self.info.neighbor_mtu = code
        self.mtu_bytes = smp.mtu_bytes(code)

    def set_data_vls(self, code: int) -> None:
        """OperationalVLs, by code."""
        self.switch.wires.changes += 1
        self.info.operational_vls = code
        self.data_vls = data_lanes(code)

    def enforce(self) -> None:
        """Let pass what P_Key table and enforcement bits say now."""
        info = self.info
        admits = admitted_in(self.pkeys) if info.partition_enforcement_inbound else None
        emits = admitted_out(self.pkeys) if info.partition_enforcement_outbound else None
        if (admits, emits) != (self.admits, self.emits):
            self.switch.wires.changes += 1
            self.admits, self.emits = admits, emits

    def pkey_violation(self) -> None:
        """PortInfo.P_KeyViolations, which stays at its largest value."""
        self.info.pkey_violations = min(self.info.pkey_violations + 1, VIOLATIONS_MAX)

    def drop(self, packet: Packet, reason: Drop) -> None:
        """Count a packet that goes no further."""
        self.dropped[reason] += packet.count

    def waits(self, now_ns: int) -> bool:
        """Data is to leave here, and the cable is full: it waits; False if it has waited too long (HOQLife)."""
        if self.stuck_since_ns is None:
            self.stuck_since_ns = self._uncounted_ns = now_ns
        return not self.expired(now_ns)

    def expired(self, now_ns: int) -> bool:
        """Tell whether what is to leave here next is to be dropped, if the cable is still full (18.2.5.4)."""
        since_ns, life = self.stuck_since_ns, self.info.hoq_life
        if since_ns is None or life > MAX_HOQ_LIFE:
            return False
        return now_ns < self._stalled_until_ns or now_ns - since_ns >= 4096 << life

    def waits_no_more(self) -> None:
        """What waited may have been lost with the cable of its arrival; if not, it begins anew."""
        self.stuck_since_ns = None
        self._given_up = 0

    def give_up(self, now_ns: int) -> None:
        """What was to leave here next is dropped: the next one has its own time, unless too many had none left."""
        self.stuck_since_ns = now_ns
        self._given_up += 1
        if self._given_up == self.info.vl_stall_count:
            self._given_up = 0
            self._stalled_until_ns = now_ns + STALL * (4096 << self.info.hoq_life)

    def settle_wait(self, now_ns: int) -> None:
        """Count how long data has waited up to now (PortXmitWait); a cable that takes time counts by itself."""
        line = self.end.line if self.end is not None else None
        if self.stuck_since_ns is not None and not (line is not None and line.config.timed):
            ticks = max(0, now_ns - self._uncounted_ns) // TICK_NS
            self.counters.xmit_wait += ticks
            self._uncounted_ns += ticks * TICK_NS

    def transmit(self, packet: Packet, words: int) -> None:
        """Count a departure and put the packet on the cable."""
        if self.stuck_since_ns is not None and packet.route.vl != MANAGEMENT_VL:
            self.settle_wait(self.switch.now_ns())
            self.stuck_since_ns = None
            self._given_up = 0
        self.counters.sent(packet, words)
        if self.end is not None:
            self.end.send(packet)

    def _set_state(self, state: int, physical: int) -> None:
        if smp.PORT_DOWN in (state, self.state):
            self.switch.wires.cable_changed()
        else:
            self.switch.wires.changes += 1  # SMPs pass in all other states
        self.state = state
        self.info.port_state = state
        self.info.port_physical_state = physical


def _first_info(number: int) -> PortInfo:
    if number:
        return first_port_info(number, hoq_life=MAX_HOQ_LIFE + 1)
    return first_port_info(
        0,
        gid_prefix=smp.DEFAULT_GID_PREFIX,
        capability_mask=(
            smp.CAP_NOTICE
            | smp.CAP_TRAP
            | smp.CAP_SL_MAPPING
            | smp.CAP_SYSTEM_IMAGE_GUID
            | smp.CAP_SWITCH_PKEY_TRAP
            | smp.CAP_EXTENDED_SPEEDS
            | smp.CAP_MASK2
            | smp.CAP_MULTICAST_FDB_TOP
        ),
        guid_cap=1,
        port_state=smp.PORT_ACTIVE,
        port_physical_state=smp.PHYS_LINK_UP,
    )
