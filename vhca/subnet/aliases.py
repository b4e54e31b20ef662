"""Alias GUIDs: what hosts ask to have in the GUID tables of their ports, as for virtual functions (14.2.5.5).

They stay with the port's own GUID until the host gives them back, another manager is master, or the port has been away.
Entry 0 is the port's own. Nobody gets a GUID that is another port's.
"""

from random import Random
from typing import Final

from vhca.subnet.topology import NodePort, Topology
from vhca.wire import sa, smp
from vhca.wire.mad import SA_STATUS_REQ_INVALID, STATUS_OK
from vhca.wire.sa import GuidInfoRecord

_OUI: Final = 0x0002C9 << 40


class Aliases:
    """Alias GUIDs by port GUID."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._of: dict[int, list[int]] = {}

    def forget(self) -> None:
        """Another manager is master."""
        self._of.clear()

    def apply(self, topology: Topology) -> None:
        """Note at each port what it has; that of ports which are gone is given up."""
        for guid, aliases in list(self._of.items()):
            found, key = topology.by_guid(guid), topology.owner(guid)
            if found is None or key is None:
                del self._of[guid]
                continue
            # A port that came meanwhile has its GUID for itself.
            aliases[:] = [alias if topology.owner(alias) in (None, key) else 0 for alias in aliases]
            before, found[1].aliases = found[1].aliases, list(aliases)
            topology.index_aliases(key, before, aliases)

    def change(
        self, topology: Topology, port: NodePort, wanted: GuidInfoRecord, mask: int, remove: bool
    ) -> tuple[int, list[int]]:
        """Set or delete the entries of block 0 that a mask names, and note that in the topology.

        Gives the status, and the GUIDs that the port has given up. 0 asks for a GUID of the manager's choice. An entry
        that another port has is left as it was.
        """
        size = smp.GUIDS_PER_BLOCK
        if wanted.block or port.info.guid_cap < size or mask >> sa.GUID_INFO_FIRST & 1:
            return SA_STATUS_REQ_INVALID, []
        before = port.aliases
        table = [port.guid, *port.aliases] + [0] * (size - 1 - len(port.aliases))
        asked = smp.unpack_guids(wanted.guids)
        for index in range(1, size):
            if not mask >> (sa.GUID_INFO_FIRST + index) & 1:
                continue
            guid = 0 if remove else asked[index] or self._fresh(topology)
            owner = topology.owner(guid)
            if not guid or owner is None:
                table[index] = guid
        key = topology.owner(port.guid)
        assert key is not None  # it was found by its LID
        self._of[port.guid] = table[1:]
        if not any(table[1:]):
            del self._of[port.guid]
        port.aliases = self._of.get(port.guid, [])
        topology.index_aliases(key, before, port.aliases)
        return STATUS_OK, [guid for guid in before if guid and guid not in port.aliases]

    def _fresh(self, topology: Topology) -> int:
        while True:
            guid = _OUI | self._random.getrandbits(40) | 0xFF << 32
            if topology.owner(guid) is None:
                return guid
