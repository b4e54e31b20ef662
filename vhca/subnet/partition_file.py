"""Reading opensm's partitions.conf, and writing it for an OpenSM that does not know the names of cards.

`NAME=PKEY, flags : members ;` as opensm's manual has it. Beyond that a member may be a card or a simulated host, by its
name (`h0=full`). Two things are stricter: what opensm warns of or takes for something else is an error here, said with
its line; and P_Keys that are left out are 1, 2, 3 ... in the order of the file, as there.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from vhca.subnet.partitions import (
    DEFAULT_PARTITION,
    FULL_MEMBER,
    KINDS,
    Group,
    Member,
    Membership,
    Partition,
    Partitions,
)

MAX_BYTES: Final = 1 << 20
IPOIB_QKEY: Final = 0x00000B1B
_BROADCAST: Final = bytes.fromhex("ff12401bffff000000000000ffffffff")
_IP_SIGNATURES: Final = (bytes.fromhex("401b"), bytes.fromhex("601b"))
_MEMBERSHIPS: Final[tuple[Membership, ...]] = ("full", "limited", "both")
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
# What a group's flags may be, by name: the largest value, and the field of a group.
_GROUP_FLAGS: Final = {
    "mtu": (5, "mtu"),
    "rate": (63, "rate"),
    "sl": (15, "sl"),
    "Q_Key": (0xFFFFFFFF, "qkey"),
    "TClass": (255, "tclass"),
    "FlowLabel": (0xFFFFF, "flow_label"),
}
_NOT_ZERO: Final = ("mtu", "rate")
Flags = dict[str, int]


class PartitionError(Exception):
    """What is wrong with a description of partitions, and in which line."""


def read(text: str, *, enforced: bool = True) -> Partitions:
    """The partitions that a text describes; `enforced`: switches are to look at P_Keys, too.

    :raises PartitionError: it describes none.
    """
    if len(text) > MAX_BYTES:
        raise PartitionError(f"more than {MAX_BYTES >> 20} MiB")
    reader = _Reader()
    for line, statement in _statements(text):
        reader.take(line, statement)
    return Partitions(list(reader.partitions.values()), list(reader.groups.values()), enforced)


def write(partitions: Partitions) -> str:
    """The same for OpenSM, which knows port GUIDs only (see :meth:`Partitions.with_cards`)."""
    lines = []
    names = {one.pkey: one.name or f"P{one.pkey:04x}" for one in partitions.partitions}
    for group in partitions.groups:
        base = group.pkey & ~FULL_MEMBER
        name = names.get(base, f"P{base:04x}")
        values = {
            "Q_Key": group.qkey,
            "TClass": group.tclass,
            "FlowLabel": group.flow_label,
            "scope": group.mgid[1] & 0xF,
        }
        settings = [f"mtu={group.mtu}, rate={group.rate}, sl={group.sl}"]
        settings += [f"{flag}={value:#x}" for flag, value in values.items() if value]
        is_ip = group.mgid[2:4] in _IP_SIGNATURES
        # OpenSM wants the P_Key in an MGID without the bit of full members, or to fill it in.
        mgid = group.mgid[:4] + (b"\0\0" if is_ip else group.mgid[4:6]) + group.mgid[6:]
        if is_ip and mgid[2] == _BROADCAST[2] and mgid[6:] == _BROADCAST[6:]:
            lines.append(f"{name}={base:#06x}, ipoib, {', '.join(settings)} : NONE ;")
        else:
            # OpenSM wants something between such a line and the semicolon.
            lines += [
                f"{name}={base:#06x}, {', '.join(settings)} :",
                f"  mgid={ipaddress.IPv6Address(mgid)}",
                "  NONE ;",
            ]
    for one in partitions.partitions:
        members = ", ".join(f"{_who(member.who)}={member.membership}" for member in one.members)
        lines.append(f"{names[one.pkey]}={one.pkey:#06x}{', indx0' if one.first else ''} : {members} ;")
    return "\n".join(lines) + "\n"


def _who(who: int | str) -> str:
    return who if isinstance(who, str) else f"{who:#018x}"


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """What ends with a semicolon, without comments, and the line that it begins in."""
    start, parts, begun = 1, list[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        pieces = line.split("#", 1)[0].split(";")
        for index, piece in enumerate(pieces):
            if not begun:
                start, parts = number, []
            parts.append(piece + "\n")
            begun = begun or bool(piece.strip())
            if index < len(pieces) - 1:
                if begun:
                    yield start, "".join(parts)
                parts, begun = [], False
    if begun:
        raise PartitionError(f"line {start}: a semicolon is missing at the end")


class _Reader:
    """What the statements of a file make."""

    def __init__(self) -> None:
        # All ports are in the default partition, whatever a file says of others (opensm's manual).
        everybody = [Member("ALL"), Member("SELF", "full")]
        self.partitions = {DEFAULT_PARTITION: Partition("Default", DEFAULT_PARTITION, members=everybody)}
        self.groups: dict[bytes, Group] = {}
        self._named = {one.name: one for one in self.partitions.values()}
        self._last = 0  # P_Key that was made for a partition without one

    def take(self, line: int, statement: str) -> None:
        head, colon, body = statement.partition(":")
        if not colon:
            raise PartitionError(f"line {line}: there is no colon between a partition and its members")
        first, *flags = head.split(",")
        one = self._partition(line, first)
        membership: Membership = "limited"
        ipoib, settings, scopes = False, Flags(), list[int]()
        for flag in flags:
            name, _, value = (part.strip() for part in flag.partition("="))
            if name == "defmember":
                membership = _membership(line, value)
            elif name == "indx0":
                one.first = True
            elif name == "ipoib":
                ipoib = True
            else:
                _group_flag(line, name, value, settings, scopes)
        if ipoib:
            self._add_groups(line, one, _BROADCAST, settings, scopes)
        for offset, text in enumerate(body.split("\n"), head.count("\n")):
            if text.strip().startswith("mgid"):
                self._multicast(line + offset, one, text, settings, scopes)
            else:
                one.members += _members(line + offset, text, membership)

    def _partition(self, line: int, text: str) -> Partition:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals and name[:1].isdigit():
            name, value = "", name
        pkey = _number(line, "P_Key", value, 0xFFFF) & ~FULL_MEMBER if value else 0
        known = self._named.get(name)
        if not pkey and known is not None:
            return known
        while not pkey:
            self._last += 1
            if self._last > DEFAULT_PARTITION:
                raise PartitionError(f"line {line}: there is no P_Key left for it")
            pkey = self._last if self._last not in self.partitions else 0
        one = self.partitions.setdefault(pkey, Partition(name, pkey))
        if name:
            self._named.setdefault(one.name, one)
        return one

    def _multicast(self, line: int, one: Partition, text: str, defaults: Flags, scopes: Sequence[int]) -> None:
        first, *flags = text.split(",")
        _, _, value = first.partition("=")
        try:
            mgid = ipaddress.IPv6Address(value.strip()).packed
        except ValueError:
            mgid = b"\0"
        if mgid[0] != 0xFF:
            raise PartitionError(f"line {line}: {value.strip()!r} is no multicast GID")
        settings, own_scopes = dict(defaults), list[int]()
        for flag in flags:
            name, _, value = (part.strip() for part in flag.partition("="))
            if name:
                _group_flag(line, name, value, settings, own_scopes)
        if mgid[2:4] in _IP_SIGNATURES:
            # Groups of IP are as the broadcast group of their partition.
            for name in ("mtu", "rate"):
                if settings.get(name) != defaults.get(name):
                    raise PartitionError(
                        f"line {line}: a group of IP has the {name} of its partition's broadcast group"
                    )
        self._add_groups(line, one, mgid, settings, own_scopes or scopes)

    def _add_groups(self, line: int, one: Partition, mgid: bytes, settings: Flags, scopes: Sequence[int]) -> None:
        pkey = one.pkey | FULL_MEMBER
        if mgid[2:4] in _IP_SIGNATURES:
            if mgid != _BROADCAST and mgid[4:6] not in (b"\0\0", pkey.to_bytes(2, "big")):
                raise PartitionError(f"line {line}: the GID has another P_Key than its partition, {pkey:#06x}")
            mgid = mgid[:4] + pkey.to_bytes(2, "big") + mgid[6:]
            settings = {"qkey": IPOIB_QKEY} | settings
        group = Group(mgid, pkey, **settings)
        for scope in scopes or [mgid[1] & 0xF or 2]:
            scoped = mgid[:1] + bytes((mgid[1] & 0xF0 | scope,)) + mgid[2:]
            self.groups.setdefault(scoped, replace(group, mgid=scoped))


def _members(line: int, text: str, default: Membership) -> Iterator[Member]:
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or name == "NONE":
            continue
        membership = _membership(line, value) if equals else default
        if name in KINDS or _NAME.fullmatch(name):
            yield Member(name, membership)
        else:
            yield Member(_number(line, "port GUID", name, (1 << 64) - 1), membership)


def _membership(line: int, text: str) -> Membership:
    """opensm takes the beginning of a word for it."""
    for membership in _MEMBERSHIPS:
        if text and membership.startswith(text):
            return membership
    raise PartitionError(f"line {line}: {text!r} is no membership: full, limited or both")


def _group_flag(line: int, name: str, value: str, settings: Flags, scopes: list[int]) -> None:
    if name == "scope":
        scopes.append(_number(line, name, value, 0xF))
        return
    if name not in _GROUP_FLAGS:
        raise PartitionError(f"line {line}: {name!r} is no flag")
    largest, where = _GROUP_FLAGS[name]
    number = _number(line, name, value, largest)
    if not number and name in _NOT_ZERO:
        raise PartitionError(f"line {line}: {name} is 0")
    settings[where] = number


def _number(line: int, what: str, text: str, largest: int) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise PartitionError(f"line {line}: {text!r} is no {what}") from None
    if not 0 <= value <= largest:
        raise PartitionError(f"line {line}: {what} {text} is not in 0 .. {largest:#x}")
    return value
