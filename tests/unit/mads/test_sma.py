import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware.mads import packets, sma
from firmware.mads.port import (
    EVENT_ACTIVE,
    EVENT_CLIENT_REREGISTER,
    EVENT_DOWN,
    EVENT_GUID,
    EVENT_INITIALIZED,
    EVENT_LID,
    EVENT_PKEY,
    PortEvent,
)
from firmware.mads.sma import Sma
from firmware.model.counters import SmpCount, SmpCountOf
from tests.packets import divert
from tests.unit.mads.smps import BOARD, port_info, smp
from vhca.counting import shown
from vhca.layout import Layout
from vhca.management.packets import smp_packet
from vhca.wire import smp as w
from vhca.wire.ib import decode, encode
from vhca.wire.mad import (
    METHOD_GET,
    METHOD_GET_TABLE,
    METHOD_SEND,
    METHOD_SET,
    METHOD_TRAP,
    METHOD_TRAP_REPRESS,
    Notice,
    Smp,
)
from vhca.wire.smp import NodeInfo, PortInfo

INVALID = 0x1C


def agent() -> Sma:
    result = Sma(BOARD)
    result.link_up(1, True)
    return result


def ask(
    agent: Sma, method: int, attr_id: int, modifier: int = 0, data: bytes | Layout = b"", mkey: int = 0
) -> tuple[Smp, list[int]]:
    reply, events = agent.handle(1, smp(method, attr_id, modifier, data, mkey=mkey))
    assert reply is not None
    answer = Smp.from_bytes(reply)
    assert (answer.method, answer.tid) == (0x81 if method == METHOD_SET else method | 0x80, 0x77)
    return answer, [event.subtype for event in events]


def set_port(agent: Sma, **fields: int) -> tuple[int, list[int]]:
    answer, events = ask(agent, METHOD_SET, w.PORT_INFO, 1, port_info(**fields))
    return answer.status, events


def test_node_info_at_the_offsets_drivers_read() -> None:
    answer, _ = ask(agent(), METHOD_GET, w.NODE_INFO)
    data = answer.data
    assert int.from_bytes(data[4:12], "big") == BOARD.system_image_guid
    assert int.from_bytes(data[12:20], "big") == BOARD.node_guid
    assert int.from_bytes(data[28:30], "big") == 128
    assert int.from_bytes(data[36:40], "big") & 0xFFFF == 0x02C9
    assert NodeInfo.from_bytes(data).num_ports == 2


def test_port_info_at_the_offsets_drivers_read() -> None:
    data = ask(agent(), METHOD_GET, w.PORT_INFO, 1)[0].data
    assert data[31] == 2  # 4X
    assert data[32] & 15 == w.PORT_INIT
    assert data[33] >> 4 == w.PHYS_LINK_UP
    assert data[36] >> 4 == 5  # active MTU 4096
    assert data[37] >> 4 == 3  # four VLs
    assert data[41] & 15 == 5  # MTU cap 4096
    assert data[50] == 8  # GUID cap
    assert data[62] >> 4 == 2  # EDR
    mask = int.from_bytes(data[20:24], "big")
    assert mask >> 14 & 1
    assert mask >> 25 & 1


def test_description_guids_and_keys() -> None:
    card = agent()
    assert ask(card, METHOD_GET, w.NODE_DESCRIPTION)[0].data == b"card".ljust(64, b"\0")
    assert ask(card, METHOD_GET, w.GUID_INFO)[0].data[:16] == (0xA1).to_bytes(8, "big") + bytes(8)
    assert ask(card, METHOD_GET, w.P_KEY_TABLE)[0].data == b"\xff\xff" + bytes(62)
    assert ask(card, METHOD_GET, w.SL_TO_VL)[0].data[:8].hex() == "0123012301230123"
    assert ask(card, METHOD_GET, w.VL_ARBITRATION, 1 << 16)[0].data[:8].hex() == "0040014002400340"
    assert ask(card, METHOD_GET, w.VENDOR_DIAG)[0].status == 0


@pytest.mark.parametrize(
    ("attr_id", "modifier"),
    [
        (w.NODE_INFO, 1),
        (w.NODE_DESCRIPTION, 1),
        (w.GUID_INFO, 1),
        (w.P_KEY_TABLE, 4),
        (w.PORT_INFO, 3),
        (w.VL_ARBITRATION, 2 << 16),
    ],
)
def test_wrong_modifiers(attr_id: int, modifier: int) -> None:
    assert ask(agent(), METHOD_GET, attr_id, modifier)[0].status == INVALID


