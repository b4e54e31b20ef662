"""The subnet management agent of the card: answers a subnet manager, over the wire or through the host.

Sans-IO: datagrams in, datagrams and port events out (chapter 14 of volume 1). It serves directed-route SMPs that end
here, LID-routed SMPs, and what the driver asks with MAD_IFC. Guarantees that any 256 bytes give a reply or none, and
that a Set is done as a whole or not at all.

DEVIATION: a trap is sent once, not repeated until it is repressed; subnet managers sweep anyway.
"""

from collections import Counter
from typing import Final

from firmware.mads.port import (
    DEFAULT_CAPABILITY_MASK,
    EVENT_CLIENT_REREGISTER,
    EVENT_GUID,
    EVENT_LID,
    EVENT_PKEY,
    GUID_CAP,
    PARTITION_CAP,
    ManagedPort,
    PortEvent,
)
from firmware.model.counters import SmpCount, SmpCountOf
from vhca.counting import Tally
from vhca.hw.hardware import BoardInfo
from vhca.management.agent import (
    SubnetAgent,
    apply_end_port,
    end_port_settings_valid,
    link_order,
    pack_sl_to_vl,
    unpack_sl_to_vl,
)
from vhca.management.directed import end_of_path
from vhca.management.subnet import (
    ext_port_info,
    ext_port_wanted,
    for_agent,
    is_answered,
    is_smp,
    port_of,
)
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import Smp
from vhca.wire.smp import NodeInfo, PortInfo

_OK: Final = madwire.STATUS_OK
_INVALID: Final = madwire.STATUS_INVALID_FIELD


def owns(mad: bytes) -> bool:
    """Tell whether an SMP from the wire is for the agent; anything else on QP0 is for a manager on the host."""
    return is_smp(mad) and for_agent(mad)


