"""Commands and doorbells that ask for too much, or for what belongs to others."""

import pytest

from tests.support.driver import CommandFailed, Driver
from vhca.chip.board import TURN_NS
from vhca.chip.command_queue import BLOCKS_PER_PIECE
from vhca.hw.effects import Loopback
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.packet import Packet, Route


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


@pytest.mark.parametrize(("mode", "octwords"), [(1, 0xFFFFFFFF), (1, (1 << 22) + 1), (2, (1 << 16) + 1)])
def test_a_key_cannot_reserve_all_memory(driver: Driver, mode: int, octwords: int) -> None:
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    view = cmd.CreateMkeyIn()
    context = view.memory_key_mkey_entry
    context.pd, context.access_mode_1_0, context.free, context.umr_en = pd, mode, 1, 1
    context.translations_octword_size = octwords
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.CREATE_MKEY, view)
    assert refused.value.status == Status.LIM_ERR


def test_event_queues_listen_to_their_own_page_only(driver: Driver) -> None:
    number, _ = driver.create_eq(4, 1 << 0x0A)
    other = cmd.AllocUarOut.from_bytes(driver.run(Op.ALLOC_UAR)).uar
    driver.bar_write(other * 4096 + 0x40, (number << 24).to_bytes(4, "big"))
    assert driver.board.counters()["eq_doorbell_unknown"] == 1
    assert driver.irqs == []
    driver.bar_write(driver.uar * 4096 + 0x40, (number << 24).to_bytes(4, "big"))
    assert driver.irqs == [0]


def test_a_driver_name_cannot_write_lines_of_its_own_into_the_log(driver: Driver) -> None:
    view = cmd.SetDriverVersionIn(driver_version=b"Linux\n  1.000 reset reason=fake\x1b[31m".ljust(64, b"\0"))
    driver.run(Op.SET_DRIVER_VERSION, view)
    (line,) = [line for line in driver.board.ring if "driver" in line.split()[1]]
    assert line.isprintable()


class StoppedClock:
    """Every look at it finds the time of a turn used up."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        self.now += TURN_NS
        return self.now


def test_a_row_of_commands_is_run_one_a_turn_when_time_is_short(driver: Driver) -> None:
    driver.at_once = False
    driver.board._clock = StoppedClock()
    entries = []
    for slot in range(4):
        entry = bytearray(64)
        entry[0], entry[7], entry[0x3B], entry[0x3F] = 7, 16, 16, 1
        entry[16:18] = int(Op.NOP).to_bytes(2, "big")
        driver.memory.write(driver.queue + slot * 64, entry)
        entries.append(driver.queue + slot * 64 + 0x3F)
    driver.bar_write(0x18, bytes((0, 0, 0, 0xF)))
    for done in range(4):
        assert [driver.memory.read(at, 1)[0] for at in entries] == [0] * done + [1] * (4 - done)
        driver.later.pop(0)()  # type: ignore[operator]
    assert [driver.memory.read(at, 1)[0] for at in entries] == [0, 0, 0, 0]
    assert not driver.later


def test_the_mailboxes_of_a_long_command_are_fetched_in_pieces(driver: Driver) -> None:
    driver.at_once = False
    driver.board._clock = StoppedClock()
    blocks = 4 * BLOCKS_PER_PIECE
    data = bytes.fromhex("0bad").ljust(16 + blocks * 512, b"\0")
    entry = driver.post(data, 16)
    turns = 0
    while driver.memory.read(entry + 0x3F, 1)[0]:
        driver.later.pop(0)()  # type: ignore[operator]
        turns += 1
    assert turns == 5
    assert driver.memory.read(entry + 0x20, 1)[0] == Status.BAD_OP


def test_a_queue_that_moves_while_a_command_is_fetched_forgets_the_command(driver: Driver) -> None:
    driver.at_once = False
    driver.board._clock = StoppedClock()
    driver.post(bytes.fromhex("0bad").ljust(16 + 3 * BLOCKS_PER_PIECE * 512, b"\0"), 16)
    driver.later.pop(0)()  # type: ignore[operator]
    driver.bar_write(0x14, (driver.queue & 0xFFFFFFFF).to_bytes(4, "big"))
    driver.run_deferred()
    driver.board._clock = driver.clock
    driver.at_once = True
    assert driver.memory.read(driver.queue + 0x3F, 1)[0] == 1
    assert driver.raw(bytes.fromhex("0bad") + bytes(14))[0] == Status.BAD_OP


def test_malformed_commands_do_not_fill_the_log(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        driver.memory.write(driver.queue, b"\xff" * 64)
        driver.bar_write(0x18, bytes((0, 0, 0, 1)))
    assert 20 <= sum("refused" in record.message for record in caplog.records) <= 24
    assert driver.board.counters()["commands_malformed"] == 100


def test_packets_of_a_card_to_itself_take_turns(driver: Driver) -> None:
    packet = Packet(route=Route(1, 1), service=0, op=0, dest_qp=0x99, psn=0)
    driver.at_once = False
    driver.board.execute([Loopback(1, packet)] * 50)
    assert len(driver.later) == 1
    driver.run_deferred()
    assert driver.board.counters()["rx_drop_port_inactive"] == 50
    driver.board.execute([Loopback(1, packet)])
    driver.board.reset("test")
    driver.run_deferred()
    assert driver.board.counters()["rx_drop_port_inactive"] == 50


def test_device_memory_does_not_show_what_an_earlier_owner_left(driver: Driver) -> None:
    caps = driver.board.firmware.hca.capabilities.device_memory  # type: ignore[attr-defined]
    start = caps.memic_bar_start_addr
    view = cmd.AllocMemicIn(memic_size=64, range_start_addr=start, range_size=4096)
    driver.run(Op.ALLOC_MEMIC, view, out_size=cmd.AllocMemicOut.SIZE)
    driver.bar_write(start, b"a secret")
    driver.run(Op.DEALLOC_MEMIC, cmd.DeallocMemicIn(memic_start_addr=start, memic_size=64))
    driver.run(Op.ALLOC_MEMIC, view, out_size=cmd.AllocMemicOut.SIZE)
    assert driver.bar_read(start, 8) == bytes(8)


@pytest.mark.parametrize("mode", [0, 5])
def test_a_program_cannot_name_bus_addresses_or_device_memory(driver: Driver, mode: int) -> None:
    start = driver.board.info.device_memory_start
    piece = cmd.AllocMemicIn(memic_size=64, range_start_addr=start, range_size=4096)
    driver.run(Op.ALLOC_MEMIC, piece, out_size=cmd.AllocMemicOut.SIZE)
    uid = cmd.CreateUctxOut.from_bytes(driver.run(Op.CREATE_UCTX, cmd.CreateUctxIn())).uid
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD, cmd.BareIn(uid=uid))).pd
    view = cmd.CreateMkeyIn(uid=uid, mkey_umem_valid=int(mode == 5))
    context = view.memory_key_mkey_entry
    context.access_mode_4_2, context.access_mode_1_0 = mode >> 2, mode & 3
    context.pd, context.start_addr, context.len, context.lr = pd, start, 64, 1
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.CREATE_MKEY, view)
    assert refused.value.status == Status.BAD_PARAM
    view.uid = 0
    driver.run(Op.CREATE_MKEY, view)
