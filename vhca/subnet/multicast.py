"""Multicast groups: who joined, with which properties, under which MLID (15.2.5.17 of volume 1).

Decides about joins and leaves; the tables of switches are written by the subnet manager. The broadcast group of IPoIB
exists from the start and stays, because hosts only join it.

A port may be in as many groups as its share of the MLIDs, by whatever GIDs it has: whatever others do, each can make
that many.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from vhca.management.link_speed import gbps, rate_of, rates, slower
from vhca.subnet.partitions import Group as Described
from vhca.subnet.topology import NodePort
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
# The signature of MGIDs that the SA makes, and a scope.
_FROM_SA: Final = b"\xa0\x1b"
_LINK_LOCAL: Final = 2

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


def rate_selected(selector: int, wanted: int, actual: int) -> bool:
    """As :func:`selected` for rates, by what they are and not by their codes; one that does not exist is not there."""
    if selector in (sa.SELECT_GREATER, sa.SELECT_LESS):
        return bool(gbps(wanted)) and selected(selector, rates().index(wanted), rates().index(actual))
    return selected(selector, wanted, actual)


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
        self._owners: dict[bytes, int] = {}  # port GID -> port GUID
        self._memberships: Counter[int] = Counter()  # by port GUID, of all its GIDs
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

    def join(self, wanted: McMemberRecord, mask: int, port: NodePort) -> tuple[int, Group | None, bool]:
        """Join or create: (status, group, whether it was created); `port` is that of who asks."""
        if not mask & sa.MC_PORT_GID or not mask & sa.MC_JOIN_STATE or not wanted.join_state:
            return SA_STATUS_INSUFFICIENT_COMPONENTS, None, False
        group = self.groups.get(wanted.mgid) if mask & sa.MC_MGID else None
        created = group is None
        mine = self._groups_of.get(wanted.port_gid, set())
        new = group is None or group.record.mgid not in mine
        if new and self._memberships[port.guid] >= self.share:
            return SA_STATUS_NO_RESOURCES, None, False
        # Members of its partition join a group and make it, limited ones, too.
        partition = wanted.pkey if group is None else group.record.pkey
        member = any(pkey and not (pkey ^ partition) & 0x7FFF for pkey in port.pkeys)
        if not member and (group is not None or mask & sa.MC_PKEY):
            return REQ_INVALID, None, False
        if group is None:
            status, group = self._create(wanted, mask, port)
            if group is None:
                return status, None, False
        elif not self._agrees(group.record, wanted, mask):
            return REQ_INVALID, None, False
        self._groups_of.setdefault(wanted.port_gid, mine).add(group.record.mgid)
        self._owners[wanted.port_gid] = port.guid
        self._memberships[port.guid] += new
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
        """GIDs by which ports are in groups."""
        return list(self._groups_of)

    def purge(self, port_gid: bytes) -> Iterator[tuple[Group, bool]]:
        """A GID of a port is gone and leaves its groups; gives each, and whether it is gone now."""
        for mgid in sorted(self._groups_of.get(port_gid, ())):
            group = self.groups.get(mgid)
            if group is not None and port_gid in group.members:
                yield group, self._remove(group, port_gid, 0xF)

    def query(
        self, wanted: McMemberRecord, mask: int, pkeys: Collection[int], *, trusted: bool = False
    ) -> Iterator[McMemberRecord | None]:
        """Records that match; None for each that was looked at and does not.

        There is one for each group, without members; for each member if one is asked for, or if who asks is `trusted`
        (15.2.5.17.1). Groups of partitions that are not in `pkeys`, the table of who asks, are none of its business.
        Records are the groups' own: not to be changed.
        """
        bases = {pkey & 0x7FFF for pkey in pkeys if pkey}
        for group in list(self.groups.values()):
            found = self._matching(group, wanted, mask) if group.record.pkey & 0x7FFF in bases else None
            if found is None or not trusted or mask & sa.MC_PORT_GID:
                yield self._of_state(found, wanted, mask)
                continue
            for port_gid in list(group.members):
                yield self._of_state(group.record_for(port_gid), wanted, mask)

    @staticmethod
    def _of_state(record: McMemberRecord | None, wanted: McMemberRecord, mask: int) -> McMemberRecord | None:
        """The record, if its JoinState has all that is asked for."""
        if record is None or (mask & sa.MC_JOIN_STATE and wanted.join_state & ~record.join_state):
            return None
        return record

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
        owner = self._owners[port_gid]
        self._memberships[owner] -= 1
        if not self._memberships[owner]:
            del self._memberships[owner]
        if not mine:
            del self._groups_of[port_gid], self._owners[port_gid]

    def _create(self, wanted: McMemberRecord, mask: int, port: NodePort) -> tuple[int, Group | None]:
        if not wanted.join_state & (sa.JOIN_FULL | sa.JOIN_SEND_ONLY_FULL):
            return REQ_INVALID, None
        if mask & _CREATE_COMPONENTS != _CREATE_COMPONENTS:
            # Hosts that only want to join learn that there is no such group yet.
            missing_all = not mask & (_CREATE_COMPONENTS & ~sa.MC_PKEY)
            return (REQ_INVALID if missing_all else SA_STATUS_INSUFFICIENT_COMPONENTS), None
        given = bool(mask & sa.MC_MGID and any(wanted.mgid))
        mgid = wanted.mgid if given else self._fresh_mgid(wanted)
        if given and not _may_be_given(mgid):
            return REQ_INVALID, None
        # What the port that makes it can do (o15-0.2.2).
        most = min(self._default_mtu, port.info.neighbor_mtu)
        mtu = _choose(wanted.mtu_selector, wanted.mtu, mask & sa.MC_MTU, most, range(1, smp.MTU_4096 + 1))
        fastest = slower(self._default_rate, rate_of(port.info))
        rate = _choose(wanted.rate_selector, wanted.rate, mask & sa.MC_RATE, fastest, rates())
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
    def _agrees(record: McMemberRecord, wanted: McMemberRecord, mask: int) -> bool:
        """Tell whether what a join or query names fits the group."""
        if any(mask & bit and getattr(record, name) != getattr(wanted, name) for bit, name in _EQUAL):
            return False
        # Full and limited members of a partition share its groups.
        if mask & sa.MC_PKEY and (record.pkey ^ wanted.pkey) & 0x7FFF:
            return False
        if mask & sa.MC_MTU and mask & sa.MC_MTU_SELECTOR and not selected(wanted.mtu_selector, wanted.mtu, record.mtu):
            return False
        timed = mask & sa.MC_LIFE_TIME and mask & sa.MC_LIFE_TIME_SELECTOR
        if timed and not selected(wanted.life_time_selector, wanted.life_time, record.life_time):
            return False
        rated = mask & sa.MC_RATE and mask & sa.MC_RATE_SELECTOR
        return not rated or rate_selected(wanted.rate_selector, wanted.rate, record.rate)

    def _fresh_mgid(self, wanted: McMemberRecord) -> bytes:
        """A GID for whoever wants the SA to choose one: transient, of the asked scope."""
        scope = wanted.scope or 2
        while True:
            mgid = bytes((0xFF, 0x10 | scope)) + _FROM_SA + self._fresh.to_bytes(12, "big")
            self._fresh += 1
            if mgid not in self.groups:
                return mgid


def _may_be_given(mgid: bytes) -> bool:
    """Tell whether a host may choose this MGID: flags that exist, and not what only the SA makes (15.2.5.17)."""
    flags, scope = mgid[1] >> 4, mgid[1] & 0xF
    return mgid[0] == 0xFF and flags <= 1 and not (mgid[2:4] == _FROM_SA and scope == _LINK_LOCAL)


def _choose(selector: int, wanted: int, named: int, most: int, values: Sequence[int]) -> int | None:
    """The largest value up to `most` that a selector asks for; `values` from small to large; None if there is none."""
    possible = values[: values.index(most) + 1] if most in values else values
    if not named or selector == sa.SELECT_BEST:
        return most
    if wanted not in values:
        return None
    if selector == sa.SELECT_EXACTLY:
        return wanted if wanted in possible else None
    at = values.index(wanted)
    fits = [value for value in possible if (values.index(value) > at) == (selector == sa.SELECT_GREATER)]
    fits = [value for value in fits if value != wanted]
    return fits[-1] if fits else None