def test_unsupported_things_have_their_status() -> None:
    card = agent()
    assert ask(card, METHOD_GET, 0xFF91, 1)[0].status == 0x0C
    assert ask(card, METHOD_SET, w.NODE_INFO)[0].status == 0x0C, "a method and an attribute that do not go together"
    assert ask(card, METHOD_GET_TABLE, w.NODE_INFO)[0].status == 0x08
    assert card.handle(1, smp(METHOD_TRAP, w.NODE_INFO)) == (None, [])
    assert card.handle(1, smp(METHOD_SEND, w.NODE_INFO)) == (None, [])
    request = bytearray(smp(METHOD_GET, w.NODE_INFO))
    request[2] = 2
    reply, _ = card.handle(1, bytes(request))
    assert reply is not None
    assert Smp.from_bytes(reply).status == 0x04
    assert shown({}, card.counters_of) == {"smp_unsupported_attribute_0xff91": 1}
    # Whoever asks does not choose how many counters there are.
    for number in range(0x8000, 0x8100):
        ask(card, METHOD_GET, number)
    counted = shown({}, card.counters_of)
    most = SmpCountOf.UNSUPPORTED_ATTRIBUTE.most
    assert len(counted) == most + 1
    assert counted["smp_unsupported_attribute"] == 0x100 - (most - 1)


def test_a_manager_brings_the_port_up() -> None:
    card = Sma(BOARD)
    assert card.link_up(1, True) == [PortEvent(1, EVENT_INITIALIZED)]
    assert set_port(card) == (0, [EVENT_LID])
    assert set_port(card, port_state=w.PORT_ARMED) == (0, [])
    assert set_port(card, port_state=w.PORT_ACTIVE, client_reregister=1) == (
        0,
        [EVENT_CLIENT_REREGISTER, EVENT_ACTIVE],
    )
    port = card.port(1)
    assert (port.state, port.lid, port.sm_lid, port.mtu_bytes) == (w.PORT_ACTIVE, 5, 1, 4096)
    assert port.gid(0) == bytes.fromhex("fe8000000000000000000000000000a1")
    assert card.link_up(1, False) == [PortEvent(1, EVENT_DOWN)]
    assert card.link_up(1, False) == []
    assert port.state == w.PORT_DOWN


def test_the_order_to_register_is_echoed_once() -> None:
    card = agent()
    answer, _ = ask(card, METHOD_SET, w.PORT_INFO, 1, port_info(client_reregister=1))
    assert PortInfo.from_bytes(answer.data).client_reregister == 1
    answer, _ = ask(card, METHOD_GET, w.PORT_INFO, 1)
    assert PortInfo.from_bytes(answer.data).client_reregister == 0


def test_only_legal_transitions() -> None:
    card = agent()
    assert set_port(card, port_state=w.PORT_ACTIVE)[0] == INVALID
    assert set_port(card, port_state=w.PORT_INIT)[0] == INVALID
    assert card.port(1).lid == 0, "a refused Set changes nothing"
    assert set_port(card, port_state=w.PORT_ARMED) == (0, [EVENT_LID])
    assert set_port(card, port_state=w.PORT_ARMED) == (0, [])
    assert set_port(card, port_state=w.PORT_DOWN) == (0, [EVENT_DOWN])
    assert retrained(card) == [EVENT_INITIALIZED]
    assert set_port(card, port_state=w.PORT_ARMED) == (0, [])
    assert set_port(card, port_physical_state=w.PHYS_DISABLED) == (0, [EVENT_DOWN])
    assert card.port(1).info.port_physical_state == w.PHYS_DISABLED
    assert retrained(card) == []
    assert set_port(card, port_state=w.PORT_ARMED)[0] == INVALID
    assert set_port(card, port_physical_state=w.PHYS_POLLING) == (0, [])
    assert card.port(1).info.port_physical_state == w.PHYS_POLLING
    assert retrained(card) == [EVENT_INITIALIZED]


def retrained(card: Sma) -> list[int]:
    """Do with the cable what the port's owner does when a manager orders it; gives the events."""
    port = card.port(1)
    assert port.retrain
    port.retrain = False
    events = card.link_up(1, False)
    if not port.disabled:
        events += card.link_up(1, True)
    return [event.subtype for event in events]


