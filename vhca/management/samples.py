"""PortSamplesControl: the measurement of a port for a while, one at a time for a node (16.1.3.2 of volume 1).

Sans-IO: whoever owns the agent comes back at :attr:`Sampler.deadline_ns`. A measurement keeps what its counters were
when it began, so it costs two looks at them, whatever passes meanwhile.
"""

from typing import Final, Protocol

from vhca.layout import Layout
from vhca.wire import perf
from vhca.wire.perf import PortSamplesControl, PortSamplesResult, PortSamplesResultExtended

TICK_NS: Final = 4
"""A tick, ten times the transfer period of 2.5 Gbit/s: PortSamplesControl.Tick is 0."""
# CounterWidth of 32 bits; and, of each counter, that any quantity may be selected.
_WIDTH: Final = 4
_MASK: Final = 1
_MASKS_1_9: Final = sum(_MASK << 3 * n for n in range(9))
_MASKS_10_14: Final = sum(_MASK << 3 * n for n in range(5))

# CounterSelect, and the counter that it means; 0 selects none.
QUANTITIES: Final = {1: "xmit_data", 2: "rcv_data", 3: "xmit_pkts", 4: "rcv_pkts", 5: "xmit_wait"}


class Measured(Protocol):
    """The counters of a port that can be measured."""

    xmit_data: int
    rcv_data: int
    xmit_pkts: int
    rcv_pkts: int
    xmit_wait: int


class Sampler:
    """The sampling mechanism of a node.

    :ivar deadline_ns: when :meth:`run` has something to do, None if it has not.
    """

    __slots__ = ("_before", "_control", "_counters", "_ends_ns", "_result", "_status", "deadline_ns")

    def __init__(self) -> None:
        self._counters: Measured | None = None
        self._control = PortSamplesControl()
        self._status = perf.SAMPLE_DONE
        self._before: list[int] = []
        self._result = [0] * perf.SAMPLE_COUNTERS
        self._ends_ns = 0
        self.deadline_ns: int | None = None

    @property
    def _selected(self) -> list[int]:
        data = self._control.counter_select
        return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]

    def control(self, port_select: int) -> PortSamplesControl:
        """The attribute as a Get of this port shows it: the last measurement, of whatever port."""
        shown = PortSamplesControl.from_bytes(self._control.to_bytes())
        if self._counters is None:
            shown.port_select = port_select
        shown.counter_width = _WIDTH
        shown.counter_mask0 = _MASK
        shown.counter_masks_1_9 = _MASKS_1_9
        shown.counter_masks_10_14 = _MASKS_10_14
        shown.sample_status = self._status
        return shown

    def begin(self, wanted: PortSamplesControl, counters: Measured, now_ns: int) -> bool:
        """Begin a measurement of a port's counters, unless one is under way; False: it selects what is not counted."""
        data = wanted.counter_select
        selected = {int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)}
        if not selected <= {0, *QUANTITIES}:
            return False
        if self._status != perf.SAMPLE_DONE:
            return True
        self._counters = counters
        self._control = PortSamplesControl(
            port_select=wanted.port_select,
            sample_start=wanted.sample_start,
            sample_interval=wanted.sample_interval,
            tag=wanted.tag,
            counter_select=wanted.counter_select,
        )
        starts_ns = now_ns + wanted.sample_start * TICK_NS
        self._ends_ns = starts_ns + wanted.sample_interval * TICK_NS
        self._result = [0] * perf.SAMPLE_COUNTERS
        self._status = perf.SAMPLE_STARTED
        self.deadline_ns = starts_ns
        self.run(now_ns)
        return True

    def run(self, now_ns: int) -> None:
        """Begin or end what is due."""
        if self._status == perf.SAMPLE_STARTED and self.deadline_ns is not None and now_ns >= self.deadline_ns:
            self._before = self._values()
            self._status = perf.SAMPLE_RUNNING
            self.deadline_ns = self._ends_ns
        if self._status == perf.SAMPLE_RUNNING and now_ns >= self._ends_ns:
            self._result = self._counted()
            self._status = perf.SAMPLE_DONE
            self.deadline_ns = None

    def result(self) -> Layout:
        """PortSamplesResult; while a measurement is under way, what it has counted so far."""
        values = self._so_far()
        data = b"".join(min(value, 0xFFFFFFFF).to_bytes(4, "big") for value in values)
        return PortSamplesResult(tag=self._control.tag, sample_status=self._status, counters=data)

    def result_extended(self) -> Layout:
        """PortSamplesResultExtended."""
        data = b"".join((value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big") for value in self._so_far())
        return PortSamplesResultExtended(
            tag=self._control.tag, sample_status=self._status, extended_width=_EXTENDED_64, counters=data
        )

    def _so_far(self) -> list[int]:
        return self._counted() if self._status == perf.SAMPLE_RUNNING else self._result

    def _values(self) -> list[int]:
        counters = self._counters
        return [getattr(counters, QUANTITIES[number]) if number in QUANTITIES else 0 for number in self._selected]

    def _counted(self) -> list[int]:
        return [now - before for now, before in zip(self._values(), self._before, strict=True)]


# PortSamplesResultExtended.ExtendedWidth: 64 bits.
_EXTENDED_64: Final = 2
