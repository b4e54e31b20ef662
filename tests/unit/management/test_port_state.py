"""Speeds that PortInfo has no code for, and those of its extended fields, at ports of every kind."""

import pytest

from firmware.mads.sma import Sma
from tests.support.driver import Driver
from tests.unit.mads.smps import port_info
from tests.unit.mads.smps import smp as smp_request
from vhca.hw.hardware import BoardInfo
from vhca.management.link_speed import LinkSpeed
from vhca.wire import smp
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.registers import RegisterId
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.notices import LocalChangeDetails
from vhca.wire.smp import MlnxExtPortInfo, PortInfo


def card(link: LinkSpeed) -> Sma:
    sma = Sma(BoardInfo(1, 1, (0xA1,), link=link))
    sma.link_up(1, True)
    return sma


def ask(sma: Sma, attr: int, method: int = METHOD_GET, modifier: int = 1, data: bytes = b"", **more: bool) -> Smp:
    reply, _ = sma.handle(1, smp_request(method, attr, modifier, data), **more)
    assert reply is not None
    return Smp.from_bytes(reply)


@pytest.mark.parametrize(
    ("speed", "basic", "extended", "second", "vendors", "mask2"),
    [
        ("QDR", 4, 0, 0, 0, 0),
        ("FDR10", 4, 0, 0, 1, 0),
        ("EDR", 4, 2, 0, 0, 0),
        ("HDR", 4, 4, 0, 0, 0x20),
        ("NDR", 4, 8, 0, 0, 0x420),
        ("XDR", 4, 0, 1, 0, 0x1C20),
    ],
)
def test_a_port_tells_its_speed_in_the_field_that_has_it(
    speed: str, basic: int, extended: int, second: int, vendors: int, mask2: int
) -> None:
    sma = card(LinkSpeed(4, speed))
    info = PortInfo.from_bytes(ask(sma, smp.PORT_INFO).data)
    assert (info.link_speed_active, info.link_speed_ext_active, info.link_speed_ext_active2) == (
        basic,
        extended,
        second,
    )
    assert info.capability_mask2 == mask2
    assert info.link_speed_ext_supported2 == info.link_speed_ext_enabled2 == second
    assert MlnxExtPortInfo.from_bytes(ask(sma, smp.MLNX_EXT_PORT_INFO).data).link_speed_active == vendors


def test_the_second_extended_speeds_are_enabled_only_if_supported_and_known_to_the_sender() -> None:
    for speed, modifier, status in (("XDR", 1 << 31 | 1, 0), ("NDR", 1 << 31 | 1, 0x1C), ("NDR", 1, 0)):
        sma = card(LinkSpeed(4, speed))
        wanted = port_info(link_speed_ext_enabled2=1).to_bytes()
        assert ask(sma, smp.PORT_INFO, METHOD_SET, modifier, wanted).status == status
        assert sma.port(1).info.link_speed_ext_enabled2 == (speed == "XDR")


def test_the_driver_reads_the_same_speed() -> None:
    driver = Driver(link=LinkSpeed(4, "XDR"))
    driver.probe()
    header = cmd.AccessRegisterIn(register_id=RegisterId.PTYS)
    data = registers.PtysReg(local_port=1).to_bytes()
    answer = driver.run(Op.ACCESS_REG, header, data, out_size=16 + registers.PtysReg.SIZE, op_mod=1)[16:]
    assert registers.PtysReg.from_bytes(answer).ib_proto_oper == 1 << 8


def test_a_host_that_enables_other_widths_and_speeds_tells_the_manager() -> None:
    sma = card(LinkSpeed())
    port = sma.port(1)
    ask(sma, smp.PORT_INFO, METHOD_SET, 1, port_info(port_state=smp.PORT_ARMED).to_bytes())
    assert sma.traps(port, 0) == [], "what a manager changes it knows"
    ask(sma, smp.PORT_INFO, METHOD_SET, 1, port_info(link_width_enabled=1).to_bytes())
    assert sma.traps(port, 0) == []
    ask(sma, smp.PORT_INFO, METHOD_SET, 1, port_info(link_width_enabled=3).to_bytes(), ignore_mkey=True)
    ask(sma, smp.PORT_INFO, METHOD_SET, 1, port_info(link_speed_enabled=1).to_bytes(), ignore_mkey=True)
    told = [LocalChangeDetails.from_bytes(Smp.from_bytes(trap).data) for trap in sma.traps(port, 0)]
    assert [(details.local_changes, details.change_flags) for details in told] == [(1, 2), (1, 4)]