def test_polling_takes_a_link_that_is_up_down_and_trains_it_anew() -> None:
    card = agent()
    set_port(card, port_state=w.PORT_ARMED)
    set_port(card, port_state=w.PORT_ACTIVE)
    assert set_port(card, port_physical_state=w.PHYS_POLLING) == (0, [EVENT_DOWN])
    assert (card.port(1).state, card.port(1).info.port_physical_state) == (w.PORT_DOWN, w.PHYS_POLLING)
    assert retrained(card) == [EVENT_INITIALIZED]
    assert set_port(card, port_state=w.PORT_NOP) == (0, [])
    assert not card.port(1).retrain


def test_a_power_cycle_forgets_that_a_port_was_disabled() -> None:
    card = agent()
    set_port(card, port_physical_state=w.PHYS_DISABLED)
    retrained(card)
    card.port(1).power_cycled()
    assert card.port(1).info.port_physical_state == w.PHYS_POLLING
    assert [event.subtype for event in card.link_up(1, True)] == [EVENT_INITIALIZED]


@pytest.mark.parametrize(
    "fields",
    [
        {"lid": 0},
        {"lid": 0xC000},
        {"sm_lid": 0},
        {"neighbor_mtu": 6},
        {"operational_vls": 4},
        {"link_width_enabled": 4},
        {"link_speed_enabled": 8},
        {"port_state": 5},
        {"port_physical_state": 4},
        {"port_physical_state": 2, "port_state": 3},
        {"link_down_default_state": 3},
    ],
)
def test_illegal_port_info(fields: dict[str, int]) -> None:
    assert set_port(agent(), **fields) == (INVALID, [])


def test_the_modifier_of_port_info_names_a_port_in_its_low_byte() -> None:
    card = agent()
    for modifier in (0x8000_0001, 0x0000_0101, 0x8000_0000, 1):
        assert ask(card, METHOD_SET, w.PORT_INFO, modifier, port_info())[0].status == 0
        answer, _ = ask(card, METHOD_GET, w.PORT_INFO, modifier)
        assert (answer.status, answer.attr_mod, PortInfo.from_bytes(answer.data).lid) == (0, modifier, 5)
    assert ask(card, METHOD_GET, w.PORT_INFO, 0x8000_0003)[0].status == INVALID


@pytest.mark.parametrize(
    ("modifier", "wanted", "status", "enabled"),
    [
        (0x8000_0001, 0, 0, w.SPEED_EXT_FDR | w.SPEED_EXT_EDR),
        (0x8000_0001, w.SPEED_EXT_FDR, 0, w.SPEED_EXT_FDR),
        (0x8000_0001, w.SPEED_EXT_NONE, 0, 0),
        (0x8000_0001, w.SPEED_EXT_ALL, 0, w.SPEED_EXT_FDR | w.SPEED_EXT_EDR),
        (0x8000_0001, 4, INVALID, w.SPEED_EXT_FDR | w.SPEED_EXT_EDR),
        # who does not know extended speeds cannot mean them
        (1, w.SPEED_EXT_FDR, 0, w.SPEED_EXT_FDR | w.SPEED_EXT_EDR),
        (1, 4, 0, w.SPEED_EXT_FDR | w.SPEED_EXT_EDR),
    ],
)
def test_extended_speeds_count_if_the_modifier_says_so(modifier: int, wanted: int, status: int, enabled: int) -> None:
    card = agent()
    answer, _ = ask(card, METHOD_SET, w.PORT_INFO, modifier, port_info(link_speed_ext_enabled=wanted))
    assert answer.status == status
    assert card.port(1).info.link_speed_ext_enabled == enabled


def test_the_vendors_extended_port_info() -> None:
    card = agent()

    def bits(answer: Smp) -> tuple[int, ...]:
        # where infiniband-diags and OpenSM look: the last byte of each of the first four words
        assert answer.status == 0
        return tuple(answer.data[3:16:4])

    assert bits(ask(card, METHOD_GET, w.MLNX_EXT_PORT_INFO, 1)[0]) == (0, 1, 1, 0)
    assert bits(ask(card, METHOD_GET, w.MLNX_EXT_PORT_INFO, 0)[0]) == (0, 1, 1, 0), "0 is the port of arrival"
    off = w.MlnxExtPortInfo(state_change_enable=1)
    assert bits(ask(card, METHOD_SET, w.MLNX_EXT_PORT_INFO, 1, off)[0]) == (0, 1, 0, 0)
    unchanged = w.MlnxExtPortInfo(link_speed_enabled=1)
    assert bits(ask(card, METHOD_SET, w.MLNX_EXT_PORT_INFO, 1, unchanged)[0]) == (0, 1, 0, 0)
    on = w.MlnxExtPortInfo(state_change_enable=1, link_speed_enabled=1)
    assert bits(ask(card, METHOD_SET, w.MLNX_EXT_PORT_INFO, 1, on)[0]) == (0, 1, 1, 0)
    for wrong in (w.MlnxExtPortInfo(state_change_enable=2), w.MlnxExtPortInfo(link_speed_enabled=3)):
        assert ask(card, METHOD_SET, w.MLNX_EXT_PORT_INFO, 1, wrong)[0].status == INVALID
    for method in (METHOD_GET, METHOD_SET):
        assert ask(card, method, w.MLNX_EXT_PORT_INFO, 3)[0].status == INVALID


