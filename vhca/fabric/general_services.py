"""The general services of a switch: what answers on QP1 of its management port besides subnet administration.

The performance agent shows the counters of all ports (16.1 of volume 1). Classes that the switch does not have are
refused by status, so that nobody waits for a time-out (13.4.7). Each question has its turn, port by port: who asks
without end waits for itself.
"""

from collections.abc import Callable, Sequence
from typing import Final

from vhca.fabric.counters import Drop
from vhca.fabric.port import SwitchPort
from vhca.management.fair_queue import CallSoon, FairQueue, Job
from vhca.management.packets import is_gmp
from vhca.management.performance import PerformanceAgent
from vhca.management.refusal import refusal
from vhca.management.subnet import SMP_CLASSES
from vhca.wire import mad as madwire
from vhca.wire.packet import Packet

# Questions from one port that wait for their turn; more are dropped, and asked again by whoever means them.
QUESTIONS_PER_PORT: Final = 64


class GeneralServices:
    """The agents behind QP1 of one switch.

    `answer` sends a datagram to who asked with a packet; `administered` tells whether somebody else serves subnet
    administration.
    """

    def __init__(
        self,
        ports: Sequence[SwitchPort],
        call_soon: CallSoon,
        answer: Callable[[Packet, bytes], None],
        administered: Callable[[], bool],
    ) -> None:
        self._send = answer
        self._administered = administered
        self._queue = FairQueue(call_soon, QUESTIONS_PER_PORT)
        self.performance = PerformanceAgent({port.number: port.counters for port in ports}, all_ports=True)

    def take(self, port: SwitchPort, packet: Packet) -> bool:
        """Handle a packet for the management port that came in at `port`; False if it is not for these services."""
        mad = packet.payload
        if not is_gmp(packet) or mad[1] in SMP_CLASSES:
            return False
        if mad[1] == madwire.CLASS_SUBN_ADM and self._administered():
            return False
        if not self._queue.put(port.number, self._answer(port, packet)):
            port.drop(packet, Drop.GMP_BUSY)
        return True

    def _answer(self, port: SwitchPort, packet: Packet) -> Job:
        mad = packet.payload
        port.switch.wires.settle()
        reply = self.performance.handle(mad) if mad[1] == madwire.CLASS_PERF else refusal(mad)
        if reply is None:
            port.drop(packet, Drop.GMP_NO_REPLY)
        else:
            self._send(packet, reply)
        yield from ()
