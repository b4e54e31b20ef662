"""A description per card: what a rack makes of it, and what a driver and a manager see of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmware.model.capabilities import BIT_SETS, GENERAL
from tests.support.driver import CommandFailed, Driver
from tests.unit.chip.test_commands import Bench
from vhca.chip.card import board_info, node_guid
from vhca.chip.rack import Rack, RackError
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.fabric import shapes
from vhca.fabric.fabric import DEFAULT_SWITCH_GUID
from vhca.management.link_speed import LinkSpeed
from vhca.pci.function import CONFIG_REGION
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.caps import CmdHcaCap
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.registers import RegisterId

OTHER = CardConfig(
    node_guid=0x0002C903000000A0,
    port_guid=0x0002C903000000B7,
    description="an older card",
    mtu=2048,
    device_id=0x1013,
    board_id="VHCA_OTHER",
    fw_version=(12, 28, 2006),
)


def plugged(config: CardConfig) -> Driver:
    """A driver with a card like this."""
    info = board_info("h0", config)
    driver = Driver(**{name: getattr(info, name) for name in info.__slots__})
    driver.probe()
    return driver


def test_each_card_of_a_rack_is_what_its_description_says(tmp_path: Path) -> None:
    rack = Rack([CardConfig(), OTHER], tmp_path)
    usual, other = rack.hcas
    assert (usual.node_guid, usual.info.port_guids) == (node_guid("h0"), (node_guid("h0") + 1,))
    assert (other.node_guid, other.info.port_guids) == (0x0002C903000000A0, (0x0002C903000000B7,))
    assert (usual.info.node_description, other.info.node_description) == ("h0", "an older card")
    ids = [card.function.region_read(CONFIG_REGION, 0, 4) for card in rack.hcas]
    assert ids == [bytes.fromhex("b3151b10"), bytes.fromhex("b3151310")]
    versions = [card.board.bar0.read(0, 4) for card in rack.hcas]
    assert versions == [bytes.fromhex("002b0014"), bytes.fromhex("001c000c")]
    rack.loop.close()


def test_a_number_of_cards_are_all_of_the_usual_kind(tmp_path: Path) -> None:
    rack = Rack(3, tmp_path)
    assert [card.config for card in rack.hcas] == [CardConfig()] * 3
    rack.loop.close()


def test_no_page_of_a_card_can_be_mapped(tmp_path: Path) -> None:
    """One would make each write of the driver's wait for its reply."""
    [card] = Rack(1, tmp_path).hcas
    assert card.function.regions[0].size
    assert all(region.mmap_fd == -1 for region in card.function.regions)


def test_a_driver_sees_what_the_description_says() -> None:
    driver = plugged(OTHER)
    answer = driver.run(Op.QUERY_ADAPTER, out_size=16 + cmd.QueryAdapterParamBlock.SIZE)
    adapter = cmd.QueryAdapterParamBlock.from_bytes(answer[16:])
    assert adapter.vsd_contd_psid.rstrip(b"\0") == b"VHCA_OTHER"
    driver.board.link_change(1, True)
    header = cmd.AccessRegisterIn(register_id=RegisterId.PMTU)
    size = registers.PmtuReg.SIZE
    answer = driver.run(Op.ACCESS_REG, header, registers.PmtuReg(local_port=1).to_bytes(), out_size=16 + size, op_mod=1)
    pmtu = registers.PmtuReg.from_bytes(answer[16:])
    assert (pmtu.max_mtu, pmtu.oper_mtu) == (2048, 2048)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"node_guid": 0}, "node_guid"),
        ({"port_guid": 1 << 64}, "port_guid"),
        ({"mtu": 1024}, "2048, 4096"),
        ({"device_id": 1 << 16}, "device_id"),
        ({"board_id": ""}, "board_id"),
        ({"board_id": "ORTSÜBLICH"}, "board_id"),
        ({"board_id": "SIXTEEN_LETTERS_"}, "board_id"),
        ({"description": "ü" * 33}, "description"),
        ({"fw_version": (20, 43, 1 << 16)}, "fw_version"),
    ],
)
def test_what_no_card_can_be_is_refused_where_it_is_written(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CardConfig(**fields)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (CardConfig(node_guid=node_guid("h0")), "h1: its node GUID 0x.* is that of h0"),
        (CardConfig(port_guid=node_guid("h0") + 1), "h1: its port GUID 0x.* is that of h0"),
        (CardConfig(node_guid=DEFAULT_SWITCH_GUID), "h1: its node GUID 0x0002c90000fab000 is that of the switch"),
        (CardConfig(capabilities={"log_max_qp": 19}), "h1: capability log_max_qp: 0x13 is more than .* 0x12"),
        (CardConfig(capabilities={"dct": -1}), "h1: capability dct"),
        (CardConfig(capabilities={"general_obj_types": 1}), "h1: capability general_obj_types"),
        (CardConfig(capabilities={"roce": 1}), "h1: capability roce: the program has none of that name"),
    ],
)
def test_what_does_not_fit_the_rack_or_the_program_is_refused(
    config: CardConfig, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(RackError, match=complaint):
        Rack([CardConfig(), config], tmp_path)


def test_a_card_has_less_than_its_program_offers() -> None:
    less = {"log_max_pd": 2, "cq_moderation": 0}
    driver = plugged(CardConfig(capabilities=less))
    for op_mod in (0, 1):
        block = driver.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=op_mod)
        told = CmdHcaCap.from_bytes(block[16:])
        assert {name: getattr(told, name) for name in less} == less
        assert told.log_max_qp == GENERAL["log_max_qp"]
    driver.board.reset("flr")
    driver.bar_write(0x10, driver.queue.to_bytes(8, "big"))
    driver.probe()
    for _ in range(4):
        driver.run(Op.ALLOC_PD)
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.ALLOC_PD)
    assert refused.value.status == Status.LIM_ERR


