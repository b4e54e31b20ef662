"""The tables of switches as a subnet manager wants them: linear and multicast forwarding, and who may send where.

Knows what was written block by block, writes only what differs, and can read everything back to see whether somebody
else changed it. Long work is cut: an empty list of requests lets the loop turn (:mod:`vhca.subnet.transactions`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from vhca.subnet import routing
from vhca.subnet.answers import ok
from vhca.subnet.counters import ManagerCount
from vhca.subnet.engines import Engine
from vhca.subnet.topology import Node, PortKey, Topology
from vhca.subnet.transactions import Request, Work
from vhca.wire import smp as smpwire
from vhca.wire.mad import METHOD_GET, METHOD_SET
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID
from vhca.wire.smp import MFT_MASKS_PER_BLOCK

GROUPS_PER_TURN: Final = 16
SWITCHES_PER_TURN: Final = 32
BLOCKS_PER_READ: Final = 32
ANSWERS_PER_TURN: Final = 8
MFT_LIDS: Final = 4096
"""Groups that a subnet may have, and switches have room for."""

Block = tuple[int, int]
"""(attribute, modifier)"""
Ask = Callable[[int, int, int, Node, int, bytes], Request]
"""Makes a request of method, attribute, modifier, node, port and data."""
Places = frozenset[PortKey]


class SwitchTables:
    """Tables of all switches of a subnet.

    `ask` makes requests, `start` runs a work, `topology` gives what was found last.
    """

    def __init__(
        self,
        ask: Ask,
        start: Callable[[Work], None],
        topology: Callable[[], Topology],
        counters: Counter[ManagerCount],
        engine: Engine = "min-hop",
    ) -> None:
        self._ask = ask
        self._start = start
        self._topology = topology
        self._counters = counters
        self.engine = engine
        self.routes = routing.Routes(engine, {})
        self._written: dict[int, dict[Block, bytes]] = {}  # by switch GUID
        self._groups: dict[int, tuple[Places, Places]] = {}  # MLID -> places of receivers, of senders
        self._masks: dict[int, dict[int, int]] = {}  # switch GUID -> MLID -> ports
        self._dirty: set[int] = set()
        self._waiting: list[Callable[[], None]] = []
        self._scheduled = False
        self._unknown = False  # whether another manager has written tables

    def forget(self) -> None:
        """Another manager was here: nobody knows what tables hold, and groups are those of its SA."""
        self._written.clear()
        self._groups.clear()
        self._masks.clear()
        self._dirty.clear()
        self._unknown = True

    def open_sources(self, topology: Topology) -> Work:
        """Let everybody send as anybody: the next manager gives the LIDs."""
        changes = []
        for switch in topology.switches():
            size = smpwire.SOURCES_PER_BLOCK
            for block in range(switch.info.num_ports // size + 1):
                changes.append((switch, (smpwire.SOURCE_LIDS, block), bytes(64)))
        yield from self._write(changes)

    # Linear tables and sources

    def write_linear(self, topology: Topology) -> Work:
        """Where each LID goes, and which LID each port may send from."""
        changes: list[tuple[Node, Block, bytes]] = []
        yield []
        finding = routing.find(topology, self.engine)
        while True:
            try:
                next(finding)
            except StopIteration as found:
                routes: routing.Routes = found.value
                break
            yield []
        self.routes = routes
        for switch in topology.switches():
            known = self._written.setdefault(switch.guid, {})
            wanted = dict(_linear_blocks(routes.table(switch.guid), every=self._unknown))
            for block in known.keys() - wanted.keys():
                if block[0] == smpwire.LINEAR_FORWARDING_TABLE:
                    wanted[block] = bytes((smpwire.NO_PORT,)) * smpwire.LFT_PORTS_PER_BLOCK
            wanted |= _source_blocks(topology, switch)
            changes += [(switch, block, data) for block, data in sorted(wanted.items()) if known.get(block) != data]
            yield []
        yield from self._write(changes)

    # Groups

    def set_group(
        self, mlid: int, receivers: Iterable[PortKey], senders: Iterable[PortKey], done: Callable[[], None] | None
    ) -> None:
        """Have a group's tables written with those of all others that wait, then call `done`."""
        wanted = frozenset(receivers), frozenset(senders)
        if wanted != self._groups.get(mlid, (frozenset(), frozenset())):
            self._dirty.add(mlid)
            if any(wanted):
                self._groups[mlid] = wanted
            else:
                self._groups.pop(mlid, None)
        if done is not None:
            self._waiting.append(done)
        if not self._scheduled and (self._dirty or self._waiting):
            self._scheduled = True
            self._start(self.write_groups())

    def write_all_groups(self) -> Work:
        """Look at every group: the ways may have changed."""
        if self._unknown:
            yield from self._clear_groups()
            self._unknown = False
        self._dirty.update(self._groups)
        for masks in self._masks.values():
            self._dirty.update(masks)
        yield from self.write_groups()

    def _clear_groups(self) -> Work:
        """Empty the multicast tables up to their ends, as another manager may have left them."""
        for switch in self._topology().switches():
            info = switch.switch_info
            if info is None:
                continue
            last = min(info.multicast_fdb_top, MULTICAST_LID_FIRST + MFT_LIDS - 1) - MULTICAST_LID_FIRST
            known = self._written.setdefault(switch.guid, {})
            changes = []
            for block in range(last // MFT_MASKS_PER_BLOCK + 1 if last >= 0 else 0):
                for position in range(switch.info.num_ports // 16 + 1):
                    key = smpwire.MULTICAST_FORWARDING_TABLE, position << 28 | block
                    known[key] = b""
                    changes.append((switch, key, bytes(64)))
            yield from self._write(changes)
            info.multicast_fdb_top = MULTICAST_LID_FIRST + min(MFT_LIDS, info.multicast_fdb_cap) - 1
            yield [self._ask(METHOD_SET, smpwire.SWITCH_INFO, 0, switch, 0, info.to_bytes())]

    def write_groups(self) -> Work:
        """Bring the multicast tables of all switches to what the groups want."""
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        topology = self._topology()
        while self._dirty:
            block = (min(self._dirty) - MULTICAST_LID_FIRST) // MFT_MASKS_PER_BLOCK
            first = MULTICAST_LID_FIRST + block * MFT_MASKS_PER_BLOCK
            taken = self._dirty.intersection(range(first, first + MFT_MASKS_PER_BLOCK))
            self._dirty -= taken
            for number, mlid in enumerate(sorted(taken), 1):
                self._find_masks(topology, mlid)
                if number % GROUPS_PER_TURN == 0:
                    yield []
            changes: list[tuple[Node, Block, bytes]] = []
            for number, some in enumerate(self._multicast_blocks(topology, block), 1):
                changes += some
                if number % SWITCHES_PER_TURN == 0:
                    yield []
            yield from self._write(changes)
            yield []
        for number, done in enumerate(waiting, 1):
            done()
            if number % ANSWERS_PER_TURN == 0:
                yield []

    def _find_masks(self, topology: Topology, mlid: int) -> None:
        group = self._groups.get(mlid)
        masks = topology.multicast_masks(*group) if group is not None else {}
        for switch in topology.switches():
            mine = self._masks.setdefault(switch.guid, {})
            mask = masks.get(switch.guid, 0)
            if mask:
                mine[mlid] = mask
            else:
                mine.pop(mlid, None)

    def _multicast_blocks(self, topology: Topology, block: int) -> Iterator[list[tuple[Node, Block, bytes]]]:
        """What has to be written into one block, switch by switch."""
        lids = range(MULTICAST_LID_FIRST + block * MFT_MASKS_PER_BLOCK, MULTICAST_LID_FIRST + 0x3FFF)
        for switch in topology.switches():
            masks = self._masks.get(switch.guid, {})
            row = [masks.get(lid, 0) for lid in lids[:MFT_MASKS_PER_BLOCK]]
            known = self._written.setdefault(switch.guid, {})
            changes: list[tuple[Node, Block, bytes]] = []
            for position in range(switch.info.num_ports // 16 + 1):
                data = smpwire.pack_words([mask >> 16 * position & 0xFFFF for mask in row])
                key = smpwire.MULTICAST_FORWARDING_TABLE, position << 28 | block
                if known.get(key, bytes(64)) != data:
                    changes.append((switch, key, data))
            yield changes

    # Blocks

    def linear(self, switch: Node) -> Iterator[tuple[int, bytes]]:
        """The blocks of a switch's linear forwarding table, as they were written."""
        for (attribute, modifier), data in sorted(self._written.get(switch.guid, {}).items()):
            if attribute == smpwire.LINEAR_FORWARDING_TABLE and data:
                yield modifier, data

    def multicast(self, switch: Node) -> Iterator[tuple[int, int, bytes]]:
        """Position, block and masks of a switch's multicast table, as they were written, where there are any."""
        for (attribute, modifier), data in sorted(self._written.get(switch.guid, {}).items()):
            if attribute == smpwire.MULTICAST_FORWARDING_TABLE and any(data):
                yield modifier >> 28, modifier & 0x1FF, data

    def _write(self, changes: list[tuple[Node, Block, bytes]]) -> Work:
        if not changes:
            return
        requests = [self._ask(METHOD_SET, *block, switch, 0, data) for switch, block, data in changes]
        answers = yield requests
        for (switch, block, data), answer in zip(changes, answers, strict=True):
            if ok(answer):
                self._written[switch.guid][block] = data
                continue
            # Nobody knows what the switch holds now: write this again next time.
            self._forget(switch, block)
            if answer is not None:
                self._counters[ManagerCount.REFUSED_SETS] += 1

    def _forget(self, switch: Node, block: Block) -> None:
        self._written[switch.guid][block] = b""
        attribute, modifier = block
        if attribute == smpwire.MULTICAST_FORWARDING_TABLE:
            self._dirty.add(MULTICAST_LID_FIRST + (modifier & 0x1FF) * MFT_MASKS_PER_BLOCK)

    def read_back(self) -> Work:
        """Compare all that was written with what switches hold; what differs is written with the next sweep.

        Counted as `changed_tables`.
        """
        for switch in self._topology().switches():
            known = self._written.get(switch.guid, {})
            blocks = sorted(known)
            for at in range(0, len(blocks), BLOCKS_PER_READ):
                some = blocks[at : at + BLOCKS_PER_READ]
                answers = yield [self._ask(METHOD_GET, *block, switch, 0, b"") for block in some]
                for block, answer in zip(some, answers, strict=True):
                    if answer is not None and ok(answer) and answer.data != known[block] != b"":
                        self._counters[ManagerCount.CHANGED_TABLES] += 1
                        self._forget(switch, block)


def _linear_blocks(table: bytes, every: bool) -> Iterator[tuple[Block, bytes]]:
    """The blocks of a table; those without an entry only if `every` one may hold something else."""
    size = smpwire.LFT_PORTS_PER_BLOCK
    empty = bytes((smpwire.NO_PORT,)) * size
    for at in range(0, len(table), size):
        data = table[at : at + size].ljust(size, empty[:1])
        if every or data != empty:
            yield (smpwire.LINEAR_FORWARDING_TABLE, at // size), data


def _source_blocks(topology: Topology, switch: Node) -> dict[Block, bytes]:
    """LID and LMC of the adapter behind each port.

    Other switches may send for anybody; what does not answer its manager, for nobody.
    """
    size = smpwire.SOURCES_PER_BLOCK
    sources = [(0, 0), *[(PERMISSIVE_LID, 0)] * switch.info.num_ports]
    for number in range(1, len(sources)):
        peer = topology.cables.get((switch.guid, number))
        node = topology.nodes.get(peer[0]) if peer is not None else None
        port = node.ports.get(peer[1]) if node is not None and peer is not None else None
        if node is not None and node.is_switch:
            sources[number] = (0, 0)
        elif port is not None:
            sources[number] = (port.lid, port.lmc)
    return {
        (smpwire.SOURCE_LIDS, at // size): smpwire.pack_sources(sources[at : at + size])
        for at in range(0, len(sources), size)
    }
