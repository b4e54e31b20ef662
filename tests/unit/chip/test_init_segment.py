"""The initialization segment obeys its table: what the host may write, what firmware may set, what is left alone."""

import pytest

from vhca.chip.init_segment import InitSegment
from vhca.hw.hardware import BoardInfo
from vhca.layout import LayoutError
from vhca.sim.clock import VirtualClock
from vhca.wire.connectx.init_segment import BY_NAME, REGISTERS, HealthBuffer, HealthSyndrome, NicInterface, Register


class Host:
    """A segment and what it called back with."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []
        self.segment = InitSegment(
            BoardInfo(node_guid=1, system_image_guid=1, port_guids=(2,)),
            VirtualClock(),
            on_queue_address=lambda address: self.said.append(("queue", address)),
            on_interface=lambda state: self.said.append(("interface", state)),
            on_doorbell=lambda mask: self.said.append(("doorbell", mask)),
        )

    def read(self, name: str) -> int:
        register = BY_NAME[name]
        return int.from_bytes(self.segment.read(register.offset, register.width), "big")

    def write(self, name: str, value: int) -> None:
        self.segment.write(BY_NAME[name].offset, value.to_bytes(4, "big"))


@pytest.mark.parametrize("register", REGISTERS, ids=lambda register: register.name)
@pytest.mark.parametrize("value", [0, 0xFFFFFFFF, 0xA5A5A5A5])
def test_a_write_changes_the_writable_bits_alone(register: Register, value: int) -> None:
    host = Host()
    for at in range(register.offset, register.offset + register.width, 4):
        before = host.segment.read(at, 4)
        host.segment.write(at, value.to_bytes(4, "big"))
        kept = int.from_bytes(before, "big")
        stored = value & register.writable | kept & ~register.writable if register.access == "rw" else kept
        assert host.segment.read(at, 4) == stored.to_bytes(4, "big")
    assert host.segment.ignored_writes == (0 if register.writable else register.width // 4)


def test_where_no_register_is_nothing_is_kept() -> None:
    host = Host()
    at = BY_NAME["cmd_dbell"].offset + 4
    host.segment.write(at, b"lost")
    assert host.segment.read(at, 4) == bytes(4)
    assert (host.segment.ignored_writes, host.said) == (1, [])


def test_the_queue_address_says_what_the_driver_is() -> None:
    host = Host()
    host.write("cmdq_addr_h", 0x12)
    assert host.said == []
    host.write("cmdq_addr_l_sz", 0x3456_7000)
    assert host.said == [("queue", 0x12_3456_7000), ("interface", NicInterface.FULL_DRIVER)]
    # the sizes are the card's
    assert host.read("cmdq_addr_l_sz") == 0x3456_7000 | 5 << 4 | 6
    host.write("cmdq_addr_l_sz", 0x3456_7000)
    assert host.said[2:] == [("queue", 0x12_3456_7000)]
    host.write("cmd_dbell", 0x8000_0001)
    assert host.said[3:] == [("doorbell", 0x8000_0001)]


def test_health_is_set_by_the_names_of_its_layout() -> None:
    host = Host()
    versions = HealthBuffer.from_bytes(host.segment.read(0x200, 64))
    host.segment.set_health(synd=HealthSyndrome.FIRMWARE_ERROR, rfr=1)
    health = HealthBuffer.from_bytes(host.segment.read(0x200, 64))
    assert (health.synd, health.rfr) == (1, 1)
    assert (health.fw_ver, health.hw_id) == (versions.fw_ver, versions.hw_id) != (0, 0)
    with pytest.raises(LayoutError, match="sindrome"):
        host.segment.set_health(sindrome=1)
    with pytest.raises(ValueError, match="8 bits"):
        host.segment.set_health(synd=256)
