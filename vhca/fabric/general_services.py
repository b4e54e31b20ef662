"""The general services of a switch: what answers on QP1 of its management port besides subnet administration.

The performance agent shows the counters of all ports (16.1 of volume 1). Classes that the switch does not have are
refused by status, so that nobody waits for a time-out (13.4.7). Each question has its turn, port by port: who asks
without end waits for itself.
"""

from collections.abc import Callable, Sequence
from typing import Final

from vhca.fabric.alarm import Alarm
from vhca.fabric.counters import Drop
from vhca.fabric.link import LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.packets import is_gmp
from vhca.management.performance import PerformanceAgent
from vhca.management.refusal import refusal
from vhca.management.subnet import SMP_CLASSES
from vhca.management.vendor import Device, answer
from vhca.wire import mad as madwire
from vhca.wire import vendor
from vhca.wire.packet import Packet

# Questions from one port that wait for their turn; more are dropped, and asked again by whoever means them.
QUESTIONS_PER_PORT: Final = 64


class GeneralServices:
    """The agents behind QP1 of one switch.

    `answer` sends a datagram to who asked with a packet; `administered` tells whether somebody else serves subnet
    administration; `now_ns` is the time; `device` what the switch is.
    """

    def __init__(
        self,
        ports: Sequence[SwitchPort],
        call_soon: CallSoon,
        answer: Callable[[Packet, bytes], None],
        administered: Callable[[], bool],
        now_ns: Callable[[], int],
        device: Device,
    ) -> None:
        self._device = device
        self._send = answer
        self._administered = administered
        self._queue = FairQueue(call_soon, QUESTIONS_PER_PORT)
        self._ports = ports
        self._now_ns = now_ns
        self._since_ns = now_ns()
        self._alarm = Alarm(self._due)
        # The cable by whose clock measurements begin and end.
        self._end: LinkEnd | None = None
        counters = {port.number: port.counters for port in ports}
        self.performance = PerformanceAgent(counters, all_ports=True)

    def take(self, port: SwitchPort, packet: Packet) -> bool:
        """Handle a packet for the management port that came in at `port`; False if it is not for these services."""
        mad = packet.payload
        if not is_gmp(packet) or mad[1] in SMP_CLASSES:
            return False
        if mad[1] == madwire.CLASS_SUBN_ADM and self._administered():
            return False
        if not self._queue.put(port.number, self._answer(port, packet)):
            port.counters.qp1_dropped += 1
            port.drop(packet, Drop.GMP_BUSY)
        return True

    def _answer(self, port: SwitchPort, packet: Packet) -> Job:
        mad = packet.payload
        if mad[1] == madwire.CLASS_PERF:
            reply = self._measured(mad, port)
        elif mad[1] == vendor.CLASS:
            reply = answer(mad, self._device, self._now_ns() - self._since_ns)
        else:
            reply = refusal(mad)
        if reply is None:
            port.drop(packet, Drop.GMP_NO_REPLY)
        else:
            self._send(packet, reply)
        yield from ()

    def _measured(self, mad: bytes, port: SwitchPort) -> bytes | None:
        self._settle()
        reply = self.performance.handle(mad, self._now_ns())
        if port.end is not None:
            self._end = port.end
            self._come_back()
        return reply

    def _settle(self) -> None:
        """Have counted what passed, and how long it has been waited."""
        self._ports[0].switch.wires.settle()
        now_ns = self._now_ns()
        for port in self._ports:
            port.settle_wait(now_ns)

    def _come_back(self) -> None:
        if self._end is not None:
            self._alarm.set(self.performance.deadline_ns, self._now_ns(), self._end)

    def _due(self) -> None:
        """A measurement begins or ends."""
        self._settle()
        self.performance.run(self._now_ns())
        self._come_back()