def _queue_pairs(driver: Driver) -> None:
    bench = Bench(driver)
    for _ in range(5):
        bench.qp()


def _completion_queues(driver: Driver) -> None:
    bench = Bench(driver)
    for _ in range(5):
        bench.cq()


def _keys(driver: Driver) -> None:
    bench = Bench(driver)
    for _ in range(5):
        driver.run(Op.CREATE_MKEY, bench.mkey_view(), driver.pages(driver.alloc(0x2000), 0x2000))


def _reserved_numbers(driver: Driver) -> None:
    driver.run(Op.CREATE_GENERAL_OBJECT, cmd.GeneralObjectIn(log_obj_range=5), op_mod=0x2C)


def _xrc_domains(driver: Driver) -> None:
    for _ in range(5):
        driver.run(Op.ALLOC_XRCD)


def _event_queues(driver: Driver) -> None:
    for _ in range(4):
        driver.create_eq(4, 0)


@pytest.mark.parametrize(
    ("capability", "value", "use"),
    [
        ("log_max_qp", 2, _queue_pairs),
        ("log_max_cq", 2, _completion_queues),
        ("log_max_mkey", 2, _keys),
        ("log_max_xrcd", 2, _xrc_domains),
        ("log_max_eq", 2, _event_queues),
        ("general_obj_types", 0, _reserved_numbers),
    ],
)
def test_the_program_refuses_what_the_card_does_not_have(
    capability: str, value: int, use: Callable[[Driver], None]
) -> None:
    use(plugged(CardConfig()))
    with pytest.raises(CommandFailed):
        use(plugged(CardConfig(capabilities={capability: value})))


def test_every_capability_of_the_program_can_be_given_as_it_is() -> None:
    assert GENERAL.keys() >= BIT_SETS
    assert plugged(CardConfig(capabilities=GENERAL)).board.objects()["pd"] == 0


@pytest.mark.parametrize(
    ("link", "width", "speed"),
    [
        (LinkSpeed(), 4, 0x20),
        (LinkSpeed(1, "SDR"), 1, 1),
        (LinkSpeed(12, "FDR"), 16, 0x10),
        (LinkSpeed(2, "NDR"), 2, 0x80),
    ],
)
def test_a_driver_reads_what_the_link_was_trained_at(link: LinkSpeed, width: int, speed: int) -> None:
    driver = plugged(CardConfig(link=link))
    ask = registers.PtysReg(local_port=1, proto_mask=1).to_bytes()
    header = cmd.AccessRegisterIn(register_id=RegisterId.PTYS)
    told = registers.PtysReg.from_bytes(driver.run(Op.ACCESS_REG, header, ask, out_size=16 + len(ask), op_mod=1)[16:])
    assert (told.ib_link_width_oper, told.ib_proto_oper) == (width, speed)
    assert told.ib_link_width_capability & width
    assert told.ib_proto_capability & speed


def test_the_ends_of_a_cable_agree_on_the_lower_of_what_both_can(tmp_path: Path) -> None:
    topology = shapes.star(1, 2, link=LinkSpeed(2, "HDR"))
    rack = Rack([CardConfig(), CardConfig(link=LinkSpeed(4, "NDR"))], tmp_path, RackConfig(topology=topology))
    assert [card.info.link for card in rack.hcas] == [LinkSpeed(2, "EDR"), LinkSpeed(2, "HDR")]
    rack.loop.close()
