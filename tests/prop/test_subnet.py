"""Guests that say anything to manager and directory in any order, while cables fall and cards fall silent.

Afterwards nothing is left of what nobody has any more, everybody's share adds up, and the subnet is as it should be.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.packets import changed
from tests.prop.conftest import EXAMPLES
from tests.unit.fabric.bench import Bench, Card
from tests.unit.subnet.test_administration import CREATE, CREATE_MASK, query
from tests.unit.subnet.test_partitions import THREE
from vhca.wire import mad as m
from vhca.wire import sa, smp

CARDS = 3
MGIDS = [bytes.fromhex("ff12601bffff000000000000000000") + bytes((n,)) for n in range(1, 5)]
GUIDS = [0, 0x1000, 0x1001, 0x1002, 0x771, 0x772, 0x773]
MEMBER = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE

numbers = st.integers(0, CARDS - 1)
guids = st.sampled_from(GUIDS)


def gid(guid: int) -> bytes:
    return m.gid(smp.DEFAULT_GID_PREFIX, guid)


joins = st.builds(
    lambda method, mgid, guid, state, pkey: (
        method, sa.MC_MEMBER_RECORD,
        sa.McMemberRecord(mgid=mgid, port_gid=gid(guid), join_state=state, **{**CREATE, "pkey": pkey}),
        MEMBER | CREATE_MASK if method == m.METHOD_SET else MEMBER,
    ),
    st.sampled_from([m.METHOD_SET, m.METHOD_DELETE]), st.sampled_from(MGIDS), guids,
    st.sampled_from([1, 2, 4, 8, 0xF]), st.sampled_from([0xFFFF, 0x7FFF, 0x8001, 1]),
)  # fmt: skip
services = st.builds(
    lambda method, number, guid, lease: (
        method, sa.SERVICE_RECORD,
        sa.ServiceRecord(service_id=number, gid=gid(guid), pkey=0xFFFF, lease_s=lease), 0,
    ),
    st.sampled_from([m.METHOD_SET, m.METHOD_DELETE]), st.integers(0, 3), guids, st.sampled_from([0, 1, 0xFFFFFFFF]),
)  # fmt: skip
informs = st.builds(
    lambda subscribe, qpn, trap: (
        m.METHOD_SET, m.ATTR_INFORM_INFO, m.InformInfo(is_generic=1, subscribe=subscribe, trap_number=trap, qpn=qpn), 0,
    ),
    st.integers(0, 1), st.integers(0, 2), st.sampled_from([64, 65, 66, 0xFFFF]),
)  # fmt: skip
queries = st.builds(
    lambda method, attr, data, mask: (method, attr, data, mask),
    st.sampled_from([m.METHOD_GET, m.METHOD_GET_TABLE, m.METHOD_GET_TRACE_TABLE, m.METHOD_GET_MULTI, m.METHOD_SET]),
    st.sampled_from(
        [1, 2, 3, *range(0x11, 0x19), 0x20, 0x30, 0x31, 0x33, 0x35, 0x36, 0x38, 0x39, 0x3A, 0xF3],
    ),
    st.binary(max_size=200),
    st.one_of(st.sampled_from([0, 1, 2, 4, 0xC, 0xFFFFFFFFFFFFFFFF]), st.integers(0, (1 << 64) - 1)),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("ask"), numbers, st.one_of(joins, services, informs, queries)),
    st.tuples(
        st.just("alias"),
        numbers,
        st.sampled_from([m.METHOD_SET, m.METHOD_DELETE]),
        st.integers(-1, 1),
        st.lists(guids, min_size=2, max_size=2),
    ),
    st.tuples(st.just("segment"), numbers, st.integers(0, 7), st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("noise"), numbers, st.integers(0, 1), st.binary(min_size=256, max_size=256)),
    st.tuples(st.just("trap"), numbers, st.sampled_from([128, 144, 256, 0])),
    st.tuples(st.just("cable"), numbers, st.booleans()),
    st.tuples(st.just("silent"), numbers, st.booleans()),
    st.tuples(st.just("sweep"), numbers),
    st.tuples(st.just("time"), numbers, st.sampled_from([0.05, 0.3, 1.5, 11.0])),
)


def _told_by_an_alias() -> list[tuple[Any, ...]]:
    """A port has a GUID more, joins and offers something by that, and gives it up."""
    record = sa.ServiceRecord(service_id=1, gid=gid(0x771), pkey=0xFFFF, lease_s=0xFFFFFFFF)
    member = sa.McMemberRecord(mgid=MGIDS[0], port_gid=gid(0x771), join_state=1, **CREATE)
    return [
        ("alias", 0, m.METHOD_SET, 0, [0x771, 0]),
        ("time", 0, 0.3),
        ("ask", 0, (m.METHOD_SET, sa.SERVICE_RECORD, record, 0)),
        ("ask", 0, (m.METHOD_SET, sa.MC_MEMBER_RECORD, member, MEMBER | CREATE_MASK)),
        ("time", 0, 0.3),
        ("alias", 0, m.METHOD_DELETE, 0, [0, 0]),
    ]


class Subnet(Bench):
    """A bench in which everything is sent without waiting, and each turn is watched."""

    def __init__(self, *, partitioned: bool) -> None:
        super().__init__(CARDS, partitions=THREE if partitioned else None)
        self.run()

    def step(self, what: str, number: int, *rest: Any) -> None:
        card = self.cards[number]
        if what == "ask":
            method, attr, record, mask = rest[0]
            self._post(card, query(method, attr, record, mask).to_bytes())
        elif what == "alias":
            method, beside, some = rest
            record = sa.GuidInfoRecord(lid=max(0, card.lid + beside), guids=smp.pack_guids([0, *some]).ljust(64, b"\0"))
            self._post(card, query(method, sa.GUID_INFO_RECORD, record, 1 | 0b11 << 5).to_bytes())
        elif what == "segment":
            flags, kind, segment = rest
            mad = query(m.METHOD_GET_MULTI, sa.MULTI_PATH_RECORD, b"\1" * 200, rmpp_version=1, rmpp_type=kind)
            mad.rmpp_flags, mad.segment_number, mad.payload_length = flags, segment, 1 << 8 * segment
            self._post(card, mad.to_bytes())
        elif what == "noise":
            qp, mad = rest
            mad = bytes((1, (0x81, 3)[qp], 1 + qp)) + mad[3:]
            card.port.send(changed(card.data(1, mad, dest_qp=qp, src_qp=qp), vl=0 if qp else 15))
        elif what == "trap":
            notice = m.Notice(is_generic=1, trap_number=rest[0], issuer_lid=card.lid)
            trap = m.Smp(base_version=1, mgmt_class=1, class_version=1, method=m.METHOD_TRAP, attr_id=m.ATTR_NOTICE)
            trap.data = notice.to_bytes()[:64]
            card.port.send(changed(card.data(1, trap.to_bytes(), dest_qp=0, src_qp=0), vl=15))
        elif what == "cable":
            (self.fabric.link_up if rest[0] else self.fabric.link_down)(f"hca{number}")
        elif what == "silent":
            card.silent = rest[0]
        elif what == "sweep":
            self.fabric.manager.sweep()
        else:
            self.pass_time(rest[0])
        for _ in range(3):
            if self.turns._queue:
                self.turns.one()

    def _post(self, card: Card, mad: bytes) -> None:
        card.port.send(card.data(1, mad, dest_qp=1, src_qp=1, qkey=m.QP1_QKEY))


@pytest.mark.parametrize("partitioned", [False, True])
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(plan=st.lists(steps, min_size=1, max_size=40))
@example(plan=_told_by_an_alias())
def test_whatever_guests_say_the_subnet_comes_to_rest_and_its_books_agree(
    partitioned: bool, plan: list[tuple[Any, ...]]
) -> None:
    subnet = Subnet(partitioned=partitioned)
    for step in plan:
        subnet.step(*step)
    for number, card in enumerate(subnet.cards):
        card.silent = False
        subnet.fabric.link_up(f"hca{number}")
    subnet.pass_time(60)
    assert subnet.fabric.active()
    assert subnet.fabric.manager.settled
    books_agree(subnet)
    for number in range(CARDS):
        subnet.fabric.link_down(f"hca{number}")
    subnet.pass_time(60)
    registrar = subnet.fabric.administration._registrar
    assert not registrar.multicast._groups_of
    assert not list(registrar.services._records)
    assert not registrar.subscribers.all()
    assert not registrar.aliases._of
    books_agree(subnet)


def books_agree(subnet: Subnet) -> None:
    manager, administration = subnet.fabric.manager, subnet.fabric.administration
    registrar, topology = administration._registrar, manager.topology
    for asking in (manager.transactions, manager.inquiries):
        assert not asking._works
        assert not asking._pending
    queue = administration._queue
    assert not queue._jobs
    assert not queue._held
    assert administration.next_deadline() is None, "reports, transfers, half of requests: all have ended"
    multicast = registrar.multicast
    members = [(group.record.mgid, member) for group in multicast.groups.values() for member in group.members]
    assert Counter(mgid for mgids in multicast._groups_of.values() for mgid in mgids) == Counter(
        mgid for mgid, _ in members
    )
    assert multicast._memberships == Counter(multicast._owners[member] for _, member in members)
    assert multicast._owners.keys() == multicast._groups_of.keys()
    for member, owner in multicast._owners.items():
        found = topology.by_gid(member)
        assert found is not None
        assert found[1].guid == owner
    assert registrar.services._of == Counter(one.owner for one in registrar.services._records.values())
    for one in registrar.services._records.values():
        owned = topology.by_guid(int.from_bytes(one.record.gid[8:], "big"))
        assert owned is not None
        assert owned[1].guid == one.owner
    # What switches have is what the groups want.
    receivers = {
        group.record.mlid
        for group in multicast.groups.values()
        if any(state & (sa.JOIN_FULL | sa.JOIN_NON) for state in group.members.values())
    }
    assert set(subnet.fabric.switch.mft) == receivers
