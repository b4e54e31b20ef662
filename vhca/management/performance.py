"""The performance management agent of a node: shows its ports' counters to monitors (16.1 of volume 1).

The counters themselves are plain numbers that whoever moves packets adds to. The narrow counters of PortCounters are
shown relative to their last reset and stick at their largest value; a Set writes the selected ones.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vhca.counting import Tally
from vhca.layout import Layout
from vhca.management.counters import PerfCount, PerfCountOf
from vhca.management.refusal import response_method
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.ib import wire_size_bytes
from vhca.wire.mad import MAD_BYTES, PerfMad
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID, Packet

_RESP_TIME: Final = 16
# The VCRC, which PortXmitData and PortRcvData leave out (16.1.3.5).
_VCRC_BYTES: Final = 2


def data_words(packet: Packet) -> int:
    """Words of 4 bytes of all packets of a burst, from LRH to ICRC, as port counters count them."""
    return (wire_size_bytes(packet) - _VCRC_BYTES * packet.count) >> 2


@dataclass(slots=True)
class PortCounters:
    """What a port has seen; `*_data` in 4-byte words from LRH to ICRC, everything else in packets or events."""

    xmit_data: int = 0
    rcv_data: int = 0
    xmit_pkts: int = 0
    rcv_pkts: int = 0
    multicast_xmit_pkts: int = 0
    multicast_rcv_pkts: int = 0
    symbol_errors: int = 0
    link_error_recovery: int = 0
    link_downed: int = 0
    rcv_errors: int = 0
    rcv_remote_physical_errors: int = 0
    rcv_switch_relay_errors: int = 0
    xmit_discards: int = 0
    xmit_constraint_errors: int = 0
    rcv_constraint_errors: int = 0
    local_link_integrity_errors: int = 0
    excessive_buffer_overruns: int = 0
    vl15_dropped: int = 0
    xmit_wait: int = 0
    # Of rcv_errors, of rcv_switch_relay_errors and of xmit_discards: why.
    local_physical_errors: int = 0
    malformed_errors: int = 0
    buffer_overrun_errors: int = 0
    dlid_mapping_errors: int = 0
    vl_mapping_errors: int = 0
    looping_errors: int = 0
    inactive_discards: int = 0
    mtu_discards: int = 0

    @property
    def unicast_xmit_pkts(self) -> int:
        """Sent packets that were no multicast."""
        return self.xmit_pkts - self.multicast_xmit_pkts

    @property
    def unicast_rcv_pkts(self) -> int:
        """Received packets that were no multicast."""
        return self.rcv_pkts - self.multicast_rcv_pkts

    def exchanged(self, sent: int, sent_words: int, received: int, received_words: int) -> None:
        """Count packets to one receiver, and their words, that leave and that arrive."""
        self.xmit_pkts += sent
        self.xmit_data += sent_words
        self.rcv_pkts += received
        self.rcv_data += received_words

    def sent(self, packet: Packet, words: int) -> None:
        """Count a packet or burst that leaves; `words` is its :func:`data_words`."""
        count = packet.count
        self.xmit_data += words
        self.xmit_pkts += count
        if MULTICAST_LID_FIRST <= packet.route.dlid < PERMISSIVE_LID:
            self.multicast_xmit_pkts += count

    def received(self, packet: Packet, words: int) -> None:
        """Count a packet or burst that arrives; `words` is its :func:`data_words`."""
        count = packet.count
        self.rcv_data += words
        self.rcv_pkts += count
        if MULTICAST_LID_FIRST <= packet.route.dlid < PERMISSIVE_LID:
            self.multicast_rcv_pkts += count


@dataclass(slots=True)
class _View:
    """A port's counters and what to subtract from them, for each of the two attributes."""

    counters: PortCounters
    base: dict[str, int] = field(default_factory=dict)
    base_extended: dict[str, int] = field(default_factory=dict)


