"""The performance management agent of a node: shows its ports' counters to monitors (16.1 of volume 1).

The counters themselves are plain numbers that whoever moves packets adds to. What an attribute shows is relative to its
last reset; a Set writes the selected counters. All stick at their largest value, but those of PortCountersExtended
wrap.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from vhca.counting import Tally
from vhca.layout import Layout
from vhca.management.counters import PerfCount, PerfCountOf
from vhca.management.refusal import response_method
from vhca.management.samples import Sampler
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.ib import wire_size_bytes
from vhca.wire.mad import MAD_BYTES, STATUS_INVALID_FIELD, STATUS_OK, PerfMad
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, PERMISSIVE_LID, Packet

_RESP_TIME: Final = 16
# The VCRC, which PortXmitData and PortRcvData leave out (16.1.3.5).
_VCRC_BYTES: Final = 2
LANES: Final = 16


def data_words(packet: Packet) -> int:
    """Words of 4 bytes of all packets of a burst, from LRH to ICRC, as port counters count them."""
    return (wire_size_bytes(packet) - _VCRC_BYTES * packet.count) >> 2


def _sixteen() -> list[int]:
    return [0] * LANES


@dataclass(slots=True)
class Lanes:
    """What a port counts by service level and by virtual lane, but for SL 0, VL 0 and VL 15: those are the rest.

    Words of 4 bytes, and packets.
    """

    xmit_sl: list[int] = field(default_factory=_sixteen)
    rcv_sl: list[int] = field(default_factory=_sixteen)
    rcv_vl: list[int] = field(default_factory=_sixteen)
    rcv_vl_pkts: list[int] = field(default_factory=_sixteen)


@dataclass(slots=True)
class PortCounters:
    """What a port has seen; `*_data` in 4-byte words from LRH to ICRC, everything else in packets or events.

    `xmit_wait` is in ticks (:data:`vhca.management.samples.TICK_NS`).
    """

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
    qp1_dropped: int = 0
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
    lifetime_discards: int = 0
    hoq_discards: int = 0
    # What arrived on VL 15: words, packets.
    vl15_data: int = 0
    vl15_pkts: int = 0
    # There once something was not on SL 0, or on a VL between 0 and 15.
    lanes: Lanes | None = None

    @property
    def unicast_xmit_pkts(self) -> int:
        """Sent packets that were no multicast."""
        return self.xmit_pkts - self.multicast_xmit_pkts

    @property
    def unicast_rcv_pkts(self) -> int:
        """Received packets that were no multicast."""
        return self.rcv_pkts - self.multicast_rcv_pkts

    def sent_many(self, count: int, words: int, sl: int) -> None:
        """Count packets to one receiver, and their words, that leave on one service level."""
        self.xmit_pkts += count
        self.xmit_data += words
        if sl:
            self._lanes().xmit_sl[sl] += words

    def received_many(self, count: int, words: int, sl: int, vl: int) -> None:
        """Count packets for one receiver, and their words, that arrive on one service level and lane."""
        self.rcv_pkts += count
        self.rcv_data += words
        if sl or vl:
            self._arrived_on(sl, vl, count, words)

    def managed(self, sent: int, received: int, words: int) -> None:
        """Count SMPs that left and arrived, of `words` each: on VL 15 and SL 0."""
        self.xmit_pkts += sent
        self.xmit_data += words * sent
        self.rcv_pkts += received
        self.rcv_data += words * received
        self.vl15_pkts += received
        self.vl15_data += words * received

    def sent(self, packet: Packet, words: int) -> None:
        """Count a packet or burst that leaves; `words` is its :func:`data_words`."""
        count = packet.count
        route = packet.route
        self.xmit_data += words
        self.xmit_pkts += count
        if MULTICAST_LID_FIRST <= route.dlid < PERMISSIVE_LID:
            self.multicast_xmit_pkts += count
        if route.sl:
            self._lanes().xmit_sl[route.sl] += words

    def received(self, packet: Packet, words: int) -> None:
        """Count a packet or burst that arrives; `words` is its :func:`data_words`."""
        count = packet.count
        route = packet.route
        self.rcv_data += words
        self.rcv_pkts += count
        if MULTICAST_LID_FIRST <= route.dlid < PERMISSIVE_LID:
            self.multicast_rcv_pkts += count
        if route.vl or route.sl:
            self._arrived_on(route.sl, route.vl, count, words)

    def _lanes(self) -> Lanes:
        lanes = self.lanes
        if lanes is None:
            lanes = self.lanes = Lanes()
        return lanes

    def _arrived_on(self, sl: int, vl: int, count: int, words: int) -> None:
        if vl == MANAGEMENT_VL:
            self.vl15_pkts += count
            self.vl15_data += words
            if not sl:
                return
        lanes = self._lanes()
        lanes.rcv_sl[sl] += words
        if vl != MANAGEMENT_VL:
            lanes.rcv_vl[vl & 15] += words
            lanes.rcv_vl_pkts[vl & 15] += count


def _by_lane(total: int, others: list[int] | None) -> list[int]:
    """A counter by lane: lane 0 has what is left of the total."""
    values = [0] * LANES if others is None else others
    return [total - sum(values[1:]), *values[1:]]


def _by_vl(total: int, others: list[int] | None, managed: int) -> list[int]:
    """The same by virtual lane: VL 15 is counted apart."""
    values = ([0] * LANES if others is None else others)[1:MANAGEMENT_VL]
    return [total - sum(values) - managed, *values, managed]


Values = Callable[[PortCounters], list[int]]


def _nothing(counters: PortCounters) -> list[int]:
    """Of counters that never count."""
    return [0] * LANES


_LANED: Final[dict[int, tuple[type[Layout], Values]]] = {
    perf.PORT_OP_RCV_COUNTERS: (perf.PairOfCounters, lambda c: [c.rcv_pkts, c.rcv_data]),
    # Credits are no packets here.
    perf.PORT_FLOW_CTL_COUNTERS: (perf.PairOfCounters, _nothing),
    perf.PORT_VL_OP_PACKETS: (
        perf.LaneHalves,
        lambda c: _by_vl(c.rcv_pkts, None if c.lanes is None else c.lanes.rcv_vl_pkts, c.vl15_pkts),
    ),
    perf.PORT_VL_OP_DATA: (
        perf.LaneWords,
        lambda c: _by_vl(c.rcv_data, None if c.lanes is None else c.lanes.rcv_vl, c.vl15_data),
    ),
    perf.PORT_VL_XMIT_FLOW_CTL_UPDATE_ERRORS: (perf.LaneErrors, _nothing),
    perf.PORT_XMIT_DATA_SL: (
        perf.LaneWords,
        lambda c: _by_lane(c.xmit_data, None if c.lanes is None else c.lanes.xmit_sl),
    ),
    perf.PORT_RCV_DATA_SL: (
        perf.LaneWords,
        lambda c: _by_lane(c.rcv_data, None if c.lanes is None else c.lanes.rcv_sl),
    ),
}
"""Attributes that have a counter for each lane or service level, or a pair of counters: their form, and the values."""

_Row = tuple[str, int, str]
"""Field and bit that select a counter, and its name."""


def _rows(field_name: str, *names: str) -> tuple[_Row, ...]:
    return tuple((field_name, bit, name) for bit, name in enumerate(names))


_NAMED: Final[dict[int, tuple[type[Layout], tuple[_Row, ...], bool]]] = {
    perf.PORT_COUNTERS: (
        perf.PortCounters,
        (*_rows("counter_select", *perf.COUNTER_SELECT), *_rows("counter_select2", *perf.COUNTER_SELECT2)),
        False,
    ),
    perf.PORT_COUNTERS_EXTENDED: (
        perf.PortCountersExtended,
        (
            *_rows("counter_select", *perf.COUNTER_SELECT_EXTENDED),
            *_rows("counter_select2", *perf.COUNTER_SELECT2_EXTENDED),
        ),
        True,
    ),
    perf.PORT_RCV_ERROR_DETAILS: (
        perf.PortRcvErrorDetails,
        _rows(
            "counter_select",
            "local_physical_errors",
            "malformed_errors",
            "buffer_overrun_errors",
            "dlid_mapping_errors",
            "vl_mapping_errors",
            "looping_errors",
        ),
        False,
    ),
    perf.PORT_XMIT_DISCARD_DETAILS: (
        perf.PortXmitDiscardDetails,
        _rows("counter_select", "inactive_discards", "mtu_discards", "lifetime_discards", "hoq_discards"),
        False,
    ),
}
"""Attributes with counters that have names: their form, the counters, and whether they wrap."""

_READERS: Final = {attribute: attrgetter(*(row[2] for row in rows)) for attribute, (_, rows, _) in _NAMED.items()}

_BITS: Final = {
    perf.PairOfCounters: 32,
    perf.LaneWords: 32,
    perf.LaneHalves: 16,
    perf.LaneErrors: 2,
}
"""Width of each counter of a form."""


@dataclass(slots=True)
class _View:
    """A port's counters, and what to subtract from them by attribute and counter."""

    counters: PortCounters
    base: dict[tuple[int, str | int], int] = field(default_factory=dict)


