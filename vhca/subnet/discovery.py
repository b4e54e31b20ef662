"""Finding out what is plugged in: the manager's walk along all cables, by directed route (14.4.4 of volume 1)."""

from collections.abc import Callable, Generator
from typing import Final, Protocol

from vhca.subnet.answers import CountRefused, ok
from vhca.subnet.mkeys import ManagementKeys
from vhca.subnet.topology import Node, NodePort, PortKey, Topology
from vhca.subnet.transactions import RETRIES, Answers, Request, Work
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET
from vhca.wire.smp import NodeInfo, PortInfo, SwitchInfo

MAX_HOPS: Final = 62
NODES_PER_TURN: Final = 16
"""Nodes that a sweep asks for, and thinks about, in one go."""
SILENT_ENOUGH: Final = 4
"""With so many requests that nobody answered, a walk is less patient, and asks whether it is still of use."""
MOST_NODES: Final = 1 << 16
"""A subnet has fewer LIDs; only who lies shows more."""

Probe = tuple[tuple[int, ...], PortKey | None]
"""A directed route to look at, and the place at whose other end it ends."""


class AskWithin(Protocol):
    """Makes a request to the agent of a node's port in a topology, by its way and with its key."""

    def __call__(
        self, topology: Topology, method: int, attr_id: int, modifier: int, node: Node, port: int, data: bytes = b"", /
    ) -> Request:
        """A request that is not sent yet."""
        ...


