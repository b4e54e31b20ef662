"""Random datagrams for the agents of a card, a switch and a simulated host: an answer or none, and no half-done Set."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firmware.mads.sma import Sma
from tests.unit.fabric.bench import Turns
from tests.unit.fabric.test_switch import SwitchBench
from tests.unit.mads.smps import BOARD
from tests.unit.mads.smps import smp as smp_request
from vhca.fabric.end_node import Company, EndNode
from vhca.fabric.link import Link
from vhca.fabric.topology import Node, usual_make
from vhca.management.link_speed import LinkSpeed
from vhca.wire import smp
from vhca.wire.mad import ATTR_NOTICE, CLASS_SUBN_DR, METHOD_GET, METHOD_SET, Smp


@dataclass
class Agent:
    """One of the three: how it is asked, and the modifiers of tables that it has."""

    ask: Callable[[bytes], bytes | None]
    extra: tuple[tuple[int, int], ...]

    def state(self) -> list[bytes | None]:
        """Everything that a manager can read."""
        common = [
            *[(smp.PORT_INFO, number) for number in range(3)],
            *[(smp.P_KEY_TABLE, block) for block in range(4)],
            *[(smp.P_KEY_TABLE, 1 << 16 | block) for block in range(2)],
            (smp.SL_TO_VL, 0),
            (smp.SL_TO_VL, 0x0102),
            *[(smp.VL_ARBITRATION, block << 16 | port) for block in (1, 3) for port in (0, 1)],
            (smp.GUID_INFO, 0),
            (smp.NODE_INFO, 0),
            (smp.NODE_DESCRIPTION, 0),
            (smp.MLNX_EXT_PORT_INFO, 1),
            (ATTR_NOTICE, 0),
        ]
        return [self.ask(smp_request(METHOD_GET, attr, modifier)) for attr, modifier in (*common, *self.extra)]


def card() -> Agent:
    sma = Sma(BOARD)
    sma.link_up(1, True)
    return Agent(lambda mad: sma.handle(1, mad)[0], ())


def switch() -> Agent:
    bench = SwitchBench()
    port = bench.switch.ports[1]
    tables = (
        (smp.SWITCH_INFO, 0),
        (smp.LINEAR_FORWARDING_TABLE, 0),
        (smp.MULTICAST_FORWARDING_TABLE, 0),
        (smp.SOURCE_LIDS, 0),
    )
    return Agent(lambda mad: bench.switch.agent.handle(port, mad, 0xFFFF), tables)


def host() -> Agent:
    turns = Turns()
    company = Company(turns.call_soon, lambda: 0)
    node = EndNode(Node("n1", "host", 2, 0x10, (0x11, 0x12), "n1", usual_make("host", 0x10)), company)
    for number in (1, 2):
        link = Link(turns.call_soon, lambda delay, fn: None, "a", "b")
        node.plug(number, link.a, LinkSpeed())
    return Agent(lambda mad: company.agent.handle(node.ports[1], mad, 0, 0xFFFF), ())


AGENTS = pytest.mark.parametrize("make", [card, switch, host], ids=lambda make: make.__name__)
attributes = st.one_of(
    st.sampled_from(
        [
            ATTR_NOTICE, *range(0x10, 0x21), smp.VENDOR_DIAG, smp.MLNX_EXT_PORT_INFO, smp.SOURCE_LIDS,
        ]
    ),
    st.integers(0, 0xFFFF),
)  # fmt: skip
modifiers = st.one_of(
    st.integers(0, 8), st.integers(0, 0xFFFFFFFF), st.sampled_from([1 << 16, 3 << 16 | 1, 0x80000001])
)


@AGENTS
@given(attr=attributes, modifier=modifiers, data=st.binary(max_size=64), directed=st.booleans())
@example(attr=smp.PORT_INFO, modifier=1, data=smp.PortInfo(lid=5, sm_lid=1, mkey=0).to_bytes(), directed=False)
@example(attr=smp.P_KEY_TABLE, modifier=0, data=b"\x80\x05", directed=False)
@example(attr=smp.GUID_INFO, modifier=0, data=bytes(8) + b"\5" * 8, directed=False)
def test_a_set_that_is_refused_changes_nothing_and_one_that_is_done_is_shown(
    make: Callable[[], Agent], attr: int, modifier: int, data: bytes, directed: bool
) -> None:
    agent = make()
    before = agent.state()
    assert all(answer is not None for answer in before)
    answer = agent.ask(smp_request(METHOD_SET, attr, modifier, data, directed=directed))
    assert answer is not None, "the M_Key is 0, and its path fits"
    done = Smp.from_bytes(answer)
    assert (done.method, len(answer), done.attr_id, done.attr_mod) == (0x81, 256, attr, modifier)
    if done.status & 0x7FFF:
        assert agent.state() == before
        return
    info = done.data
    shown = agent.ask(smp_request(METHOD_GET, attr, modifier, mkey=int.from_bytes(data[:8].ljust(8, b"\0"), "big")))
    if shown is not None and attr == smp.PORT_INFO:
        view = smp.PortInfo.from_bytes(info)
        view.client_reregister = 0
        info = view.to_bytes()
    if shown is not None and (attr, modifier) != (smp.MLNX_EXT_PORT_INFO, 255):
        assert Smp.from_bytes(shown).data == info, "a Set answers what a Get shows"


@AGENTS
@given(mads=st.lists(st.binary(min_size=256, max_size=256), max_size=4), heads=st.data())
def test_any_bytes_give_an_answer_or_none(make: Callable[[], Agent], mads: list[bytes], heads: st.DataObject) -> None:
    agent = make()
    for mad in mads:
        head = bytes((1, heads.draw(st.sampled_from([1, CLASS_SUBN_DR])), 1, heads.draw(st.integers(0, 255))))
        answer = agent.ask(head + mad[4:])
        assert answer is None or len(answer) == 256


@AGENTS
def test_alias_guids_are_kept_behind_the_port_s_own(make: Callable[[], Agent]) -> None:
    agent = make()
    first = agent.ask(smp_request(METHOD_GET, smp.GUID_INFO))
    assert first is not None
    own = Smp.from_bytes(first).data[:8]
    wanted = b"".join(number.to_bytes(8, "big") for number in range(100, 108))
    done = agent.ask(smp_request(METHOD_SET, smp.GUID_INFO, 0, wanted))
    assert done is not None
    answer = Smp.from_bytes(done)
    if make is switch:
        assert answer.status == 0x0C, "port 0 has one"
        return
    assert (answer.status, answer.data) == (0, own + wanted[8:])


@AGENTS
def test_p_keys_in_all_blocks_that_the_node_announces(make: Callable[[], Agent]) -> None:
    agent = make()
    node = agent.ask(smp_request(METHOD_GET, smp.NODE_INFO))
    assert node is not None
    cap = smp.NodeInfo.from_bytes(Smp.from_bytes(node).data).partition_cap
    assert cap == (8 if make is switch else 128)
    for block in range(5):
        keys = [0x8000 | 32 * block + number for number in range(32)]
        done = agent.ask(smp_request(METHOD_SET, smp.P_KEY_TABLE, block, smp.pack_words(keys)))
        assert done is not None
        answer = Smp.from_bytes(done)
        kept = min(32, max(0, cap - 32 * block))
        assert bool(answer.status) == (kept == 0)
        if kept:
            assert smp.unpack_words(answer.data) == keys[:kept] + [0] * (32 - kept)
