"""The subnet management agent of the card: answers a subnet manager, over the wire or through the host.

Sans-IO: datagrams in, datagrams and port events out (chapter 14 of volume 1). It serves directed-route SMPs that end
here, LID-routed SMPs, and what the driver asks with MAD_IFC. Guarantees that any 256 bytes give a reply or none, and
that a Set is done as a whole or not at all.
"""

from collections import Counter
from typing import Final

from firmware.mads.port import (
    DEFAULT_CAPABILITY_MASK,
    EVENT_CLIENT_REREGISTER,
    EVENT_GUID,
    EVENT_LID,
    EVENT_PKEY,
    PARTITION_CAP,
    ManagedPort,
    PortEvent,
)
from firmware.model.counters import SmpCount, SmpCountOf
from vhca.counting import Tally
from vhca.hw.hardware import BoardInfo
from vhca.management.agent import ZEROS, apply_end_port, end_port_settings_valid, link_order
from vhca.management.directed import end_of_path
from vhca.management.port_agent import PortAgent, may_tell, node_info
from vhca.management.subnet import for_agent, is_answered, is_smp, port_of
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import Smp
from vhca.wire.notices import (
    CHANGED_LINK_SPEED_ENABLED,
    CHANGED_LINK_WIDTH_ENABLED,
    CHANGED_NODE_DESCRIPTION,
    LocalChangeDetails,
)
from vhca.wire.packet import PERMISSIVE_LID
from vhca.wire.smp import PortInfo

_OK: Final = madwire.STATUS_OK
_INVALID: Final = madwire.STATUS_INVALID_FIELD


def owns(mad: bytes) -> bool:
    """Tell whether an SMP from the wire is for the agent; anything else on QP0 is for a manager on the host."""
    return is_smp(mad) and for_agent(mad)


