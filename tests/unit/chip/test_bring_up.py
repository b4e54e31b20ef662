"""A driver's first commands, through BAR, queue entries and mailboxes of a real board."""

import pytest

from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.caps import CmdHcaCap
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.registers import PaosReg, RegisterId

COMMAND_EVENT = 1 << 0x0A


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_probe_reaches_an_initialized_card(driver: Driver) -> None:
    driver.probe()
    assert driver.uar >= 16
    assert driver.board.objects()["uar"] == 1


def test_versions_in_the_init_segment(driver: Driver) -> None:
    assert driver.bar_read(0x000) == bytes.fromhex("002b0014")
    assert driver.bar_read(0x004)[:2] == b"\x00\x05"
    # log of slots and stride survive the write of the queue address
    assert driver.bar_read(0x014)[3] == 0x56
    # not initializing; a driver may reset the card
    assert driver.bar_read(0x1FC) == bytes.fromhex("40000000")


def test_health_counter_and_timer_move_with_the_clock(driver: Driver) -> None:
    health, timer = driver.bar_read(0x1010), driver.bar_read(0x1000, 8)
    driver.clock.advance(20_000_000)
    assert driver.bar_read(0x1010) != health
    assert int.from_bytes(driver.bar_read(0x1000, 8), "big") - int.from_bytes(timer, "big") == 20_000_000


def test_current_capabilities_follow_what_the_driver_set(driver: Driver) -> None:
    driver.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
    block = driver.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=0)[16:]
    wanted = CmdHcaCap.from_bytes(block)
    wanted.log_max_qp = 12
    request = cmd.SetHcaCapIn()
    request.capability = wanted.to_bytes()
    driver.run(Op.SET_HCA_CAP, request)
    current = driver.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=1)[16:]
    assert CmdHcaCap.from_bytes(current).log_max_qp == 12
    wanted.log_max_qp = 30
    request.capability = wanted.to_bytes()
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.SET_HCA_CAP, request)
    assert refused.value.status == Status.BAD_PARAM


def test_commands_complete_by_event_once_their_queue_is_there(driver: Driver) -> None:
    driver.probe()
    _, buffer = driver.create_eq(7, COMMAND_EVENT)
    # its own creation was polled: no entry, no interrupt
    assert driver.memory.read(buffer, 64)[0x3F] == 1
    assert driver.irqs == []
    driver.bar_write(driver.uar * 4096 + 0x40, (1 << 24).to_bytes(4, "big"))
    addr = driver.post(bytes((0x08, 0x0D)) + bytes(14), 16, slot=3)
    assert driver.memory.read(addr + 0x3F, 1) == b"\0"
    entry = driver.memory.read(buffer, 64)
    assert (entry[1], entry[0x3F], entry[0x20:0x24]) == (0x0A, 0, bytes((0, 0, 0, 8)))
    assert driver.irqs == [0]


def test_an_unarmed_queue_raises_nothing_and_arming_late_fires_at_once(driver: Driver) -> None:
    driver.probe()
    number, _ = driver.create_eq(7, COMMAND_EVENT)
    driver.post(bytes((0x08, 0x0D)) + bytes(14), 16)
    assert driver.irqs == []
    driver.bar_write(driver.uar * 4096 + 0x40, (number << 24).to_bytes(4, "big"))
    assert driver.irqs == [0]
    # armed with everything consumed: nothing
    driver.bar_write(driver.uar * 4096 + 0x40, (number << 24 | 1).to_bytes(4, "big"))
    assert driver.irqs == [0]


@pytest.mark.parametrize(
    ("offset", "value", "status"),
    [
        pytest.param(0x00, b"\x01", 0x10, id="transport type"),
        pytest.param(0x04, bytes(4), 7, id="input length"),
        pytest.param(0x38, bytes(4), 8, id="output length"),
        pytest.param(0x3C, b"\x01", 2, id="token"),
        pytest.param(0x08, (0x1001).to_bytes(8, "big"), 5, id="input pointer"),
        pytest.param(0x30, (0x1001).to_bytes(8, "big"), 4, id="output pointer"),
    ],
)
def test_a_malformed_entry_gets_its_delivery_status(driver: Driver, offset: int, value: bytes, status: int) -> None:
    addr = driver.queue
    view = cmd.SetHcaCapIn()
    driver.post(view.to_bytes(), 0x1010)
    entry = bytearray(driver.memory.read(addr, 64))
    entry[offset : offset + len(value)] = value
    entry[0x3F] = 1
    driver.memory.write(addr, entry)
    driver.bar_write(0x18, bytes((0, 0, 0, 1)))
    assert driver.memory.read(addr + 0x3F, 1)[0] == status << 1
    assert driver.board.counters()["commands_malformed"] == 1


def test_unknown_opcode_and_short_buffers_are_refused_with_status(driver: Driver) -> None:
    assert driver.raw(bytes.fromhex("0bad") + bytes(14))[0] == Status.BAD_OP
    assert driver.raw(bytes.fromhex("0301") + bytes(14))[0] == Status.BAD_INP_LEN
    assert driver.raw(bytes.fromhex("0101") + bytes(14), 16)[0] == Status.BAD_OUTP_LEN


