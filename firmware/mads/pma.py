"""The performance management agent of the card: shows a port's counters to monitors (16.1 of volume 1).

The counters themselves are plain numbers that the transport and the board add to. The narrow counters of PortCounters
are shown relative to their last reset and stick at their largest value; a Set writes the selected ones.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vhca.layout import Layout
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.mad import MAD_BYTES, PerfMad

_RESP_TIME: Final = 16


@dataclass(slots=True)
class PortCounters:
    """What a port has seen; `*_data` in 4-byte words from LRH to ICRC, everything else in packets or events."""

    xmit_data: int = 0
    rcv_data: int = 0
    xmit_pkts: int = 0
    rcv_pkts: int = 0
    unicast_xmit_pkts: int = 0
    unicast_rcv_pkts: int = 0
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


@dataclass(slots=True)
class _View:
    """A port's counters and what to subtract from them, for each of the two attributes."""

    counters: PortCounters
    base: dict[str, int] = field(default_factory=dict)
    base_extended: dict[str, int] = field(default_factory=dict)


class Pma:
    """Agent of all ports of one card; `counters` maps port numbers (1-based) to their counters."""

    def __init__(self, counters: Mapping[int, PortCounters]) -> None:
        self._views = {port: _View(values) for port, values in counters.items()}
        self.counters: Counter[str] = Counter()

    def handle(self, port: int, mad: bytes) -> bytes | None:
        """Serve one performance management datagram that arrived at `port`; None if it deserves no answer."""
        if len(mad) != MAD_BYTES or mad[1] != madwire.CLASS_PERF or port not in self._views:
            self.counters["perf_discarded"] += 1
            return None
        request = PerfMad.from_bytes(mad)
        if request.method & madwire.METHOD_RESPONSE or request.method == madwire.METHOD_TRAP_REPRESS:
            self.counters["perf_no_reply"] += 1
            return None
        request.status = self._execute(port, request)
        request.method = madwire.METHOD_GET_RESP
        return request.to_bytes()

    def _execute(self, port: int, request: PerfMad) -> int:
        if request.base_version != madwire.BASE_VERSION or request.class_version != 1:
            return madwire.STATUS_BAD_VERSION
        if request.method not in (madwire.METHOD_GET, madwire.METHOD_SET):
            return madwire.STATUS_UNSUPPORTED_METHOD
        if request.attr_id == madwire.ATTR_CLASS_PORT_INFO:
            return self._class_port_info(request)
        if request.attr_id == perf.PORT_COUNTERS:
            return self._port_counters(port, request)
        if request.attr_id == perf.PORT_COUNTERS_EXTENDED:
            return self._port_counters_extended(port, request)
        self.counters[f"perf_unsupported_attribute_{request.attr_id:#06x}"] += 1
        return madwire.STATUS_UNSUPPORTED_ATTRIBUTE

    def _class_port_info(self, request: PerfMad) -> int:
        if request.method != madwire.METHOD_GET:
            return madwire.STATUS_UNSUPPORTED_METHOD
        info = madwire.ClassPortInfo(
            base_version=1, class_version=1, capability_mask=perf.CAP_EXTENDED_WIDTH, resp_time=_RESP_TIME
        )
        request.data = info.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK

    def _port_counters(self, port: int, request: PerfMad) -> int:
        wanted = perf.PortCounters.from_bytes(request.data)
        view = self._views.get(wanted.port_select)
        if view is None or request.attr_mod:
            return madwire.STATUS_INVALID_FIELD
        if request.method == madwire.METHOD_SET:
            select = wanted.counter_select | (wanted.counter_select2 & 1) << 16
            for bit, name in perf.COUNTER_SELECT:
                if select >> bit & 1:
                    view.base[name] = getattr(view.counters, name) - getattr(wanted, name)
        shown = perf.PortCounters(port_select=wanted.port_select)
        if request.method == madwire.METHOD_SET:
            shown.counter_select = wanted.counter_select
            shown.counter_select2 = wanted.counter_select2
        for _, name in perf.COUNTER_SELECT:
            value = getattr(view.counters, name) - view.base.get(name, 0)
            setattr(shown, name, min(value, _largest(perf.PortCounters, name)))
        request.data = shown.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK

    def _port_counters_extended(self, port: int, request: PerfMad) -> int:
        wanted = perf.PortCountersExtended.from_bytes(request.data)
        view = self._views.get(wanted.port_select)
        if view is None or request.attr_mod:
            return madwire.STATUS_INVALID_FIELD
        shown = perf.PortCountersExtended(port_select=wanted.port_select)
        if request.method == madwire.METHOD_SET:
            shown.counter_select = wanted.counter_select
        for bit, name in perf.COUNTER_SELECT_EXTENDED:
            value = getattr(view.counters, name)
            if request.method == madwire.METHOD_SET and wanted.counter_select >> bit & 1:
                view.base_extended[name] = value - getattr(wanted, name)
            setattr(shown, name, value - view.base_extended.get(name, 0) & 0xFFFFFFFFFFFFFFFF)
        request.data = shown.to_bytes().ljust(192, b"\0")
        return madwire.STATUS_OK


def _largest(layout: type[Layout], name: str) -> int:
    width = next(row.width for row in layout.fields() if row.name == name)
    return (1 << width) - 1