class PerformanceAgent:
    """Agent of all ports of one node; `counters` maps port numbers to their counters.

    With `all_ports` it knows the port number 0xFF: a Get shows the sum of all ports, a Set writes each of them. Ports
    that do not count what arrives by lane (`by_lane`) have no such attributes. Whoever owns it calls :meth:`run` when
    :attr:`deadline_ns` has come.
    """

    def __init__(
        self,
        counters: Mapping[int, PortCounters],
        *,
        all_ports: bool = False,
        by_lane: bool = True,
    ) -> None:
        self._views = {port: _View(values) for port, values in counters.items()}
        self._sampler = Sampler()
        self._all_ports = all_ports
        self._capabilities = (
            perf.CAP_EXTENDED_WIDTH
            | perf.CAP_XMIT_WAIT
            | perf.CAP_QP1_DROPPED
            | (perf.CAP_ALL_PORT_SELECT if all_ports else 0)
        )
        self.counters: Counter[PerfCount] = Counter()
        self.counters_of: Tally[PerfCountOf] = Tally()
        self._handlers: dict[int, Callable[[PerfMad, int], int]] = {
            madwire.ATTR_CLASS_PORT_INFO: self._class_port_info,
            perf.PORT_SAMPLES_CONTROL: self._samples_control,
            perf.PORT_SAMPLES_RESULT: self._samples_result,
            perf.PORT_SAMPLES_RESULT_EXTENDED: self._samples_result,
            perf.PORT_EXT_SPEEDS_COUNTERS: self._coding,
            **dict.fromkeys(_NAMED, self._named),
            **dict.fromkeys(_LANED, self._laned),
        }
        for attribute in () if by_lane else (perf.PORT_VL_OP_PACKETS, perf.PORT_VL_OP_DATA):
            del self._handlers[attribute]

    @property
    def deadline_ns(self) -> int | None:
        """When a measurement begins or ends, None if none is under way."""
        return self._sampler.deadline_ns

    def run(self, now_ns: int) -> None:
        """Begin or end the measurement, if that is due."""
        self._sampler.run(now_ns)

    def handle(self, mad: bytes, now_ns: int) -> bytes | None:
        """Serve one performance management datagram; None if it deserves no answer."""
        if len(mad) != MAD_BYTES or mad[1] != madwire.CLASS_PERF:
            self.counters[PerfCount.PERF_DISCARDED] += 1
            return None
        request = PerfMad.from_bytes(mad)
        method = request.method
        if method & madwire.METHOD_RESPONSE or method in (madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS):
            self.counters[PerfCount.PERF_NO_REPLY] += 1
            return None
        request.status = self._execute(request, now_ns)
        request.method = response_method(method)
        return request.to_bytes()

    def _execute(self, request: PerfMad, now_ns: int) -> int:
        if request.base_version != madwire.BASE_VERSION or request.class_version != 1:
            return madwire.STATUS_BAD_VERSION
        if request.method not in (madwire.METHOD_GET, madwire.METHOD_SET):
            return madwire.STATUS_UNSUPPORTED_METHOD
        handler = self._handlers.get(request.attr_id)
        if handler is None:
            self.counters_of.add(PerfCountOf.UNSUPPORTED_ATTRIBUTE, request.attr_id)
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE
        self.run(now_ns)
        return handler(request, now_ns)

    def _class_port_info(self, request: PerfMad, now_ns: int) -> int:
        if request.method != madwire.METHOD_GET:
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE
        _show(
            request,
            madwire.ClassPortInfo(
                base_version=1,
                class_version=1,
                capability_mask=self._capabilities,
                capability_mask2=perf.CAP2_EXTENDED_ERRORS,
                resp_time=_RESP_TIME,
            ),
        )
        return STATUS_OK

    def _selected(self, port_select: int) -> list[_View]:
        if port_select == perf.ALL_PORTS and self._all_ports:
            return list(self._views.values())
        view = self._views.get(port_select)
        return [] if view is None else [view]

    def _named(self, request: PerfMad, now_ns: int) -> int:
        """Counters that have names."""
        layout, rows, wraps = _NAMED[request.attr_id]
        wanted = layout.from_bytes(request.data)
        views = self._selected(request.data[1])
        if not views or request.attr_mod:
            return STATUS_INVALID_FIELD
        attribute = request.attr_id
        values: dict[str, int] = {"port_select": request.data[1]}
        if request.method == madwire.METHOD_SET:
            for select, bit, name in rows:
                values[select] = mask = getattr(wanted, select)
                if mask >> bit & 1:
                    for view in views:
                        view.base[attribute, name] = getattr(view.counters, name) - getattr(wanted, name)
        read = _READERS[attribute]
        totals = [sum(column) for column in zip(*(read(view.counters) for view in views), strict=True)]
        bases = [view.base for view in views if view.base]
        for (_, _, name), total in zip(rows, totals, strict=True):
            value = total - sum(base.get((attribute, name), 0) for base in bases)
            largest = _LARGEST[layout][name]
            values[name] = value & largest if wraps else min(value, largest)
        _show(request, layout(**values))
        return STATUS_OK

    def _laned(self, request: PerfMad, now_ns: int) -> int:
        """Counters of lanes and service levels, and pairs of counters."""
        layout, read = _LANED[request.attr_id]
        views = self._selected(request.data[1])
        if not views or request.attr_mod:
            return STATUS_INVALID_FIELD
        width = _BITS[layout]
        mask = int.from_bytes(request.data[2:4], "big") if request.method == madwire.METHOD_SET else 0
        wanted = _unpack(layout.from_bytes(request.data), width)
        total = [0] * len(wanted)
        for view in views:
            for number, value in enumerate(read(view.counters)[: len(wanted)]):
                key = (request.attr_id, number)
                if mask >> number & 1:
                    view.base[key] = value - wanted[number]
                total[number] += value - view.base.get(key, 0)
        largest = (1 << width) - 1
        _show(request, _pack(layout, request.data[1], mask, [min(value, largest) for value in total], width))
        return STATUS_OK

    def _coding(self, request: PerfMad, now_ns: int) -> int:
        """PortExtendedSpeedsCounters: nothing is coded on our cables, so that nothing is ever wrong with it."""
        wanted = perf.PortExtSpeedsCounters.from_bytes(request.data)
        if not self._selected(wanted.port_select) or request.attr_mod:
            return STATUS_INVALID_FIELD
        mask = wanted.counter_select if request.method == madwire.METHOD_SET else 0
        _show(request, perf.PortExtSpeedsCounters(port_select=wanted.port_select, counter_select=mask))
        return STATUS_OK

    def _samples_control(self, request: PerfMad, now_ns: int) -> int:
        """PortSamplesControl: shows a measurement, or begins one if none is under way."""
        wanted = perf.PortSamplesControl.from_bytes(request.data)
        view = self._views.get(wanted.port_select)
        if view is None or request.attr_mod:
            return STATUS_INVALID_FIELD
        if request.method == madwire.METHOD_SET and not self._sampler.begin(wanted, view.counters, now_ns):
            return STATUS_INVALID_FIELD
        _show(request, self._sampler.control(wanted.port_select))
        return STATUS_OK

    def _samples_result(self, request: PerfMad, now_ns: int) -> int:
        """PortSamplesResult and the extended one; the modifier names a mechanism, and there is one."""
        if request.method != madwire.METHOD_GET:
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE
        if request.attr_mod:
            return STATUS_INVALID_FIELD
        sampler = self._sampler
        extended = request.attr_id == perf.PORT_SAMPLES_RESULT_EXTENDED
        _show(request, sampler.result_extended() if extended else sampler.result())
        return STATUS_OK


