"""Multicast groups: who joined, with which properties, under which MLID (15.2.5.17 of volume 1).

Decides about joins and leaves; the tables of switches are written by the subnet manager. The broadcast group of IPoIB
exists from the start and stays, because hosts only join it.

A port may be in as many groups as its share of the MLIDs: whatever others do, each can make that many.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from vhca.subnet.partitions import Group as Described
from vhca.wire import sa, smp
from vhca.wire.mad import SA_STATUS_INSUFFICIENT_COMPONENTS, SA_STATUS_NO_RESOURCES
from vhca.wire.mad import SA_STATUS_REQ_INVALID as REQ_INVALID
from vhca.wire.packet import MULTICAST_LID_FIRST
from vhca.wire.sa import McMemberRecord

IPOIB_BROADCAST: Final = bytes.fromhex("ff12401bffff000000000000ffffffff")
IPOIB_QKEY: Final = 0x00000B1B
# 4.096 us << 14, 67 ms. Connection managers make ACK timeouts of it: OpenSM's 18 would let each lost one cost seconds.
LIFE_TIME: Final = 14
MLID_COUNT: Final = 4096

# A join that creates a group must say at least this (15.2.5.17.3).
_CREATE_COMPONENTS: Final = sa.MC_QKEY | sa.MC_TCLASS | sa.MC_PKEY | sa.MC_SL | sa.MC_FLOW_LABEL
_EQUAL: Final = (
    (sa.MC_QKEY, "qkey"),
    (sa.MC_TCLASS, "tclass"),
    (sa.MC_SL, "sl"),
    (sa.MC_FLOW_LABEL, "flow_label"),
    (sa.MC_HOP_LIMIT, "hop_limit"),
    (sa.MC_SCOPE, "scope"),
)


@dataclass(slots=True)
class Group:
    """One group; `members` maps port GIDs to join state bits, `permanent` groups outlive their members."""

    record: McMemberRecord
    permanent: bool = False
    members: dict[bytes, int] = field(default_factory=dict)

    def record_for(self, port_gid: bytes) -> McMemberRecord:
        """The group's record with one member in it."""
        record = McMemberRecord.from_bytes(self.record.to_bytes())
        record.port_gid = port_gid
        record.join_state = self.members.get(port_gid, 0)
        return record


def selected(selector: int, wanted: int, actual: int) -> bool:
    """Tell whether `actual` is what a selector asks for."""
    if selector == sa.SELECT_GREATER:
        return actual > wanted
    if selector == sa.SELECT_LESS:
        return actual < wanted
    return actual == wanted or selector == sa.SELECT_BEST


