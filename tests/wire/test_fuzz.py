"""Any bytes, any descriptors: the server answers or hangs up, leaks nothing, and serves the next client."""

import os
import socket
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.client import Client, header
from tests.wire.conftest import Rig, open_fds
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

SLOW = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALID = [
    proto.request(1, Command.DMA_MAP, proto.DMA_MAP.pack(32, 3, 0, 0x10000, 0x1000)),
    proto.request(2, Command.DMA_MAP, proto.DMA_MAP.pack(32, 1, 0x1000, 0x20000, 0x2000)),
    proto.request(3, Command.DMA_UNMAP, proto.DMA_UNMAP.pack(24, 0, 0x10000, 0x1000)),
    proto.request(4, Command.DMA_UNMAP, proto.DMA_UNMAP.pack(24, 2, 0, 0)),
    proto.request(5, Command.DEVICE_GET_INFO, proto.DEVICE_INFO.pack(16, 0, 0, 0)),
    proto.request(6, Command.DEVICE_GET_REGION_INFO, proto.REGION_INFO.pack(80, 0, 2, 0, 0, 0)),
    proto.request(7, Command.DEVICE_GET_IRQ_INFO, proto.IRQ_INFO.pack(16, 0, 2, 0)),
    proto.request(8, Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x24, 2, 0, 2)),
    proto.request(9, Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(22, 0x22, 2, 0, 2) + b"\1\1"),
    proto.request(10, Command.DEVICE_SET_IRQS, proto.SET_IRQS.pack(20, 0x21, 2, 0, 0)),
    proto.request(11, Command.REGION_READ, proto.REGION_ACCESS.pack(0, 7, 4096)),
    proto.request(12, Command.REGION_WRITE, proto.REGION_ACCESS.pack(8, 0, 8) + b"datadata"),
    proto.request(13, Command.REGION_WRITE, proto.REGION_ACCESS.pack(8, 0, 8) + b"datadata", no_reply=True),
    proto.request(14, Command.REGION_WRITE_MULTI, b"\1" + bytes(7) + proto.MULTI_ENTRY.pack(0, 0, 4, b"abcd")),
    proto.request(15, Command.DEVICE_RESET),
    proto.request(16, Command.DEVICE_FEATURE, bytes([8]) + bytes(7)),
    proto.request(17, Command.VERSION, proto.pack_version(0, {"max_msg_fds": 16})),
    proto.reply(18, Command.DMA_READ, bytes(32)),
    proto.error_reply(19, Command.DMA_WRITE, 19),
]

byte_mutations = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 255)), max_size=3)
descriptors = st.lists(st.sampled_from(["memory", "event", "pipe", "socket"]), max_size=3)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A valid message with a few bytes changed, perhaps cut or with some more, and descriptors."""
    message = bytearray(draw(st.sampled_from(VALID)))
    for at, value in draw(byte_mutations):
        if at < len(message):
            message[at] = value
    if draw(st.integers(0, 9)) == 0:
        message = message[: draw(st.integers(0, len(message)))]
    if draw(st.integers(0, 9)) == 0:
        message += draw(st.binary(max_size=20))
    return bytes(message), draw(descriptors)


well_framed = st.builds(
    lambda command, flags, payload: header(7, command, 16 + len(payload), flags) + payload,
    st.integers(0, 20),
    st.sampled_from([0, 0, 0, 0x10, 1, 2, 0x21, 0x30]),
    st.binary(max_size=64),
)


def play(rig: Rig, stream: Sequence[tuple[bytes, list[str]]], *, negotiate: bool) -> None:
    """Send a stream to a fresh client's connection, hang up, and check that nothing is left of it."""
    before = open_fds()
    client = rig.connect()
    pipe = os.pipe()
    kinds = {
        "memory": rig.file,
        "event": os.eventfd(0, os.EFD_NONBLOCK),
        "pipe": pipe[1],
        "socket": client.sock.fileno(),
    }
    if negotiate:
        client.negotiate()
    client.sock.setblocking(False)
    for data, fds in stream:
        try:
            if data:
                socket.send_fds(client.sock, [data], [kinds[kind] for kind in fds])
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            break
        rig.step()
        drain(client)
    for fd in (kinds["event"], *pipe):
        os.close(fd)
    client.close()
    rig.clients.remove(client)
    rig.step()
    assert not rig.server.connected
    assert rig.loop_is_idle()
    assert len(rig.server.dma) == 0
    assert open_fds() == before
    rig.device.writes.clear()


def drain(client: Client) -> None:
    """Read what the server says; every message must be well-formed."""
    data = b""
    fds: list[int] = []
    try:
        while True:
            piece, new, _, _ = socket.recv_fds(client.sock, 1 << 20, 16)
            fds += new
            if not piece:
                break
            data += piece
    except (BlockingIOError, ConnectionResetError):
        pass
    for fd in fds:
        os.close(fd)
    while data:
        _, _, size, flags, code = proto.HEADER.unpack_from(data)
        assert 16 <= size <= len(data)
        assert flags in (proto.FLAGS_REPLY, proto.FLAGS_REPLY | proto.FLAGS_ERROR)
        assert (code > 0) == bool(flags & proto.FLAGS_ERROR)
        data = data[size:]


@given(stream=st.lists(st.tuples(st.binary(max_size=200), descriptors), max_size=4), negotiate=st.booleans())
@SLOW
def test_random_bytes(rig: Rig, stream: list[tuple[bytes, list[str]]], negotiate: bool) -> None:
    play(rig, stream, negotiate=negotiate)


@given(stream=st.lists(mutated(), max_size=12), negotiate=st.booleans())
@SLOW
def test_mutated_messages(rig: Rig, stream: list[tuple[bytes, list[str]]], negotiate: bool) -> None:
    play(rig, stream, negotiate=negotiate)


@given(messages=st.lists(well_framed, min_size=1, max_size=8), cuts=st.lists(st.integers(1, 60), max_size=6))
@SLOW
def test_random_payloads_in_random_pieces(rig: Rig, messages: list[bytes], cuts: list[int]) -> None:
    stream, pieces = b"".join(messages), []
    for cut in cuts:
        pieces.append((stream[:cut], ["event"]))
        stream = stream[cut:]
    play(rig, [*pieces, (stream, [])], negotiate=True)