def _show(request: PerfMad, view: Layout) -> None:
    request.data = view.to_bytes().ljust(192, b"\0")


def _unpack(view: Layout, width: int) -> list[int]:
    """The counters of a form that has one for each lane, or two."""
    if isinstance(view, perf.PairOfCounters):
        return [view.first, view.second]
    if isinstance(view, perf.LaneErrors):
        return [view.counters >> 30 - 2 * number & 3 for number in range(LANES)]
    data = view.to_bytes()[-LANES * width // 8 :]
    step = width // 8
    return [int.from_bytes(data[at : at + step], "big") for at in range(0, len(data), step)]


def _pack(layout: type[Layout], port: int, mask: int, values: list[int], width: int) -> Layout:
    if layout is perf.PairOfCounters:
        return perf.PairOfCounters(port_select=port, counter_select=mask, first=values[0], second=values[1])
    if layout is perf.LaneErrors:
        word = sum(value << 30 - 2 * number for number, value in enumerate(values))
        return perf.LaneErrors(port_select=port, counter_select=mask, counters=word)
    data = b"".join(value.to_bytes(width // 8, "big") for value in values)
    return layout(port_select=port, counter_select=mask, counters=data)


_LARGEST: Final = {
    layout: {row.name: (1 << row.width) - 1 for row in layout.fields() if row.is_integer}
    for layout, _, _ in _NAMED.values()
}