class MulticastGroups:
    """All groups of a subnet, which has `ports` places for adapters.

    `mtu` is the code of IPoIB's, and of groups made without one: what all ports can take. `described`: the groups that
    are there from the start; None: IPoIB's broadcast group in the default partition.
    """

    def __init__(
        self,
        ports: int,
        mtu: int = smp.MTU_4096,
        rate: int = smp.RATE_100_GBPS,
        described: Sequence[Described] | None = None,
    ) -> None:
        self.groups: dict[bytes, Group] = {}
        self.share = max(1, (MLID_COUNT - 1) // ports)
        self._groups_of: dict[bytes, set[bytes]] = {}  # port GID -> MGIDs
        self._free = list(range(MULTICAST_LID_FIRST, MULTICAST_LID_FIRST + MLID_COUNT))  # a heap
        self._fresh = 0
        self._default_mtu = mtu
        self._default_rate = rate
        if described is None:
            described = [Described(IPOIB_BROADCAST, 0xFFFF, IPOIB_QKEY, mtu=mtu, rate=rate)]
        for one in described[:MLID_COUNT]:
            self.groups[one.mgid] = Group(self._described(one), permanent=True)

    def _described(self, one: Described) -> McMemberRecord:
        return McMemberRecord(
            mgid=one.mgid,
            qkey=one.qkey,
            mlid=heapq.heappop(self._free),
            mtu_selector=sa.SELECT_EXACTLY,
            mtu=one.mtu,
            tclass=one.tclass,
            pkey=one.pkey,
            rate_selector=sa.SELECT_EXACTLY,
            rate=one.rate,
            life_time_selector=sa.SELECT_EXACTLY,
            life_time=LIFE_TIME,
            sl=one.sl,
            flow_label=one.flow_label,
            scope=one.mgid[1] & 0xF,
        )

    def join(self, wanted: McMemberRecord, mask: int, pkeys: Collection[int]) -> tuple[int, Group | None, bool]:
        """Join or create: (status, group, whether it was created). `pkeys` is the table of who asks."""
        if not mask & sa.MC_PORT_GID or not mask & sa.MC_JOIN_STATE or not wanted.join_state:
            return SA_STATUS_INSUFFICIENT_COMPONENTS, None, False
        group = self.groups.get(wanted.mgid) if mask & sa.MC_MGID else None
        created = group is None
        mine = self._groups_of.get(wanted.port_gid, set())
        if len(mine) >= self.share and (group is None or group.record.mgid not in mine):
            return SA_STATUS_NO_RESOURCES, None, False
        # Members of its partition join a group, and full ones make it.
        allowed = (group.record.pkey, group.record.pkey & 0x7FFF) if group is not None else (wanted.pkey | 0x8000,)
        if not any(pkey in pkeys for pkey in allowed) and (group is not None or mask & sa.MC_PKEY):
            return REQ_INVALID, None, False
        if group is None:
            status, group = self._create(wanted, mask)
            if group is None:
                return status, None, False
        elif not self._agrees(group.record, wanted, mask):
            return REQ_INVALID, None, False
        self._groups_of.setdefault(wanted.port_gid, mine).add(group.record.mgid)
        group.members[wanted.port_gid] = group.members.get(wanted.port_gid, 0) | wanted.join_state
        return 0, group, created

    def leave(self, wanted: McMemberRecord, mask: int) -> tuple[int, Group | None, bool]:
        """Leave: (status, group, whether the group is gone now). Join state bits not named stay."""
        group = self.groups.get(wanted.mgid) if mask & sa.MC_MGID else None
        if group is None or not mask & sa.MC_PORT_GID or wanted.port_gid not in group.members:
            return REQ_INVALID, None, False
        state = group.members[wanted.port_gid]
        if not wanted.join_state or wanted.join_state & ~state:
            return REQ_INVALID, None, False
        return 0, group, self._remove(group, wanted.port_gid, wanted.join_state)

    def ports(self) -> list[bytes]:
        """GIDs of all ports that are in a group."""
        return list(self._groups_of)

    def purge(self, port_gid: bytes) -> Iterator[tuple[Group, bool]]:
        """A port is gone and leaves its groups; gives each, and whether it is gone now."""
        for mgid in sorted(self._groups_of.get(port_gid, ())):
            group = self.groups.get(mgid)
            if group is not None and port_gid in group.members:
                yield group, self._remove(group, port_gid, 0xF)

    def query(self, wanted: McMemberRecord, mask: int, pkeys: Collection[int]) -> Iterator[McMemberRecord | None]:
        """Records that match: one for each group, or for each member if a member is asked for; None if one does not.

        Groups of partitions that are not in `pkeys`, the table of who asks, are none of its business. Records are the
        groups' own: not to be changed.
        """
        bases = {pkey & 0x7FFF for pkey in pkeys if pkey}
        for group in list(self.groups.values()):
            yield self._matching(group, wanted, mask) if group.record.pkey & 0x7FFF in bases else None

    def _matching(self, group: Group, wanted: McMemberRecord, mask: int) -> McMemberRecord | None:
        if mask & sa.MC_MGID and group.record.mgid != wanted.mgid:
            return None
        if mask & (1 << 3) and group.record.mlid != wanted.mlid:
            return None
        if not self._agrees(group.record, wanted, mask):
            return None
        if mask & sa.MC_PORT_GID:
            return group.record_for(wanted.port_gid) if wanted.port_gid in group.members else None
        return group.record

    def _remove(self, group: Group, port_gid: bytes, bits: int) -> bool:
        state = group.members[port_gid] & ~bits
        if state:
            group.members[port_gid] = state
            return False
        del group.members[port_gid]
        self._left(group, port_gid)
        # A group lives as long as it has a full member (15.2.5.17.2).
        full = sa.JOIN_FULL | sa.JOIN_SEND_ONLY_FULL
        if group.permanent or any(state & full for state in group.members.values()):
            return False
        for other in group.members:
            self._left(group, other)
        group.members.clear()
        del self.groups[group.record.mgid]
        heapq.heappush(self._free, group.record.mlid)
        return True

    def _left(self, group: Group, port_gid: bytes) -> None:
        mine = self._groups_of[port_gid]
        mine.discard(group.record.mgid)
        if not mine:
            del self._groups_of[port_gid]

    def _create(self, wanted: McMemberRecord, mask: int) -> tuple[int, Group | None]:
        if not wanted.join_state & (sa.JOIN_FULL | sa.JOIN_SEND_ONLY_FULL):
            return REQ_INVALID, None
        if mask & _CREATE_COMPONENTS != _CREATE_COMPONENTS:
            # Hosts that only want to join learn that there is no such group yet.
            missing_all = not mask & (_CREATE_COMPONENTS & ~sa.MC_PKEY)
            return (REQ_INVALID if missing_all else SA_STATUS_INSUFFICIENT_COMPONENTS), None
        mgid = wanted.mgid if mask & sa.MC_MGID and any(wanted.mgid) else self._fresh_mgid(wanted)
        if mgid[0] != 0xFF:
            return REQ_INVALID, None
        mtu = self._choose(wanted.mtu_selector, wanted.mtu, mask & sa.MC_MTU, self._default_mtu, smp.MTU_4096)
        rate = self._choose(wanted.rate_selector, wanted.rate, mask & sa.MC_RATE, self._default_rate, 63)
        if mtu is None or rate is None:
            return REQ_INVALID, None
        if not self._free:
            return SA_STATUS_NO_RESOURCES, None
        record = McMemberRecord.from_bytes(wanted.to_bytes())
        record.mgid, record.port_gid, record.mlid = mgid, bytes(16), heapq.heappop(self._free)
        record.mtu, record.rate = mtu, rate
        record.mtu_selector = record.rate_selector = record.life_time_selector = sa.SELECT_EXACTLY
        record.life_time = LIFE_TIME
        record.scope = mgid[1] & 0xF
        record.join_state = record.proxy_join = 0
        if not mask & sa.MC_HOP_LIMIT:
            record.hop_limit = 0
        group = self.groups[mgid] = Group(record)
        return 0, group

    @staticmethod
    def _choose(selector: int, wanted: int, named: int, default: int, largest: int) -> int | None:
        """A value that a selector asks for; None if there is none."""
        if not named:
            return default
        if selector == sa.SELECT_GREATER:
            value = max(default, wanted + 1)
        elif selector == sa.SELECT_LESS:
            value = min(default, wanted - 1)
        elif selector == sa.SELECT_EXACTLY:
            value = wanted
        else:
            value = default
        return value if 1 <= value <= largest else None

    @staticmethod
    def _agrees(record: McMemberRecord, wanted: McMemberRecord, mask: int) -> bool:
        """Tell whether what a join or query names fits the group."""
        if any(mask & bit and getattr(record, name) != getattr(wanted, name) for bit, name in _EQUAL):
            return False
        # Full and limited members of a partition share its groups.
        if mask & sa.MC_PKEY and (record.pkey ^ wanted.pkey) & 0x7FFF:
            return False
        if mask & sa.MC_MTU and mask & sa.MC_MTU_SELECTOR and not selected(wanted.mtu_selector, wanted.mtu, record.mtu):
            return False
        rated = mask & sa.MC_RATE and mask & sa.MC_RATE_SELECTOR
        return not rated or selected(wanted.rate_selector, wanted.rate, record.rate)

    def _fresh_mgid(self, wanted: McMemberRecord) -> bytes:
        """A GID for whoever wants the SA to choose one: transient, of the asked scope."""
        scope = wanted.scope or 2
        while True:
            mgid = bytes((0xFF, 0x10 | scope, 0xA0, 0x1B)) + self._fresh.to_bytes(12, "big")
            self._fresh += 1
            if mgid not in self.groups:
                return mgid