class Sma(PortAgent[ManagedPort]):
    """Agent of all ports of one card."""

    def __init__(self, info: BoardInfo) -> None:
        super().__init__()
        self.board = info
        self.node_description = _first_description(info)
        self.ports = {n: ManagedPort(n, guid, info.mtu, info.link) for n, guid in enumerate(info.port_guids, 1)}
        self.counters: Counter[SmpCount] = Counter()
        self.counters_of: Tally[SmpCountOf] = Tally()
        # Of the request at hand: what the driver must hear.
        self._events: list[PortEvent] = []
        self.readers[smpwire.VENDOR_DIAG] = self._read_vendor_diag
        self.writers[smpwire.GUID_INFO] = self.write_guid_info

    def port(self, number: int) -> ManagedPort:
        """Management state of port `number` (1-based); KeyError if there is none."""
        return self.ports[number]

    def link_up(self, port: int, up: bool) -> list[PortEvent]:
        """The cable at `port` came up or went down."""
        return self.ports[port].set_cable(up)

    def forget_host(self) -> None:
        """The card was reset: nothing is left of what the host's software wrote here.

        A port into whose tables the host wrote what is a manager's has to be managed anew: it is as at power-on.
        """
        self.node_description = _first_description(self.board)
        for port in self.ports.values():
            port.info.capability_mask = DEFAULT_CAPABILITY_MASK
            if port.host_wrote:
                port.forget(port.guid)

    def set_capability_mask(self, port: int, mask: int, now_ns: int = 0) -> None:
        """The host changed CapabilityMask; the subnet manager hears of it (trap 144)."""
        state = self.ports[port]
        if mask != state.info.capability_mask:
            state.info.capability_mask = mask & 0xFFFFFFFF
            self._tell_change(state, 0, now_ns)

    def set_node_description(self, text: bytes, now_ns: int = 0) -> None:
        """The host changed the node's name (at most 64 bytes); the subnet managers hear of it (trap 144)."""
        text = text[:64].ljust(64, b"\0")
        if text != self.node_description:
            self.node_description = text
            for port in self.ports.values():
                self._tell_change(port, CHANGED_NODE_DESCRIPTION, now_ns)

    def handle(
        self, port: int, mad: bytes, ignore_mkey: bool = False, now_ns: int = 0, source: int = PERMISSIVE_LID
    ) -> tuple[bytes | None, list[PortEvent]]:
        """Serve one SMP that arrived at `port` (1-based); gives the reply (or None) and what the driver must hear.

        `ignore_mkey` is for the host itself; `source` is the LID that it came from. A directed-route request straight
        from the wire (hop pointer = hop count) leaves with its return path completed; one that the host's SMI already
        advanced keeps its hop pointer. What there is to tell the manager afterwards, :meth:`traps` gives.
        """
        state = self.ports.get(port)
        if state is None or not is_smp(mad):
            self.counters[SmpCount.SMP_DISCARDED] += 1
            return None, []
        request = Smp.from_bytes(mad)
        if not is_answered(request.method) and request.method != madwire.METHOD_TRAP_REPRESS:
            self.counters[SmpCount.SMP_NO_REPLY] += 1
            return None, []
        directed = request.mgmt_class == madwire.CLASS_SUBN_DR
        if directed and not end_of_path(request, port):
            self.counters[SmpCount.SMP_BAD_PATH] += 1
            return None, []
        if not ignore_mkey and not self.admit(state, request, now_ns, source):
            self.counters[SmpCount.SMP_BAD_MKEY] += 1
            return None, []
        if request.method == madwire.METHOD_TRAP_REPRESS:
            if ignore_mkey:
                state.notices.repress(request.tid)
            self.counters[SmpCount.SMP_NO_REPLY] += 1
            return None, []
        events: list[PortEvent] = []
        self._events = events
        writing = request.method == madwire.METHOD_SET
        enabled = _enabled(state.info)
        status = self.respond(state, request)
        if ignore_mkey and writing and not status:
            state.host_wrote = True
            self._tell_speeds(state, enabled, now_ns)
        return request.to_bytes(), events

    def unknown(self, attribute: int) -> None:
        """See :class:`vhca.management.agent.SubnetAgent`."""
        self.counters_of.add(SmpCountOf.UNSUPPORTED_ATTRIBUTE, attribute)

    # What is the card's own

    def describe(self, port: ManagedPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        return self.node_description

    def identify(self, port: ManagedPort) -> bytes:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        board = self.board
        return node_info(
            node_type=smpwire.NODE_TYPE_CA,
            num_ports=len(self.ports),
            guids=(board.system_image_guid, board.node_guid, port.guid),
            partition_cap=PARTITION_CAP,
            device_id=board.device_id,
            local_port_num=port.number,
            vendor_id=board.vendor_id,
            revision=board.revision,
        )

    def selected(self, port: ManagedPort, number: int) -> ManagedPort | None:
        """The port that an attribute modifier names; 0 is the port at which the SMP arrived."""
        return self.ports.get(number) if number else port

    def pkeys_changed(self, port: ManagedPort) -> None:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        self._events.append(PortEvent(port.number, EVENT_PKEY))

    def guids_changed(self, port: ManagedPort) -> None:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        self._events.append(PortEvent(port.number, EVENT_GUID))

    def _read_vendor_diag(self, port: ManagedPort, modifier: int, mkey: int) -> bytes:
        return ZEROS

    def write_port_info(self, port: ManagedPort, modifier: int, data: bytes) -> int:
        """See :class:`vhca.management.port_agent.PortAgent`."""
        target = self.selected(port, port_of(modifier))
        if target is None:
            return _INVALID
        wanted = PortInfo.from_bytes(data)
        if not end_port_settings_valid(target.info, wanted, modifier):
            return _INVALID
        info = target.info
        number = target.number
        addresses = (info.lid, info.lmc, info.sm_lid, info.sm_sl)
        prefix = info.gid_prefix
        apply_end_port(info, wanted, modifier)
        if (info.lid, info.lmc, info.sm_lid, info.sm_sl) != addresses:
            self._events.append(PortEvent(number, EVENT_LID))
        if info.gid_prefix != prefix:
            self._events.append(PortEvent(number, EVENT_GUID))
        if wanted.client_reregister:
            # Before the port becomes active: who hears of that finds its registrations already marked as lost.
            self._events.append(PortEvent(number, EVENT_CLIENT_REREGISTER))
        _move_port(target, wanted, self._events)
        return _OK

    # Traps

    def _tell_speeds(self, port: ManagedPort, before: tuple[int, ...], now_ns: int) -> None:
        """The host itself wrote: its manager hears of widths and speeds that it enabled."""
        now = _enabled(port.info)
        flags = CHANGED_LINK_WIDTH_ENABLED if now[0] != before[0] else 0
        flags |= CHANGED_LINK_SPEED_ENABLED if now[1:] != before[1:] else 0
        if flags:
            self._tell_change(port, flags, now_ns)

    def _tell_change(self, port: ManagedPort, flags: int, now_ns: int) -> None:
        if may_tell(port):
            info = port.info
            details = LocalChangeDetails(
                lid=info.lid,
                local_changes=bool(flags),
                capability_mask=info.capability_mask,
                change_flags=flags,
                capability_mask2=info.capability_mask2,
            )
            port.notices.post(madwire.TRAP_CAPABILITY_CHANGE, self.producer, details, now_ns, place=flags)


def _enabled(info: PortInfo) -> tuple[int, ...]:
    """Widths and speeds of which a change is told."""
    return (
        info.link_width_enabled,
        info.link_speed_enabled,
        info.link_speed_ext_enabled,
        info.link_speed_ext_enabled2,
    )


def _first_description(info: BoardInfo) -> bytes:
    return info.node_description.encode()[:64].ljust(64, b"\0")


def _move_port(port: ManagedPort, wanted: PortInfo, events: list[PortEvent]) -> None:
    order = link_order(port.state, wanted)
    if order == "disable":
        events += port.disable()
    elif order == "poll":
        events += port.poll()
    elif order == "down":
        events += port.bounce()
    elif order == "move":
        events += port.move(wanted.port_state)
