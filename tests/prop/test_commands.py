"""Any bytes as a command: a status every time, never a stopped card, and a ledger that still adds up."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware.commands import COMMANDS
from tests.support.driver import Driver
from vhca.wire.connectx.cmd import Op, Status

STATUSES = {int(status) for status in Status}
# Small numbers hit objects that exist; the rest hits none.
HANDLES = st.one_of(st.integers(0, 80), st.integers(0, (1 << 24) - 1))


@st.composite
def command(draw: st.DrawFn) -> bytes:
    op = draw(st.one_of(st.sampled_from(sorted(COMMANDS)), st.sampled_from([int(op) for op in Op])))
    entry = COMMANDS.get(op)
    size = entry.layout.SIZE if entry else 16
    body = bytearray(draw(st.binary(min_size=size, max_size=size + 64)))
    if draw(st.booleans()):
        body[:] = bytes(len(body))
    body[0:2] = op.to_bytes(2, "big")
    body[2:4] = bytes(2)
    body[4:8] = draw(st.integers(0, 3)).to_bytes(4, "big")
    body[8:12] = draw(HANDLES).to_bytes(4, "big")
    if entry and draw(st.booleans()):
        for field in draw(st.lists(st.sampled_from(entry.layout.fields()), max_size=6)):
            if field.offset >= 12:
                at = field.offset
                body[at : at + 4] = draw(HANDLES).to_bytes(4, "big")
    return bytes(body)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(command(), min_size=1, max_size=12), st.sampled_from([8, 16, 0x100, 0x1010]))
def test_any_command_gets_a_status(commands: list[bytes], out_size: int) -> None:
    driver = Driver(memory_bytes=4 << 20)
    driver.probe()
    driver.create_eq(4, 0, vector=1)
    for data in commands:
        output = driver.raw(data, max(out_size, 16))
        assert not driver.board.dead
        assert output[0] in STATUSES
        assert all(count >= 0 for count in driver.board.objects().values())


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=64, max_size=64), st.integers(0, 31))
def test_any_queue_entry_is_survived(entry: bytes, slot: int) -> None:
    driver = Driver(memory_bytes=4 << 20)
    driver.memory.write(driver.queue + slot * 64, entry)
    driver.bar_write(0x18, (1 << slot).to_bytes(4, "big"))
    assert not driver.board.dead


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, (32 << 20) - 8), st.binary(min_size=1, max_size=8)), max_size=30))
def test_any_bar_write_is_survived(writes: list[tuple[int, bytes]]) -> None:
    driver = Driver(memory_bytes=4 << 20)
    driver.probe()
    for offset, data in writes:
        driver.bar_write(offset, data)
        driver.bar_write(driver.uar * 4096 + (offset & 0xFFF), data)
    assert not driver.board.dead
