"""P_Keys at the external ports of a switch: tables, what they let pass, and who hears of what they do not."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fabric.bench import Bench
from tests.unit.fabric.test_switch import SwitchBench, data
from tests.unit.fabric.test_through import ways
from tests.unit.mads.smps import port_info
from vhca.fabric.through import Way
from vhca.management.partitions import admitted_in, admitted_out, block_of, default_table, pkeys_match, with_block
from vhca.wire import smp
from vhca.wire.mad import METHOD_GET, METHOD_SET, METHOD_TRAP, Notice, Smp
from vhca.wire.notices import SwitchKeyDetails
from vhca.wire.packet import UD, Packet

IN, OUT = {"partition_enforcement_inbound": 1}, {"partition_enforcement_outbound": 1}
FULL, LIMITED, OTHER = 0x8005, 0x0005, 0x8006

pkeys = st.one_of(st.sampled_from([0, 0x8000, FULL, LIMITED, OTHER, 0xFFFF, 0x7FFF]), st.integers(0, 0xFFFF))


def table(*keys: int) -> bytes:
    return smp.pack_words(keys).ljust(64, b"\0")


def enforcing(port: int, *keys: int, **bits: int) -> SwitchBench:
    """A switch that enforces a table at one port."""
    bench = SwitchBench()
    assert bench.smp(1, METHOD_SET, smp.P_KEY_TABLE, port << 16, table(*keys)).data == table(*keys)
    answer = bench.smp(1, METHOD_SET, smp.PORT_INFO, port, port_info(**bits).to_bytes())
    assert answer.status & 0x7FFF == 0
    shown = smp.PortInfo.from_bytes(answer.data)
    assert all(getattr(shown, name) == value for name, value in bits.items())
    return bench


@given(st.lists(pkeys, max_size=6), pkeys)
def test_what_a_table_lets_out_matches_it_and_what_it_lets_in_claims_no_more(keys: list[int], pkey: int) -> None:
    assert (pkey in admitted_out(keys)) == any(pkeys_match(pkey, key) for key in keys)
    claims = [key for key in keys if (key ^ pkey) & 0x7FFF == 0 and key & 0x7FFF]
    assert (pkey in admitted_in(keys)) == any(key & 0x8000 >= pkey & 0x8000 for key in claims)


@given(st.sampled_from([8, 32, 128]), st.integers(0, 5), st.binary(min_size=64, max_size=64))
def test_blocks_of_a_table(entries: int, block: int, data: bytes) -> None:
    before = default_table(entries)
    after = with_block(before, block, data)
    if block * 32 >= entries:
        assert (after, block_of(before, block)) == (None, None)
        return
    assert after is not None
    assert len(after) == entries
    kept = min(32, entries - block * 32)
    assert block_of(after, block) == data[: 2 * kept].ljust(64, b"\0")
    assert all(block_of(after, other) == block_of(before, other) for other in range(4) if other != block)


def test_capabilities_and_tables_as_managers_read_them() -> None:
    bench = SwitchBench()
    info = smp.SwitchInfo.from_bytes(bench.smp(1, METHOD_GET, smp.SWITCH_INFO).data)
    assert (info.partition_enforcement_cap, info.inbound_enforcement_cap, info.outbound_enforcement_cap) == (32, 1, 1)
    assert (info.filter_raw_inbound_cap, info.filter_raw_outbound_cap) == (1, 1)
    assert smp.NodeInfo.from_bytes(bench.smp(1, METHOD_GET, smp.NODE_INFO).data).partition_cap == 8
    keys = tuple(range(0x8001, 0x8021))
    bench.smp(1, METHOD_SET, smp.P_KEY_TABLE, 2 << 16, table(*keys))
    assert bench.smp(1, METHOD_GET, smp.P_KEY_TABLE, 2 << 16).data == table(*keys)
    assert bench.smp(1, METHOD_GET, smp.P_KEY_TABLE, 3 << 16).data == table(0xFFFF)
    # Port 0 has a table of its own, of eight.
    assert bench.smp(1, METHOD_SET, smp.P_KEY_TABLE, 0, table(*keys)).data == table(*keys[:8])
    for modifier in (1, 2 << 16 | 1, 5 << 16):
        assert bench.smp(1, METHOD_GET, smp.P_KEY_TABLE, modifier).status & 0x7FFF == 0x1C
        assert bench.smp(1, METHOD_SET, smp.P_KEY_TABLE, modifier, table(1)).status & 0x7FFF == 0x1C


def test_a_table_without_enforcement_stops_nobody() -> None:
    bench = enforcing(1, FULL)
    assert bench.send(1, data(12, pkey=OTHER)) == [2]


@pytest.mark.parametrize(
    ("keys", "pkey", "inward", "outward"),
    [
        ((FULL,), FULL, True, True),
        ((FULL,), LIMITED, True, True),
        # A limited member says that it is one, and hears full ones only.
        ((LIMITED,), LIMITED, True, False),
        ((LIMITED,), FULL, False, True),
        ((FULL,), OTHER, False, False),
        ((), 0xFFFF, False, False),
        ((0, 0x8000), 0x8000, False, False),
        ((OTHER, 0, LIMITED), LIMITED, True, False),
    ],
)
def test_enforcement_both_ways(keys: tuple[int, ...], pkey: int, inward: bool, outward: bool) -> None:
    bench = enforcing(1, *keys, **IN)
    assert bench.send(1, data(12, pkey=pkey)) == [2] * inward
    assert bench.send(2, data(11, slid=12, pkey=pkey)) == [1], "out of it goes what does not come in"
    counters = bench.switch.ports[1].counters
    assert (counters.rcv_constraint_errors, counters.xmit_constraint_errors) == (1 - inward, 0)
    bench = enforcing(1, *keys, **OUT)
    assert bench.send(2, data(11, slid=12, pkey=pkey)) == [1] * outward
    assert bench.send(1, data(12, pkey=pkey)) == [2]
    counters = bench.switch.ports[1].counters
    assert (counters.rcv_constraint_errors, counters.xmit_constraint_errors) == (0, 1 - outward)
    assert counters.xmit_discards == 0
    assert bench.switch.dropped() == ({} if outward else {"pkey": 1})


def test_bursts_and_groups_count_all_their_packets_and_violations_stay_at_their_largest() -> None:
    bench = enforcing(2, FULL, **OUT)
    bench.switch.mft[0xC000] = 0b1110
    assert bench.send(1, data(0xC000, pkey=OTHER, service=UD)) == [3]
    burst = data(12, pkey=OTHER, payload=bytes(700), count=3, mtu=256)
    assert bench.send(1, burst) == []
    port = bench.switch.ports[2]
    assert (port.counters.xmit_constraint_errors, port.info.pkey_violations) == (4, 2)
    port.info.pkey_violations = 0xFFFF
    bench.send(1, burst)
    assert port.info.pkey_violations == 0xFFFF
    bench.smp(1, METHOD_SET, smp.PORT_INFO, 2, port_info(**OUT).to_bytes())
    assert port.info.pkey_violations == 0, "a Set with 0 resets it"


def test_smps_have_no_partition() -> None:
    bench = enforcing(1, **IN)
    assert bench.smp(1, METHOD_GET, smp.NODE_INFO).status & 0x7FFF == 0


def _told(bench: SwitchBench) -> list[tuple[int, SwitchKeyDetails]]:
    smps = [Smp.from_bytes(packet.payload) for packet in bench.managed if packet.payload[3] == METHOD_TRAP]
    return [
        (Notice.from_bytes(trap.data + bytes(16)).trap_number, SwitchKeyDetails.from_bytes(trap.data)) for trap in smps
    ]


def test_the_manager_hears_of_it_once_for_each_port() -> None:
    bench = enforcing(1, FULL, **IN)
    zero = bench.switch.ports[0].info
    zero.lid = zero.sm_lid = 9
    bench.switch.lft[9] = 0
    for _ in range(100):
        bench.send(1, Packet(data(12).route._replace(sl=3), UD, 0, 7, 1, b"", pkey=OTHER, src_qp=0x123456))
    told = _told(bench)
    assert {number for number, _ in told} == {259}
    assert len(told) == 8, "what may go out at once, whatever comes"
    details = told[0][1]
    assert (details.lid1, details.lid2, details.pkey, details.sl) == (11, 12, OTHER, 3 << 4)
    assert (details.qp1, details.qp2) == (bytes.fromhex("123456"), bytes((0, 0, 7)))
    assert (details.switch_lid, details.port, details.data_valid) == (9, 1, 0xFC00)


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: _order(bench, 0, **IN),
        lambda bench: _order(bench, 0, **OUT),
        lambda bench: _order(bench, 1, **IN),
        lambda bench: _order(bench, 1, **OUT),
    ],
)
def test_a_train_does_not_pass_what_a_packet_would_not(change: Callable[[Bench], None]) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    way, route = ways(bench)
    back = route._replace(dlid=a.lid, slid=b.lid)
    ours = Way(a.port, b.port, route, back, (FULL, FULL))
    limited = Way(a.port, b.port, route, back, (FULL, LIMITED))
    assert way.is_open(4096)
    assert ours.is_open(4096)
    change(bench)
    assert not way.is_open(4096)
    assert ours.is_open(4096)
    # There is nobody to whom limited members' keys would not go: the table has a full member.
    assert limited.is_open(4096)


def _order(bench: Bench, card: int, **bits: int) -> None:
    """Have one port of the switch belong to one partition only, as a manager does."""
    port = bench.cards[card].port.switch_port
    agent = bench.fabric.switch.agent
    for attribute, modifier, attribute_data in (
        (smp.P_KEY_TABLE, port.number << 16, table(FULL)),
        (smp.PORT_INFO, port.number, port_info(**bits).to_bytes()),
    ):
        request = Smp(base_version=1, class_version=1, mgmt_class=1, method=METHOD_SET, attr_id=attribute)
        request.attr_mod, request.data = modifier, attribute_data
        request.mkey = bench.fabric.switch.ports[0].info.mkey
        reply = agent.handle(port, request.to_bytes(), 0xFFFF)
        assert reply is not None
        assert not Smp.from_bytes(reply).status
