"""Any bytes as a command: a status every time, never a stopped card, and a ledger that still adds up."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware.commands import COMMANDS
from tests.support.driver import Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import DeliveryStatus, Op, Status

STATUSES = {int(status) for status in Status} - {Status.INTERNAL_ERR}
DELIVERY = {int(status) for status in DeliveryStatus}
MEMORY_BYTES = 4 << 20
RELAXED = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
# Small numbers hit objects that exist; the rest hits none.
HANDLES = st.one_of(st.integers(0, 80), st.integers(0, (1 << 24) - 1))
WORDS = st.one_of(HANDLES, st.integers(0, (1 << 32) - 1), st.sampled_from([1 << bit for bit in range(32)]))
# Page list entries: in memory, outside of it, at the end of the address space.
ADDRESSES = st.one_of(
    st.integers(0, MEMORY_BYTES >> 12).map(lambda page: page << 12),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([(1 << 64) - 4096, (1 << 64) - 1, 1 << 63]),
)
UIDS = st.sampled_from([0, 0, 0, 1, 2, 0xFFFF])


@st.composite
def command(draw: st.DrawFn) -> bytes:
    op = draw(st.one_of(st.sampled_from(sorted(COMMANDS)), st.sampled_from([int(op) for op in Op])))
    entry = COMMANDS.get(op)
    size = entry.layout.SIZE if entry else 16
    body = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if draw(st.booleans()):
        body[:] = bytes(len(body))
    body[0:2] = op.to_bytes(2, "big")
    body[2:4] = draw(UIDS).to_bytes(2, "big")
    body[4:8] = draw(st.integers(0, 3)).to_bytes(4, "big")
    body[8:12] = draw(HANDLES).to_bytes(4, "big")
    if entry and draw(st.booleans()):
        for at in draw(st.lists(st.integers(3, size // 4 - 1), max_size=8)):
            body[at * 4 : at * 4 + 4] = draw(WORDS).to_bytes(4, "big")
    body += b"".join(address.to_bytes(8, "big") for address in draw(st.lists(ADDRESSES, max_size=8)))
    # One may be cut short anywhere behind its header.
    return bytes(body[: draw(st.one_of(st.just(len(body)), st.integers(8, len(body))))])


@RELAXED
@given(st.lists(command(), min_size=1, max_size=12), st.sampled_from([8, 16, 0x100, 0x1010, 0x2000]))
def test_any_command_gets_a_status(commands: list[bytes], out_size: int) -> None:
    driver = Driver(memory_bytes=MEMORY_BYTES)
    driver.probe()
    driver.create_eq(4, 0, vector=1)
    for data in commands:
        output = driver.raw(data, max(out_size, 16))
        assert not driver.board.dead
        assert output[0] in STATUSES
        # Whoever is refused is told why; whoever is not must not see a syndrome.
        assert bool(output[0]) == any(output[4:8])
        assert all(count >= 0 for count in driver.board.objects().values())
    driver.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
    assert not any(driver.board.objects().values())


@st.composite
def queue_entry(draw: st.DrawFn) -> bytes:
    """An entry of any bytes, or one that begins like an entry."""
    raw = bytearray(draw(st.binary(min_size=64, max_size=64)))
    if draw(st.booleans()):
        raw[0] = 7
        raw[4:8] = draw(st.sampled_from([0, 8, 16, 17, 528, 1 << 24, (1 << 32) - 1])).to_bytes(4, "big")
        raw[8:16] = draw(ADDRESSES).to_bytes(8, "big")
        raw[0x30:0x38] = draw(ADDRESSES).to_bytes(8, "big")
        raw[0x38:0x3C] = draw(st.sampled_from([0, 8, 16, 17, 528, 1 << 20, (1 << 32) - 1])).to_bytes(4, "big")
        raw[0x3F] = 1
    return bytes(raw)


@settings(max_examples=200)
@given(queue_entry(), st.integers(0, 31))
def test_any_queue_entry_is_handed_back_or_left_alone(entry: bytes, slot: int) -> None:
    driver = Driver(memory_bytes=MEMORY_BYTES)
    addr = driver.queue + slot * 64
    driver.memory.write(addr, entry)
    driver.bar_write(0x18, (1 << slot).to_bytes(4, "big"))
    assert not driver.board.dead
    left = driver.memory.read(addr, 64)
    if entry[0x3F] & 1:
        assert not left[0x3F] & 1
        assert left[0x3F] >> 1 in DELIVERY
        # Only the output and the last byte are the card's to write.
        assert left[:0x20] == entry[:0x20]
        assert left[0x30:0x3F] == entry[0x30:0x3F]
    else:
        assert left == entry


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, (32 << 20) - 64), st.binary(min_size=1, max_size=64)), max_size=30))
def test_any_bar_write_is_survived(writes: list[tuple[int, bytes]]) -> None:
    driver = Driver(memory_bytes=MEMORY_BYTES)
    driver.probe()
    for offset, data in writes:
        driver.bar_write(offset, data)
        driver.bar_write(driver.uar * 4096 + (offset & 0xFC0), data)
        driver.bar_read(offset, len(data))
    assert not driver.board.dead
