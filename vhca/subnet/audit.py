"""The light sweep: is the subnet still as its manager left it?

Asks switches whether a port changed, reads back every port and table, and sets right at once what needs no sweep:
disabled ports of switches, P_Keys, GUIDs. Anything else that differs asks for a heavy sweep, which writes it again. So
does who stays silent; with many of them, the heavy sweep does not wait for the end of this one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol, TypeVar

from vhca.subnet.answers import ok
from vhca.subnet.counters import ManagerCount
from vhca.subnet.port_setup import capacity, pkey_blocks, pkey_tables
from vhca.subnet.tables import SwitchTables
from vhca.subnet.topology import Node, NodePort, Topology
from vhca.subnet.transactions import Request, Work
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.smp import PortInfo, SwitchInfo

_READ_EACH_TURN: Final = 32
SILENT_ENOUGH: Final = 8
"""With so many requests that nobody answered, a light sweep ends."""

Part = tuple[Node, NodePort, int, bytes]
"""A block of a table of a port: its modifier, and what is to be in it."""
P = TypeVar("P")


class Ask(Protocol):
    """Makes a request to the agent of a node's port, by its way and with its key."""

    def __call__(
        self, method: int, attr_id: int, modifier: int, node: Node, port: int, data: bytes = b"", /
    ) -> Request:
        """A request that is not sent yet."""
        ...


class Audit:
    """One light sweep. `differs` tells whether a port is not any more as its manager left it.

    :ivar dirty: something differs that only a heavy sweep sets right.
    """

    def __init__(
        self,
        topology: Topology,
        tables: SwitchTables,
        counters: Counter[ManagerCount],
        ask: Ask,
        differs: Callable[[Node, NodePort, PortInfo], bool],
        *,
        partitioned: bool = False,
    ) -> None:
        self._topology = topology
        self._tables = tables
        self._counters = counters
        self._ask = ask
        self._differs = differs
        self._partitioned = partitioned
        self.dirty = not topology.nodes
        self._unheard = 0

    def work(self) -> Work:
        """Look at everything once."""
        before = self._counters[ManagerCount.CHANGED_TABLES]
        for part in (self._switches(), self._ports(), self._identities(), self._tables.read_back()):
            yield from self._heard(part)
        self.dirty |= self._counters[ManagerCount.CHANGED_TABLES] != before

    def _heard(self, part: Work) -> Work:
        """Go on with a part as long as most are heard."""
        try:
            requests = next(part)
            while self._unheard < SILENT_ENOUGH:
                for request in requests:
                    request.retries = min(request.retries, 1)
                answers = yield requests
                self._unheard += answers.count(None)
                requests = part.send(answers)
        except StopIteration:
            return
        part.close()
        self.dirty = True

    def _switches(self) -> Work:
        """SwitchInfo: whether a port changed, and the ends of the tables."""
        ask = self._ask
        switches = self._topology.switches()
        answers = yield [ask(METHOD_GET, smpwire.SWITCH_INFO, 0, switch, 0) for switch in switches]
        for switch, answer in zip(switches, answers, strict=True):
            if answer is None or answer.status & 0x7FFF or switch.switch_info is None:
                self.dirty = True
                continue
            # The bit of a change is expected to be clear, too.
            self.dirty |= SwitchInfo.from_bytes(answer.data) != switch.switch_info

    def _ports(self) -> Work:
        """PortInfo of every port; those that were disabled poll again."""
        places = ((node, port) for node in self._topology.nodes.values() for port in node.ports.values())
        wake: list[Request] = []
        for some in _slices(places):
            ask = self._ask
            answers = yield [ask(METHOD_GET, smpwire.PORT_INFO, p.number, n, p.number) for n, p in some]
            for (node, port), answer in zip(some, answers, strict=True):
                if answer is None or answer.status & 0x7FFF:
                    self.dirty = True
                    continue
                info = PortInfo.from_bytes(answer.data)
                if node.is_switch and info.port_physical_state == smpwire.PHYS_DISABLED:
                    # An adapter that was disabled is not on its cable any more.
                    wake.append(self._wake(node, port, info))
                self.dirty |= self._differs(node, port, info)
                # Somebody began or ended to be a manager there.
                self.dirty |= bool((info.capability_mask ^ port.info.capability_mask) & smpwire.CAP_IS_SM)
                port.info.capability_mask = info.capability_mask
        if wake:
            self._counters[ManagerCount.ENABLED_PORTS] += len(wake)
            self.dirty = True
            yield wake

    def _wake(self, node: Node, port: NodePort, now: PortInfo) -> Request:
        info = PortInfo.from_bytes(now.to_bytes())
        info.port_state, info.port_physical_state = smpwire.PORT_NOP, smpwire.PHYS_POLLING
        return self._ask(METHOD_SET, smpwire.PORT_INFO, port.number, node, port.number, info.to_bytes())

    def _identities(self) -> Work:
        """P_Keys and GUIDs: each table has what the manager intends and no more."""
        yield from self._compare(self._pkeys(), smpwire.P_KEY_TABLE, ManagerCount.CHANGED_PKEYS)
        yield from self._compare(self._guids(), smpwire.GUID_INFO, ManagerCount.CHANGED_GUIDS)

    def _pkeys(self) -> Iterator[Part]:
        for node, port, wanted in pkey_tables(self._topology):
            # With partitions, what is behind the intended entries counts, too.
            held = capacity(node) if self._partitioned else 0
            for block, data in pkey_blocks(wanted, held):
                yield node, port, block | (port.number << 16 if node.is_switch else 0), data

    def _guids(self) -> Iterator[Part]:
        for node, port in self._topology.end_ports():
            if not node.is_switch:
                yield node, port, 0, smpwire.pack_guids([port.guid, *port.aliases]).ljust(64, b"\0")

    def _compare(self, parts: Iterator[Part], attr_id: int, counter: ManagerCount) -> Work:
        ask = self._ask
        for some in _slices(parts):
            answers: list[Smp | None] = yield [
                ask(METHOD_GET, attr_id, modifier, node, port.number) for node, port, modifier, _ in some
            ]
            wrong = [
                ask(METHOD_SET, attr_id, modifier, node, port.number, wanted)
                for (node, port, modifier, wanted), answer in zip(some, answers, strict=True)
                if answer is not None and ok(answer) and answer.data != wanted
            ]
            if wrong:
                self._counters[counter] += len(wrong)
                yield wrong


def _slices(places: Iterator[P]) -> Iterator[list[P]]:
    while some := list(islice(places, _READ_EACH_TURN)):
        yield some