def test_addresses_give_events() -> None:
    card = agent()
    set_port(card)
    assert set_port(card) == (0, [])
    assert set_port(card, sm_sl=3) == (0, [EVENT_LID])
    assert set_port(card, sm_sl=3, gid_prefix=7) == (0, [EVENT_GUID])
    assert set_port(card, sm_sl=3, gid_prefix=7, lmc=2, lid=4) == (0, [EVENT_LID])
    assert (card.port(1).lid, card.port(1).lmc) == (4, 2)
    keys = w.pack_words([0xFFFF, 0x8001])
    assert ask(card, METHOD_SET, w.P_KEY_TABLE, 0, keys)[1] == [EVENT_PKEY]
    assert ask(card, METHOD_SET, w.P_KEY_TABLE, 0, keys)[1] == []
    answer, events = ask(card, METHOD_SET, w.GUID_INFO, 0, w.pack_guids([9, 8]))
    assert (answer.data[:16], events) == (w.pack_guids([0xA1, 8]), [EVENT_GUID])
    assert ask(card, METHOD_SET, w.SL_TO_VL, 0, bytes(8))[0].data == bytes(64)
    assert ask(card, METHOD_SET, w.VL_ARBITRATION, 3 << 16, b"\1\2")[0].data[:4] == b"\1\2\0\0"


def test_mkey_levels_violations_and_lease() -> None:
    card = agent()
    set_port(card, mkey=0x99, mkey_protect_bits=1, mkey_lease_period=2)
    answer, _ = ask(card, METHOD_GET, w.PORT_INFO, 1)
    assert PortInfo.from_bytes(answer.data).mkey == 0
    answer, _ = ask(card, METHOD_GET, w.PORT_INFO, 1, mkey=0x99)
    assert PortInfo.from_bytes(answer.data).mkey == 0x99
    wrong = smp(METHOD_SET, w.P_KEY_TABLE, mkey=1)
    assert card.handle(1, wrong, now_ns=0) == (None, [])
    assert card.port(1).info.mkey_violations == 1
    reply, _ = card.handle(1, wrong, ignore_mkey=True)
    assert reply is not None
    card.port(1).info.mkey_protect_bits = 2
    read = smp(METHOD_GET, w.NODE_INFO, mkey=1)
    assert card.handle(1, read, now_ns=1_999_999_999)[0] is None
    assert card.handle(1, read, now_ns=2_000_000_000)[0] is not None, "the lease ran out"
    assert card.port(1).info.mkey_protect_bits == 0
    set_violations = port_info(mkey=0x99, mkey_lease_period=2)
    ask(card, METHOD_SET, w.PORT_INFO, 1, set_violations, mkey=0x99)
    assert card.port(1).info.mkey_violations == 0


def test_directed_route_reply_has_its_return_path() -> None:
    card = agent()
    reply, _ = card.handle(1, smp(METHOD_GET, w.NODE_INFO, directed=True))
    assert reply is not None
    answer = Smp.from_bytes(reply)
    assert (answer.status, answer.hop_pointer, answer.return_path[1]) == (0x8000, 1, 1)
    request = smp_packet(smp(METHOD_GET, w.NODE_INFO, directed=True), 0xFFFF, 0xFFFF)
    packet = packets.reply_packet(request, reply, 5)
    assert (packet.route.dlid, packet.route.slid, packet.route.vl, packet.dest_qp, packet.src_qp) == (
        0xFFFF,
        0xFFFF,
        15,
        0,
        0,
    )
    assert decode(encode(packet)) == packet