class Discovery:
    """Walks; remembers from one walk to the next what kind of node is where, and who stays silent.

    :ivar guid: of the port that the manager sits on, 0 before the first walk.
    """

    def __init__(self, ask: AskWithin, keys: ManagementKeys, count_refused: CountRefused) -> None:
        self._ask = ask
        self._keys = keys
        self._count_refused = count_refused
        self.guid = 0
        self._trunks: set[PortKey] = set()  # places where a switch answered last, or may
        self._silent: set[PortKey] = set()  # places where nobody answered in the last walk
        self._unheard = 0  # requests of this walk that nobody answered

    def walk(
        self, topology: Topology, outdated: Callable[[], bool] | None = None
    ) -> Generator[list[Request], Answers, bool]:
        """Fill an empty topology, one hop further in each round; True if it was given up, since it is `outdated`."""
        frontier: list[Probe] = [((), None)]
        self._unheard = 0
        while frontier:
            fresh: list[tuple[Node, int]] = []
            for at in range(0, len(frontier), NODES_PER_TURN):
                some = frontier[at : at + NODES_PER_TURN]
                answers = yield [self._probe(path, origin) for path, origin in some]
                for (path, origin), answer in zip(some, answers, strict=True):
                    if answer is None or not ok(answer):
                        self._unheard += answer is None
                        self._note_silence(origin)
                    elif len(topology.nodes) < MOST_NODES:
                        self._meet(topology, path, origin, NodeInfo.from_bytes(answer.data), fresh)
                if self._is_over(outdated):
                    return True
            for at in range(0, len(fresh), NODES_PER_TURN):
                yield from self._read_nodes(topology, fresh[at : at + NODES_PER_TURN])
                if self._is_over(outdated):
                    return True
            frontier = self._next_hops(topology, fresh)
        return False

    def _is_over(self, outdated: Callable[[], bool] | None) -> bool:
        return outdated is not None and self._unheard >= SILENT_ENOUGH and outdated()

    def _meet(
        self,
        topology: Topology,
        path: tuple[int, ...],
        origin: PortKey | None,
        info: NodeInfo,
        fresh: list[tuple[Node, int]],
    ) -> None:
        """Note who answered at the end of a path, behind the port `origin`; what is new is put into `fresh`."""
        here = (info.node_guid, info.local_port_num)
        if origin is not None:
            topology.join(origin, here)
            self._silent.discard(origin)
            if info.node_type == smpwire.NODE_TYPE_SWITCH:
                # Of both ends: next time the cable may be found from the other one.
                self._trunks |= {origin, here}
            else:
                self._trunks.discard(origin)
        node = topology.nodes.get(info.node_guid)
        if node is None:
            node = topology.nodes[info.node_guid] = Node(info.node_guid, info, path)
            fresh.append((node, info.local_port_num))
        elif not node.is_switch and info.local_port_num not in node.port_paths:
            fresh.append((node, info.local_port_num))
        node.port_paths.setdefault(info.local_port_num, path)
        if origin is None:
            self.guid = info.port_guid
        self._note_port_guid(node, info)

    def _probe(self, path: tuple[int, ...], origin: PortKey | None) -> Request:
        """The question that finds a node; who is there, and so the key, is known from the last time only."""
        key = self._keys.at(None if origin in self._trunks else origin)
        # Others wait for a sweep: whoever stays silent does not hold it up as long each time, nor do many all at once.
        retries = 1 if origin in self._silent or self._unheard >= SILENT_ENOUGH else RETRIES
        return Request(METHOD_GET, smpwire.NODE_INFO, 0, path, mkey=key, retries=retries)

    def _note_silence(self, origin: PortKey | None) -> None:
        if origin is not None:
            self._silent.add(origin)
            # Another kind of node may have been plugged in: the next sweep tries the other key.
            self._trunks ^= {origin}

    @staticmethod
    def _note_port_guid(node: Node, info: NodeInfo) -> None:
        if node.is_switch:
            node.port_paths.clear()
            return
        number = info.local_port_num
        port = node.ports.get(number)
        if port is None:
            node.ports[number] = NodePort(number, info.port_guid, PortInfo())

    def _read_nodes(self, topology: Topology, fresh: list[tuple[Node, int]]) -> Work:
        """Read description, switch data and all ports of nodes found in this round."""
        abouts = [self._ask(topology, METHOD_GET, smpwire.NODE_DESCRIPTION, 0, node, port) for node, port in fresh]
        switches = [node for node, _ in fresh if node.is_switch]
        abouts += [self._ask(topology, METHOD_GET, smpwire.SWITCH_INFO, 0, switch, 0) for switch in switches]
        answers = yield abouts
        self._unheard += answers.count(None)
        for (node, _), answer in zip(fresh, answers, strict=False):
            if answer is not None and ok(answer):
                node.description = answer.data
        clears: list[Request] = []
        for switch, answer in zip(switches, answers[len(fresh) :], strict=True):
            if answer is None or not ok(answer):
                continue
            info = switch.switch_info = SwitchInfo.from_bytes(answer.data)
            if info.port_state_change:
                # Written 1 to clear, and before the ports are read: a change from here on asks for another sweep.
                clears.append(self._ask(topology, METHOD_SET, smpwire.SWITCH_INFO, 0, switch, 0, info.to_bytes()))
                info.port_state_change = 0
        self._count_refused(clears, (yield clears))
        ports: list[tuple[Node, int]] = []
        for node, port in fresh:
            ports += [(node, n) for n in range(node.info.num_ports + 1)] if node.is_switch else [(node, port)]
        answers = yield [self._ask(topology, METHOD_GET, smpwire.PORT_INFO, n, node, n) for node, n in ports]
        self._unheard += answers.count(None)
        for (node, number), answer in zip(ports, answers, strict=True):
            if answer is not None and ok(answer):
                guid = node.info.port_guid if node.is_switch else node.ports[number].guid
                node.ports[number] = NodePort(number, guid, PortInfo.from_bytes(answer.data))

    @staticmethod
    def _next_hops(topology: Topology, fresh: list[tuple[Node, int]]) -> list[Probe]:
        """Where to look next: behind every live port of a new switch that is not known yet."""
        frontier: list[Probe] = []
        for node, _ in fresh:
            if not node.is_switch or len(node.path) >= MAX_HOPS:
                continue
            for number, port in node.ports.items():
                key = (node.guid, number)
                if number and port.info.port_state > smpwire.PORT_DOWN and key not in topology.cables:
                    frontier.append((node.path + (number,), key))
        return frontier
