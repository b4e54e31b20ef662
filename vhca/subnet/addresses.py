"""The LIDs of a subnet: who has which, and how many (4.1.3 of volume 1).

A GUID that was here before keeps its LID as long as there are LIDs for all. With an LMC, each port of an adapter has
2**LMC LIDs from a multiple of that on, and switches have one each.
"""

from collections.abc import Mapping

from vhca.subnet.topology import Pieces, Topology, in_pieces
from vhca.wire.packet import MULTICAST_LID_FIRST


class Addresses:
    """LIDs by port GUID; `known` are those that ports had before.

    :raises ValueError: an LMC is 0 to 7.
    """

    def __init__(self, lmc: int = 0, known: Mapping[int, int] | None = None) -> None:
        if not 0 <= lmc <= 7:
            raise ValueError(f"LMC {lmc}: it is 0 to 7")
        self.lmc = lmc
        self._lids = dict(known or {})
        self._counts: dict[int, int] = {}

    def forget(self) -> None:
        """Another manager was here: what ports have now is what they keep."""
        self._lids.clear()

    def given(self) -> dict[int, range]:
        """The LIDs of all that are here or were, by port GUID."""
        return {guid: range(lid, lid + self._counts.get(guid, 1)) for guid, lid in self._lids.items()}

    def assign(self, topology: Topology) -> Pieces:
        """Give all ports their LIDs: known GUIDs the one that they had, new ones what they have if it is free.

        Else the lowest that is free.
        """
        present = {port.guid for _, port in topology.end_ports()}
        if len(self._lids.keys() | present) << self.lmc >= MULTICAST_LID_FIRST:
            self._lids = {guid: lid for guid, lid in self._lids.items() if guid in present}
        # Of those that are away, too: what they are is not known any more, so they keep room for an adapter.
        taken: set[int] = set()
        for lid, pause in in_pieces(list(self._lids.values())):
            taken.update(range(lid, lid + (1 << self.lmc)))
            if pause:
                yield
        lowest: dict[int, int] = {}  # by how many LIDs are needed: none below is free
        for (node, port), pause in in_pieces(topology.end_ports()):
            if pause:
                yield
            port.lmc = 0 if node.is_switch else self.lmc
            count = 1 << port.lmc
            self._counts[port.guid] = count
            known = self._lids.get(port.guid)
            if known is not None and known % count == 0:
                port.lid = known
                continue
            lid = port.info.lid
            if not _free(lid, count, taken):
                lid = lowest.get(count, count)
                while lid < MULTICAST_LID_FIRST and not _free(lid, count, taken):
                    lid += count
                lowest[count] = lid
            if lid >= MULTICAST_LID_FIRST:
                # More ports than LIDs: who comes last has none.
                continue
            self._lids[port.guid] = port.lid = lid
            taken.update(range(lid, lid + count))
        yield from topology.index()


def _free(lid: int, count: int, taken: set[int]) -> bool:
    return (
        lid > 0 and not lid % count and lid + count <= MULTICAST_LID_FIRST and taken.isdisjoint(range(lid, lid + count))
    )