def test_destroy_of_a_queue_in_use_is_refused(driver: Driver) -> None:
    driver.probe()
    eqn, _ = driver.create_eq(4, 0, vector=1)
    view = cmd.CreateCqIn()
    view.cq_context.log_cq_size = 4
    view.cq_context.c_eqn_or_apu_element = eqn
    out = driver.run(Op.CREATE_CQ, view, driver.pages(driver.alloc(1024), 1024))
    destroy = cmd.DestroyEqIn()
    destroy.eq_number = eqn
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.DESTROY_EQ, destroy)
    assert refused.value.status == Status.BAD_RES_STATE
    destroy_cq = cmd.DestroyCqIn()
    destroy_cq.cqn = cmd.CreateCqOut.from_bytes(out).cqn
    driver.run(Op.DESTROY_CQ, destroy_cq)
    driver.run(Op.DESTROY_EQ, destroy)
    assert driver.board.objects()["eq"] == 0


def test_enable_clears_what_a_vanished_driver_left(driver: Driver) -> None:
    driver.probe()
    driver.create_eq(4, 0)
    driver.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
    assert not any(driver.board.objects().values())


def test_teardown_with_objects_left_counts_the_leak(driver: Driver) -> None:
    driver.probe()
    driver.create_eq(4, 0)
    driver.run(Op.TEARDOWN_HCA, cmd.TeardownHcaIn())
    assert driver.board.counters()["leaked_objects"] == 2


def test_a_failing_firmware_stops_its_card_and_tells_the_host(driver: Driver) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    driver.board.firmware.handle = fail  # type: ignore[method-assign, assignment]
    driver.post(bytes((0x08, 0x0D)) + bytes(14), 16)
    assert driver.board.dead
    assert driver.bar_read(0x23C)[1] != 0
    health = driver.bar_read(0x1010)
    driver.clock.advance(10**9)
    assert driver.bar_read(0x1010) == health
    driver.board.reset("device")
    assert not driver.board.dead
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    driver.probe()


def interface(driver: Driver) -> int:
    """The nic_interface field as the driver's health poll reads it."""
    return driver.bar_read(0x014)[2] & 7


@pytest.mark.parametrize("reason", ["device", "flr", "lost_connection"])
def test_after_any_reset_the_interface_is_disabled_until_a_driver_gives_a_queue(driver: Driver, reason: str) -> None:
    driver.probe()
    assert interface(driver) == 0
    driver.board.reset(reason)
    assert interface(driver) == 1
    # a doorbell of the driver that has not noticed moves nothing
    driver.bar_write(0x18, bytes.fromhex("00000001"))
    assert not any(driver.board.objects().values())
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    assert interface(driver) == 0
    driver.probe()


def test_the_driver_resets_a_card_whose_firmware_has_failed(driver: Driver) -> None:
    driver.probe()
    driver.board.link_change(1, True)

    def fail(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    driver.board.firmware.handle = fail  # type: ignore[method-assign, assignment]
    driver.post(bytes((0x08, 0x0D)) + bytes(14), 16)
    assert driver.board.dead
    # syndrome and "reset required" make it fatal; the driver keeps the queue's address in the write that resets
    driver.bar_write(0x14, (driver.queue & 0xFFFFF000 | 7 << 8).to_bytes(4, "big"))
    assert not driver.board.dead
    assert interface(driver) == 1
    assert driver.bar_read(0x238) == driver.bar_read(0x23C) == bytes(4)
    driver.bar_write(0x10, (driver.queue >> 32).to_bytes(4, "big"))
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    driver.probe()
    # the link is trained again, as after a function level reset
    driver.run_deferred()
    assert not driver.cable.enabled
    driver.clock.advance(2_000_000_000)
    driver.board.run_timers(driver.clock.now_ns())
    driver.run_deferred()
    assert driver.cable.enabled


def test_the_host_switches_the_link_off_and_a_reset_switches_it_on(driver: Driver) -> None:
    driver.probe()
    driver.board.link_change(1, True)
    register = PaosReg(local_port=1, admin_status=2, ase=1)
    header = cmd.AccessRegisterIn(register_id=RegisterId.PAOS)
    out = driver.run(Op.ACCESS_REG, header, register.to_bytes(), out_size=32, op_mod=0)
    assert PaosReg.from_bytes(out, 16).admin_status == 2
    driver.run_deferred()
    assert not driver.cable.enabled
    # without "admin state enable" the register only tells
    asked = driver.run(Op.ACCESS_REG, header, PaosReg(local_port=1).to_bytes(), out_size=32, op_mod=0)
    assert PaosReg.from_bytes(asked, 16).admin_status == 2
    driver.board.reset("device")
    driver.run_deferred()
    assert driver.cable.enabled


def test_short_inputs_of_commands_that_grew_are_filled_with_zeros(driver: Driver) -> None:
    driver.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
    assert driver.raw(bytes.fromhex("0102") + bytes(14))[0] == Status.OK


def test_a_function_level_reset_trains_the_link_again(driver: Driver) -> None:
    driver.board.reset("flr")
    driver.run_deferred()
    assert not driver.cable.enabled
    deadline = driver.board.next_deadline()
    assert deadline == driver.clock.now_ns() + 2_000_000_000
    driver.clock.advance(2_000_000_000)
    driver.board.run_timers(driver.clock.now_ns())
    driver.run_deferred()
    assert driver.cable.enabled
