"""The partitions of a subnet: which port is in which, as a full or a limited member, and groups that are made for them.

A port is known by its GUID. Two ports may speak to each other if they have a P_Key in common, and at least one of them
as a full member (10.9.3 of volume 1). Without a description all ports are full members of the default partition.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from vhca.subnet.topology import Pieces, Topology, in_pieces

DEFAULT_PARTITION: Final = 0x7FFF
FULL_MEMBER: Final = 0x8000

Membership = Literal["full", "limited", "both"]
Everybody = Literal["ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF"]


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group that is there from the start; codes of MTU and rate are those of the book."""

    mgid: bytes
    pkey: int
    qkey: int = 0
    mtu: int = 4
    rate: int = 3
    sl: int = 0
    tclass: int = 0
    flow_label: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """Who is in a partition, and how: a port by its GUID, a card by its name, or all of a kind."""

    who: int | str
    membership: Membership = "limited"


@dataclass(slots=True)
class Partition:
    """One partition; `pkey` has 15 bits. Of several rules for a port the last one counts."""

    name: str
    pkey: int
    first: bool = False
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Partitions:
    """All of them, and their groups; none: everybody is in the default partition. `enforced`: switches look, too."""

    partitions: Sequence[Partition] = ()
    groups: Sequence[Group] = ()
    enforced: bool = False

    @property
    def has_both(self) -> bool:
        """Tell whether a port is a full and a limited member of one."""
        return any(member.membership == "both" for one in self.partitions for member in one.members)

    def with_cards(self, guids: Mapping[str, int]) -> "Partitions":
        """The same with port GUIDs instead of the names of cards.

        :raises KeyError: there is no such card.
        """
        resolved = [
            Partition(one.name, one.pkey, one.first, [_resolved(member, guids) for member in one.members])
            for one in self.partitions
        ]
        return Partitions(resolved, self.groups, self.enforced)

    def apply(self, topology: Topology, own_guid: int) -> Pieces:
        """Write into a topology what the table of each end port is to have, and which ports of switches look."""
        for (node, port), pause in in_pieces(topology.end_ports()):
            port.pkeys = self._table(port.guid, node.is_switch, own_guid)
            if pause:
                yield
        for node in topology.switches():
            yield
            able = node.switch_info is not None and node.switch_info.partition_enforcement_cap
            for number, port in node.ports.items():
                peer = topology.cables.get((node.guid, number))
                outside = peer is not None and peer[0] in topology.nodes and not topology.nodes[peer[0]].is_switch
                port.enforced = bool(self.enforced and number and able and outside)

    def _table(self, guid: int, is_switch: bool, own_guid: int) -> list[int]:
        if not self.partitions:
            return [DEFAULT_PARTITION | FULL_MEMBER]
        table: list[tuple[bool, int]] = []
        for one in sorted(self.partitions, key=lambda one: (one.pkey != DEFAULT_PARTITION, one.pkey)):
            membership = _membership(one.members, guid, is_switch, own_guid)
            if membership in ("full", "both"):
                table.append((one.first, one.pkey | FULL_MEMBER))
            if membership in ("limited", "both"):
                table.append((one.first, one.pkey))
        return [pkey for _, pkey in sorted(table, key=lambda entry: not entry[0])]


KINDS: Final[tuple[Everybody, ...]] = ("ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF")


def _resolved(member: Member, guids: Mapping[str, int]) -> Member:
    if isinstance(member.who, str) and member.who not in KINDS:
        return Member(guids[member.who], member.membership)
    return member


def _membership(members: Iterable[Member], guid: int, is_switch: bool, own_guid: int) -> Membership | None:
    found: Membership | None = None
    for member in members:
        who = member.who
        if (
            who in (guid, "ALL")
            or (who == "ALL_CAS" and not is_switch)
            or (who == "ALL_SWITCHES" and is_switch)
            or (who == "SELF" and guid == own_guid)
        ):
            found = member.membership
    return found


def shared(a: Iterable[int], b: Iterable[int]) -> list[int]:
    """P_Keys by which a port with table `a` may speak to one with table `b`, as they stand in `a`, full ones first."""
    theirs = set(b)
    found = []
    for pkey in a:
        other = pkey ^ FULL_MEMBER
        if pkey and (pkey | FULL_MEMBER in theirs or (pkey & FULL_MEMBER and other in theirs)):
            found.append(pkey)
    return sorted(found, key=lambda pkey: not pkey & FULL_MEMBER)