class PerformanceAgent:
    """Agent of all ports of one node; `counters` maps port numbers to their counters.

    With `all_ports` it knows the port number 0xFF: a Get shows the sum of all ports, a Set writes each of them.
    """

    def __init__(self, counters: Mapping[int, PortCounters], *, all_ports: bool = False) -> None:
        self._views = {port: _View(values) for port, values in counters.items()}
        self._all_ports = all_ports
        self.counters: Counter[PerfCount] = Counter()
        self.counters_of: Tally[PerfCountOf] = Tally()

    def handle(self, mad: bytes) -> bytes | None:
        """Serve one performance management datagram; None if it deserves no answer."""
        if len(mad) != MAD_BYTES or mad[1] != madwire.CLASS_PERF:
            self.counters[PerfCount.PERF_DISCARDED] += 1
            return None
        request = PerfMad.from_bytes(mad)
        method = request.method
        if method & madwire.METHOD_RESPONSE or method in (madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS):
            self.counters[PerfCount.PERF_NO_REPLY] += 1
            return None
        request.status = self._execute(request)
        request.method = response_method(method)
        return request.to_bytes()

    def _execute(self, request: PerfMad) -> int:
        if request.base_version != madwire.BASE_VERSION or request.class_version != 1:
            return madwire.STATUS_BAD_VERSION
        if request.method not in (madwire.METHOD_GET, madwire.METHOD_SET):
            return madwire.STATUS_UNSUPPORTED_METHOD
        if request.attr_id == madwire.ATTR_CLASS_PORT_INFO:
            return self._class_port_info(request)
        if request.attr_id == perf.PORT_COUNTERS:
            return self._port_counters(request)
        if request.attr_id == perf.PORT_COUNTERS_EXTENDED:
            return self._port_counters_extended(request)
        self.counters_of.add(PerfCountOf.UNSUPPORTED_ATTRIBUTE, request.attr_id)
        return madwire.STATUS_UNSUPPORTED_ATTRIBUTE

    def _class_port_info(self, request: PerfMad) -> int:
        if request.method != madwire.METHOD_GET:
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE
        info = madwire.ClassPortInfo(
            base_version=1,
            class_version=1,
            capability_mask=perf.CAP_EXTENDED_WIDTH | (perf.CAP_ALL_PORT_SELECT if self._all_ports else 0),
            resp_time=_RESP_TIME,
        )
        request.data = info.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK

    def _selected(self, port_select: int) -> list[_View]:
        if port_select == perf.ALL_PORTS and self._all_ports:
            return list(self._views.values())
        view = self._views.get(port_select)
        return [] if view is None else [view]

    def _port_counters(self, request: PerfMad) -> int:
        wanted = perf.PortCounters.from_bytes(request.data)
        views = self._selected(wanted.port_select)
        if not views or request.attr_mod:
            return madwire.STATUS_INVALID_FIELD
        shown = perf.PortCounters(port_select=wanted.port_select)
        if request.method == madwire.METHOD_SET:
            shown.counter_select = wanted.counter_select
            shown.counter_select2 = wanted.counter_select2
            select = wanted.counter_select | (wanted.counter_select2 & 1) << 16
            for bit, name in perf.COUNTER_SELECT:
                if select >> bit & 1:
                    for view in views:
                        view.base[name] = getattr(view.counters, name) - getattr(wanted, name)
        for _, name in perf.COUNTER_SELECT:
            value = sum(getattr(view.counters, name) - view.base.get(name, 0) for view in views)
            setattr(shown, name, min(value, _LARGEST[name]))
        request.data = shown.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK

    def _port_counters_extended(self, request: PerfMad) -> int:
        wanted = perf.PortCountersExtended.from_bytes(request.data)
        views = self._selected(wanted.port_select)
        if not views or request.attr_mod:
            return madwire.STATUS_INVALID_FIELD
        shown = perf.PortCountersExtended(port_select=wanted.port_select)
        if request.method == madwire.METHOD_SET:
            shown.counter_select = wanted.counter_select
        for bit, name in perf.COUNTER_SELECT_EXTENDED:
            if request.method == madwire.METHOD_SET and wanted.counter_select >> bit & 1:
                for view in views:
                    view.base_extended[name] = getattr(view.counters, name) - getattr(wanted, name)
            value = sum(getattr(view.counters, name) - view.base_extended.get(name, 0) for view in views)
            setattr(shown, name, value & 0xFFFFFFFFFFFFFFFF)
        request.data = shown.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK


def _largest(layout: type[Layout]) -> dict[str, int]:
    return {row.name: (1 << row.width) - 1 for row in layout.fields()}


_LARGEST: Final = _largest(perf.PortCounters)