def test_directed_route_that_the_host_walked_or_that_goes_on() -> None:
    card = agent()
    request = Smp.from_bytes(smp(METHOD_GET, w.NODE_INFO, directed=True))
    request.hop_pointer = 2
    reply, _ = card.handle(1, request.to_bytes(), ignore_mkey=True)
    assert reply is not None
    assert Smp.from_bytes(reply).hop_pointer == 2
    request.hop_pointer = 0
    assert card.handle(1, request.to_bytes())[0] is None
    request.hop_pointer, request.hop_count = 64, 64
    assert card.handle(1, request.to_bytes())[0] is None
    assert card.counters[SmpCount.SMP_BAD_PATH] == 2


def test_lid_routed_and_qp1_replies_swap_addresses() -> None:
    mad = smp(METHOD_GET, w.NODE_INFO)
    packet = packets.reply_packet(smp_packet(mad, 5, 1, 9), mad, 5)
    assert (packet.route.dlid, packet.route.slid) == (1, 5)
    request = smp_packet(mad, 5, 1, 9)
    divert(request, sl=2)
    request.dest_qp, request.src_qp, request.pkey = 1, 0x44, 0x8001
    packet = packets.reply_packet(request, mad, 5)
    assert (packet.dest_qp, packet.src_qp, packet.qkey, packet.pkey, packet.route.sl) == (
        0x44,
        1,
        0x80010000,
        0x8001,
        2,
    )


def test_who_owns_what() -> None:
    assert sma.owns(smp(METHOD_GET, w.PORT_INFO, directed=True))
    assert sma.owns(smp(METHOD_TRAP_REPRESS, 2))
    assert sma.owns(smp(METHOD_GET_TABLE, w.PORT_INFO)), "to say that there is no such method"
    assert not sma.owns(smp(METHOD_GET, w.SM_INFO))
    assert not sma.owns(smp(METHOD_TRAP, 2))
    assert not sma.owns(smp(0x81, w.PORT_INFO))
    assert not sma.owns(bytes(10))
    returning = bytearray(smp(METHOD_GET, w.PORT_INFO, directed=True))
    returning[4] |= 0x80
    assert not sma.owns(bytes(returning))


def test_host_changes_give_traps_once_there_is_a_manager() -> None:
    card = agent()
    port = card.port(1)
    card.set_capability_mask(1, 0x02010048)
    assert card.traps(port, 0) == []
    set_port(card, port_state=w.PORT_ARMED)
    card.set_capability_mask(1, 0x02000048)
    (trap,) = card.traps(port, 0)
    smp_view = Smp.from_bytes(trap)
    notice = Notice.from_bytes(smp_view.data + bytes(16))
    assert (smp_view.method, notice.trap_number, notice.issuer_lid, notice.type) == (METHOD_TRAP, 144, 5, 4)
    assert notice.details[2:6].hex() == "00050000"
    assert notice.details[6:10].hex() == "02000048"
    packet = packets.trap_packet(port, trap)
    assert (packet.route.dlid, packet.route.slid) == (1, 5)
    card.set_node_description(b"renamed")
    card.set_node_description(b"renamed")
    (renamed,) = card.traps(port, 0)
    assert Smp.from_bytes(renamed).data[10 + 5] == 1, "LocalChanges"
    assert Smp.from_bytes(renamed).data[10 + 10 : 10 + 12].hex() == "0001"
    card.set_capability_mask(1, 0x02000048)
    assert card.traps(port, 0) == []
    assert ask(card, METHOD_GET, w.NODE_DESCRIPTION)[0].data == b"renamed".ljust(64, b"\0")


def test_no_reply_to_replies_and_strangers() -> None:
    card = agent()
    assert card.handle(1, smp(0x81, w.NODE_INFO)) == (None, [])
    assert card.handle(1, smp(METHOD_TRAP_REPRESS, 2)) == (None, [])
    assert card.handle(3, smp(METHOD_GET, w.NODE_INFO)) == (None, [])
    assert card.handle(1, bytes(255)) == (None, [])


@given(st.data())
def test_any_bytes_are_survived(data: st.DataObject) -> None:
    card = agent()
    head = data.draw(st.sampled_from([b"\1\1\1", b"\1\x81\1"])) + data.draw(st.sampled_from([b"\1", b"\2", b"\x81"]))
    attr = data.draw(st.sampled_from([*range(0x10, 0x32), w.MLNX_EXT_PORT_INFO])).to_bytes(2, "big")
    mad = head + data.draw(st.binary(min_size=12, max_size=12)) + attr + data.draw(st.binary(max_size=238))
    reply, _ = card.handle(1, mad.ljust(256, b"\0")[:256])
    assert reply is None or len(reply) == 256
    assert card.port(1).state in (1, 2, 3, 4)
