"""A way through the switch on which nothing happens to packets: two cables and the tables between them.

As long as nobody taps, damages or delays what is on the cables, and the switch forwards as it should, it makes no
difference whether packets are handed from one to the next or are only counted.
"""

from vhca.fabric.link import Link
from vhca.fabric.port import DEFAULT_SL_TO_VL, SwitchPort
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, Route
from vhca.wire.smp import PORT_ACTIVE


class Way:
    """From one port of the switch to another, by `route`, and back by `back`."""

    def __init__(self, near: SwitchPort, far: SwitchPort, route: Route, back: Route) -> None:
        self._near = near
        self._far = far
        self._route = route
        self._back = back

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        """See :class:`vhca.hw.hardware.Through`."""
        near, far = self._near, self._far
        return (
            near.end is not None
            and far.end is not None
            and _is_plain(near.end.link)
            and _is_plain(far.end.link)
            and not (near.end.other.in_use if empty else near.end.other.full)
            and not (far.end.in_use if empty else far.end.full)
            and _forwards(near, far, self._route, mtu)
            and _forwards(far, near, self._back, mtu)
        )

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        """See :class:`vhca.hw.hardware.Through`."""
        self._near.counters.exchanged(back, back_words, sent, sent_words)
        self._far.counters.exchanged(sent, sent_words, back, back_words)


def _is_plain(link: Link) -> bool:
    a, b = link.a, link.b
    return (
        link.up
        and not (a.sent_taps or a.arrival_taps or b.sent_taps or b.arrival_taps)
        and not (a.faults is not None and a.faults.rules)
        and not (b.faults is not None and b.faults.rules)
    )


def _forwards(port: SwitchPort, out: SwitchPort, route: Route, mtu: int) -> bool:
    """Tell whether the switch takes a packet from `port` and lets it out of `out`, as it does with packets."""
    dlid = route.dlid
    return (
        port.state == out.state == PORT_ACTIVE
        and route.slid & port.source_mask == port.source_lid
        and 0 < dlid < MULTICAST_LID_FIRST
        and port.switch.out_port(dlid) is out
        and out.sl_to_vl.get(port.number, DEFAULT_SL_TO_VL)[route.sl] != MANAGEMENT_VL
        and mtu <= out.mtu_bytes
    )