class Sma(SubnetAgent[ManagedPort]):
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
        self._reregister = 0
        self.getters = {
            smpwire.NODE_DESCRIPTION: self._get_node_description,
            smpwire.NODE_INFO: self._get_node_info,
            smpwire.GUID_INFO: self._get_guid_info,
            smpwire.PORT_INFO: self._get_port_info,
            smpwire.P_KEY_TABLE: self._get_pkey_table,
            smpwire.SL_TO_VL: self._get_sl_to_vl,
            smpwire.VL_ARBITRATION: self._get_vl_arbitration,
            smpwire.VENDOR_DIAG: self._get_vendor_diag,
            smpwire.MLNX_EXT_PORT_INFO: self._get_ext_port_info,
        }
        self.setters = {
            smpwire.GUID_INFO: self._set_guid_info,
            smpwire.PORT_INFO: self._set_port_info,
            smpwire.P_KEY_TABLE: self._set_pkey_table,
            smpwire.SL_TO_VL: self._set_sl_to_vl,
            smpwire.VL_ARBITRATION: self._set_vl_arbitration,
            smpwire.MLNX_EXT_PORT_INFO: self._set_ext_port_info,
        }

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

    def set_capability_mask(self, port: int, mask: int) -> bytes | None:
        """The host changed CapabilityMask; gives the trap 144 to send to the subnet manager, None if there is none."""
        state = self.ports[port]
        if mask == state.info.capability_mask:
            return None
        state.info.capability_mask = mask & 0xFFFFFFFF
        return self._trap_144(state, 0)

    def set_node_description(self, text: bytes) -> dict[int, bytes]:
        """The host changed the node's name (at most 64 bytes); gives a trap 144 by port that has a manager."""
        text = text[:64].ljust(64, b"\0")
        if text == self.node_description:
            return {}
        self.node_description = text
        traps = {number: self._trap_144(port, 1) for number, port in self.ports.items()}
        return {number: trap for number, trap in traps.items() if trap is not None}

    def handle(
        self, port: int, mad: bytes, ignore_mkey: bool = False, now_ns: int = 0
    ) -> tuple[bytes | None, list[PortEvent]]:
        """Serve one SMP that arrived at `port` (1-based); gives the reply (or None) and what the driver must hear.

        `ignore_mkey` is for the host itself. A directed-route request straight from the wire (hop pointer = hop count)
        leaves with its return path completed; one that the host's SMI already advanced keeps its hop pointer.
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
        if not ignore_mkey and not state.guard.allows(request, now_ns):
            self.counters[SmpCount.SMP_BAD_MKEY] += 1
            return None, []
        if request.method == madwire.METHOD_TRAP_REPRESS:
            self.counters[SmpCount.SMP_NO_REPLY] += 1
            return None, []
        events: list[PortEvent] = []
        self._events = events
        writing = request.method == madwire.METHOD_SET
        status = self.respond(state, request)
        state.host_wrote |= ignore_mkey and writing and not status
        return request.to_bytes(), events

    def unknown(self, attribute: int) -> None:
        """See :class:`vhca.management.agent.SubnetAgent`."""
        self.counters_of.add(SmpCountOf.UNSUPPORTED_ATTRIBUTE, attribute)

    # Get

    def _get_node_description(self, port: ManagedPort, request: Smp) -> int:
        request.data = self.node_description
        return _INVALID if request.attr_mod else _OK

    def _get_node_info(self, port: ManagedPort, request: Smp) -> int:
        board = self.board
        info = NodeInfo(
            base_version=1,
            class_version=1,
            node_type=smpwire.NODE_TYPE_CA,
            num_ports=len(self.ports),
            system_image_guid=board.system_image_guid,
            node_guid=board.node_guid,
            port_guid=port.guid,
            partition_cap=PARTITION_CAP,
            device_id=board.device_id,
            revision=board.revision,
            local_port_num=port.number,
            vendor_id=board.vendor_id,
        )
        request.data = info.to_bytes().ljust(64, b"\0")
        return _INVALID if request.attr_mod else _OK

    def _get_guid_info(self, port: ManagedPort, request: Smp) -> int:
        if request.attr_mod * smpwire.GUIDS_PER_BLOCK >= GUID_CAP:
            return _INVALID
        request.data = smpwire.pack_guids(port.guids)
        return _OK

    def _selected(self, port: ManagedPort, number: int) -> ManagedPort | None:
        """The port that an attribute modifier names; 0 is the port at which the SMP arrived."""
        return self.ports.get(number) if number else port

    def _get_port_info(self, port: ManagedPort, request: Smp) -> int:
        target = self._selected(port, port_of(request.attr_mod))
        if target is None:
            return _INVALID
        info = PortInfo.from_bytes(target.info.to_bytes())
        info.mkey = target.guard.shown_to(request.mkey)
        info.local_port_num = port.number
        if request.method == madwire.METHOD_SET:
            info.client_reregister = self._reregister
        request.data = info.to_bytes()
        return _OK

    def _get_pkey_table(self, port: ManagedPort, request: Smp) -> int:
        if (request.attr_mod & 0xFFFF) * smpwire.P_KEYS_PER_BLOCK >= PARTITION_CAP:
            return _INVALID
        request.data = smpwire.pack_words(port.pkeys).ljust(64, b"\0")
        return _OK

    def _get_sl_to_vl(self, port: ManagedPort, request: Smp) -> int:
        request.data = pack_sl_to_vl(port.sl_to_vl)
        return _OK

    def _get_vl_arbitration(self, port: ManagedPort, request: Smp) -> int:
        block = request.attr_mod >> 16
        if block not in (1, 3):
            return _INVALID
        table = port.vl_arbitration_low if block == 1 else port.vl_arbitration_high
        request.data = table.ljust(64, b"\0")
        return _OK

    def _get_vendor_diag(self, port: ManagedPort, request: Smp) -> int:
        return _OK

    def _get_ext_port_info(self, port: ManagedPort, request: Smp) -> int:
        target = self._selected(port, request.attr_mod)
        if target is None:
            return _INVALID
        request.data = ext_port_info(target.ext_speed_enabled)
        return _OK

    # Set: check everything, then change everything

    def _set_guid_info(self, port: ManagedPort, request: Smp) -> int:
        if request.attr_mod * smpwire.GUIDS_PER_BLOCK >= GUID_CAP:
            return _INVALID
        # Entry 0 is burnt in (14.2.5.5).
        guids = [port.guid, *smpwire.unpack_guids(request.data)[1:]]
        if guids != port.guids:
            port.guids = guids
            self._events.append(PortEvent(port.number, EVENT_GUID))
        return _OK

    def _set_pkey_table(self, port: ManagedPort, request: Smp) -> int:
        if (request.attr_mod & 0xFFFF) * smpwire.P_KEYS_PER_BLOCK >= PARTITION_CAP:
            return _INVALID
        pkeys = smpwire.unpack_words(request.data)[:PARTITION_CAP]
        if pkeys != port.pkeys:
            port.pkeys = pkeys
            self._events.append(PortEvent(port.number, EVENT_PKEY))
        return _OK

    def _set_sl_to_vl(self, port: ManagedPort, request: Smp) -> int:
        port.sl_to_vl = unpack_sl_to_vl(request.data)
        return _OK

    def _set_vl_arbitration(self, port: ManagedPort, request: Smp) -> int:
        block = request.attr_mod >> 16
        if block == 1:
            port.vl_arbitration_low = request.data[: 2 * port.info.vl_arbitration_low_cap]
        elif block == 3:
            port.vl_arbitration_high = request.data[: 2 * port.info.vl_arbitration_high_cap]
        else:
            return _INVALID
        return _OK

    def _set_port_info(self, port: ManagedPort, request: Smp) -> int:
        target = self._selected(port, port_of(request.attr_mod))
        if target is None:
            return _INVALID
        wanted = PortInfo.from_bytes(request.data)
        if not end_port_settings_valid(target.info, wanted, request.attr_mod):
            return _INVALID
        info = target.info
        number = target.number
        addresses = (info.lid, info.lmc, info.sm_lid, info.sm_sl)
        prefix = info.gid_prefix
        apply_end_port(info, wanted, request.attr_mod)
        if (info.lid, info.lmc, info.sm_lid, info.sm_sl) != addresses:
            self._events.append(PortEvent(number, EVENT_LID))
        if info.gid_prefix != prefix:
            self._events.append(PortEvent(number, EVENT_GUID))
        if wanted.client_reregister:
            # Before the port becomes active: who hears of that finds its registrations already marked as lost.
            self._events.append(PortEvent(number, EVENT_CLIENT_REREGISTER))
        _move_port(target, wanted, self._events)
        # The reply is what Get gives now, with the ClientReregister bit echoed (14.2.5.6).
        self._reregister = wanted.client_reregister
        return _OK

    def _set_ext_port_info(self, port: ManagedPort, request: Smp) -> int:
        target = self._selected(port, request.attr_mod)
        wanted = None if target is None else ext_port_wanted(target.ext_speed_enabled, request.data)
        if target is None or wanted is None:
            return _INVALID
        target.ext_speed_enabled = wanted
        return _OK

    def _trap_144(self, port: ManagedPort, change_flags: int) -> bytes | None:
        if port.state < smpwire.PORT_ARMED or not port.sm_lid or not port.info.capability_mask & smpwire.CAP_TRAP:
            return None
        lid = port.lid.to_bytes(2, "big")
        mask = port.info.capability_mask.to_bytes(4, "big")
        local = 1 if change_flags else 0
        details = bytes(2) + lid + bytes((0, local)) + mask + bytes((0, change_flags))
        return self.trap(
            madwire.TRAP_CAPABILITY_CHANGE, madwire.NOTICE_TYPE_INFORMATION, madwire.PRODUCER_CA, port.lid, details
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
