"""How ports of switches and of simulated hosts send their traps: now, and again until they are repressed.

A port has one call to come back with; the traps that wait are few (:mod:`vhca.management.notices`).
"""

from collections.abc import Callable
from typing import TypeVar

from vhca.fabric.link import LinkEnd
from vhca.management.packets import smp_packet
from vhca.management.port_agent import PortAgent
from vhca.management.port_state import PortState
from vhca.wire.packet import Packet

P = TypeVar("P", bound=PortState)


def tell(
    agent: PortAgent[P], port: P, now_ns: Callable[[], int], send: Callable[[Packet], None], end: LinkEnd | None
) -> None:
    """Send the traps of `port` that are due, and come back by the clock of a cable when more will be."""
    info = port.info
    for mad in agent.traps(port, now_ns()):
        send(smp_packet(mad, info.sm_lid, info.lid, sl=info.sm_sl))
    deadline = port.notices.next_deadline(info.subnet_timeout)
    if deadline is None or end is None or (port.telling_ns is not None and port.telling_ns <= deadline):
        return
    port.telling_ns = deadline

    def again() -> None:
        # A call that was for later has become needless.
        if port.telling_ns == deadline:
            port.telling_ns = None
            tell(agent, port, now_ns, send, end)

    end.link.call_later(max(0, deadline - now_ns()), again)
