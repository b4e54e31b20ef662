"""What ports have told the SA: services that they offer and notices that they want. Each port has a share of the room.

Everything of a port goes with the port; its driver hears (ClientReregister) that it must tell again when it is back.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vhca.wire.mad import (
    SA_STATUS_DENIED,
    SA_STATUS_NO_RECORDS,
    SA_STATUS_NO_RESOURCES,
    SA_STATUS_REQ_INVALID,
    STATUS_OK,
    InformInfo,
)
from vhca.wire.sa import ServiceRecord

MAX_SERVICES: Final = 4096
MAX_SUBSCRIBERS: Final = 1024
ALL_TRAPS: Final = 0xFFFF
_FOREVER: Final = 0xFFFFFFFF
_SECOND: Final = 1_000_000_000

ServiceId = tuple[int, bytes, int]
"""(ServiceID, ServiceGID, P_Key), which tell one record from another (15.2.5.14)"""


class Services:
    """Service records by their RIDs; `share` for each port, which is known by its own GUID."""

    def __init__(self, ports: int) -> None:
        self.share = max(1, MAX_SERVICES // ports)
        self._records: dict[ServiceId, _Service] = {}
        self._of: Counter[int] = Counter()

    def register(self, record: ServiceRecord, owner: int, now_ns: int) -> int:
        """Keep a record of a port, or renew it; gives the status. Only who knows its ServiceKey may change a record."""
        key = _id(record)
        self._expire(key, now_ns)
        present = self._records.get(key)
        if present is None:
            if self._of[owner] >= self.share and not self._make_room(owner, now_ns):
                return SA_STATUS_NO_RESOURCES
            self._of[owner] += 1
        elif present.record.key != record.key and any(present.record.key):
            return SA_STATUS_DENIED
        endless = record.lease_s in (0, _FOREVER)
        shown = ServiceRecord.from_bytes(record.to_bytes())
        shown.key = bytes(16)
        self._records[key] = _Service(record, shown, owner, None if endless else now_ns + record.lease_s * _SECOND)
        return STATUS_OK

    def remove(self, record: ServiceRecord, now_ns: int, *, key_named: bool) -> int:
        """Forget a record; gives the status. If who asks names a ServiceKey, it must be right."""
        key = _id(record)
        self._expire(key, now_ns)
        present = self._records.get(key)
        if present is None:
            return SA_STATUS_NO_RECORDS
        if key_named and present.record.key != record.key:
            return SA_STATUS_DENIED
        self._drop(key)
        return STATUS_OK

    def all(self, now_ns: int) -> Iterator[tuple[ServiceRecord, ServiceRecord, int]]:
        """Records whose lease runs: as they are, to compare with; as others may see them, without keys; and whose."""
        for one in list(self._records.values()):
            if not one.ended(now_ns):
                yield one.record, one.shown, one.owner

    def forget(self, owner: int) -> None:
        """A port is gone."""
        for key in self._keys_of(owner):
            self._drop(key)

    def withdraw(self, owner: int, guid: int) -> None:
        """A port has given up a GUID, and with it the services that are there."""
        for key in self._keys_of(owner):
            # Hosts are not agreed on the prefix of a ServiceGID.
            if int.from_bytes(key[1][8:], "big") == guid:
                self._drop(key)

    def _keys_of(self, owner: int) -> list[ServiceId]:
        return [key for key, one in self._records.items() if one.owner == owner] if self._of[owner] else []

    def _make_room(self, owner: int, now_ns: int) -> bool:
        for key in self._keys_of(owner):
            self._expire(key, now_ns)
        return self._of[owner] < self.share

    def _expire(self, key: ServiceId, now_ns: int) -> None:
        present = self._records.get(key)
        if present is not None and present.ended(now_ns):
            self._drop(key)

    def _drop(self, key: ServiceId) -> None:
        owner = self._records.pop(key).owner
        self._of[owner] -= 1
        if not self._of[owner]:
            del self._of[owner]


@dataclass(frozen=True, slots=True)
class _Service:
    """What was registered, what others may see of it, whose it is, and when its lease ends."""

    record: ServiceRecord
    shown: ServiceRecord
    owner: int
    expires_ns: int | None

    def ended(self, now_ns: int) -> bool:
        return self.expires_ns is not None and self.expires_ns <= now_ns


@dataclass(frozen=True, slots=True, order=True)
class Subscriber:
    """Wants notices of one trap number (or all) at a queue pair."""

    lid: int
    qpn: int
    trap_number: int


class Subscribers:
    """Who wants notices; `share` for each port."""

    def __init__(self, ports: int) -> None:
        self.share = max(1, MAX_SUBSCRIBERS // ports)
        self._of: dict[int, set[Subscriber]] = {}
        self._sorted: list[Subscriber] | None = None  # all of them, until one comes or goes

    def change(self, lid: int, inform: InformInfo) -> int:
        """Subscribe or unsubscribe a port's queue pair; gives the status."""
        subscriber = Subscriber(lid, inform.qpn or 1, inform.trap_number)
        mine = self._of.get(lid, set())
        self._sorted = None
        if not inform.subscribe:
            if subscriber not in mine:
                return SA_STATUS_REQ_INVALID
            mine.discard(subscriber)
            if not mine:
                self._of.pop(lid, None)
        elif len(mine) < self.share or subscriber in mine:
            self._of.setdefault(lid, mine).add(subscriber)
        else:
            return SA_STATUS_NO_RESOURCES
        return STATUS_OK

    def forget(self, lid: int) -> None:
        """A port is gone."""
        if self._of.pop(lid, None):
            self._sorted = None

    def __bool__(self) -> bool:
        return bool(self._of)

    def all(self) -> list[Subscriber]:
        """All of them, in a fixed order."""
        if self._sorted is None:
            self._sorted = sorted(subscriber for mine in self._of.values() for subscriber in mine)
        return self._sorted

    def of(self, trap_number: int) -> list[Subscriber]:
        """Who wants to hear of a trap."""
        return [subscriber for subscriber in self.all() if subscriber.trap_number in (trap_number, ALL_TRAPS)]


def _id(record: ServiceRecord) -> ServiceId:
    return record.service_id, record.gid, record.pkey
