"""Tables that the manager leaves as they are, and that the directory tells nevertheless: service levels and weights.

Whoever asks for them makes the directory ask the agents: a bounded number of questions, each of them once, some at a
time, and not by the requests of the manager, whose sweeps do not wait for them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from vhca.layout import Layout
from vhca.subnet.answers import ok
from vhca.subnet.manager import SubnetManager
from vhca.subnet.paths import Sees
from vhca.subnet.records import matches
from vhca.subnet.topology import Node, NodePort
from vhca.subnet.transactions import Request, Work
from vhca.wire import sa, smp
from vhca.wire.mad import METHOD_GET

MAX_QUESTIONS: Final = 2048
"""For one query: more is refused, and whoever asked names a LID."""
QUESTIONS_AT_ONCE: Final = 32
"""Of one asker; others have their turn in between."""

Lanes = sa.SlToVlRecord | sa.VlArbitrationRecord
Question = tuple[Lanes, Request]


def questions(manager: SubnetManager, wanted: Lanes, mask: int, sees: Sees) -> Iterator[Question | None]:
    """Records that a query asks for, still empty, and the request that fills each; None for each that is not meant."""
    # Ports without a link have tables, too, but are told only if their node is named.
    all_ports = bool(mask & _NODE)
    nodes: Iterable[Node] = manager.topology.nodes.values()
    if mask & _NODE:
        named = manager.topology.by_lid(wanted.lid)
        nodes = [named[0]] if named is not None else []
    every = _arbitration if isinstance(wanted, sa.VlArbitrationRecord) else _mappings
    for node, port, record, modifier in every(nodes, all_ports):
        end = node.ports.get(0) if node.is_switch else port
        # Port 0 of an adapter is the one with that LID.
        meant = mask & ~_PORTS[type(record)] if not node.is_switch and not _port_of(wanted) else mask
        if not matches(record, wanted, meant) or end is None or not sees(end):
            yield None
            continue
        attribute = smp.SL_TO_VL if isinstance(record, sa.SlToVlRecord) else smp.VL_ARBITRATION
        request = manager.ask(METHOD_GET, attribute, modifier, node, port.number)
        request.retries = 0  # its asker asks again
        yield record, request


def ask(some: list[Question], found: list[Layout]) -> Work:
    """Ask, and collect the records that agents have answered."""
    answers = yield [request for _, request in some]
    for (record, _), answer in zip(some, answers, strict=True):
        if answer is None:
            continue
        # An agent refuses blocks behind the end of its table: nothing is in them.
        data = answer.data if ok(answer) else bytes(64)
        if isinstance(record, sa.SlToVlRecord):
            record.lanes = data[:8]
        else:
            record.weights = data
        found.append(record)


def write(request: Request) -> Work:
    """One request whose answer nobody needs."""
    yield [request]


_NODE: Final = 0b001
"""The component that names a LID."""
_PORTS: Final[dict[type[Layout], int]] = {sa.SlToVlRecord: 0b110, sa.VlArbitrationRecord: 0b010}
"""Components that name ports."""


def _port_of(wanted: Lanes) -> int:
    return wanted.out_port if isinstance(wanted, sa.SlToVlRecord) else wanted.port_num


def _ports(node: Node, every: bool) -> list[NodePort]:
    """Port 0 of a switch, and all ports that have a link, or all that there are."""
    return [
        port
        for port in node.ports.values()
        if every or (node.is_switch and not port.number) or port.info.port_state != smp.PORT_DOWN
    ]


def _mappings(nodes: Iterable[Node], every: bool) -> Iterator[tuple[Node, NodePort, Lanes, int]]:
    for node in nodes:
        ports = _ports(node, every)
        lid = next((port.lid for port in node.end_ports()), 0)
        for port in ports:
            if not node.is_switch:
                yield node, port, sa.SlToVlRecord(lid=port.lid, out_port=port.number), 0
                continue
            for arrival in ports:
                record = sa.SlToVlRecord(lid=lid, in_port=arrival.number, out_port=port.number)
                yield node, port, record, arrival.number << 8 | port.number


def _arbitration(nodes: Iterable[Node], every: bool) -> Iterator[tuple[Node, NodePort, Lanes, int]]:
    for node in nodes:
        lid = next((port.lid for port in node.end_ports()), 0)
        for port in _ports(node, every):
            for block in range(1, 5):
                own = lid if node.is_switch else port.lid
                record = sa.VlArbitrationRecord(lid=own, port_num=port.number, block=block)
                yield node, port, record, block << 16 | (port.number if node.is_switch else 0)
