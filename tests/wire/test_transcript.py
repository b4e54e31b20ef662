"""What QEMU 11.1.3 said in one run, said again: the answers must be the same, byte for byte."""

import socket
from pathlib import Path

from tests.wire.card import Card
from tests.wire.client import Client, closing, eventfds, memfd
from tests.wire.qtest import GIB
from vhca.vfio_user import proto
from vhca.vfio_user.loop import SelectLoop
from vhca.vfio_user.proto import Command

TRANSCRIPT = Path(__file__).parent / "transcript.txt"


def lines() -> list[tuple[str, bytes, int]]:
    parsed = []
    for line in TRANSCRIPT.read_text().splitlines():
        if not line.startswith("#"):
            direction, data, fds = line.split()
            parsed.append((direction, bytes.fromhex(data), int(fds)))
    return parsed


def test_the_transcript_covers_what_it_should() -> None:
    commands = [proto.HEADER.unpack_from(data)[1] for direction, data, _ in lines() if direction == ">"]
    assert commands.count(Command.DEVICE_RESET) == 2
    assert set(commands) == {1, 2, 3, 4, 5, 7, 8, 9, 10, 13}


def test_replay() -> None:
    card = Card(None)
    loop = SelectLoop()
    card.server.start(loop)
    ours, theirs = socket.socketpair()

    def step() -> None:
        loop.run_once(0)

    client = Client(ours, step)
    card.server.adopt(theirs)
    with closing(memfd(GIB)) as (ram,):
        for direction, data, count in lines():
            if direction == ">":
                is_map = proto.HEADER.unpack_from(data)[1] == Command.DMA_MAP
                fds = [ram] * count if is_map else eventfds(count)
                client.send_raw(data, fds)
                if not is_map:
                    with closing(*fds):
                        pass
            else:
                message = client.receive()
                head = proto.HEADER.pack(
                    message.message_id, message.command, 16 + len(message.payload), message.flags, message.errno
                )
                assert (head + message.payload).hex() == data.hex()
                assert len(message.fds) == count
        assert client.is_quiet()
    client.close()
    loop.run_once(0)
    assert card.resets == ["device", "device", "flr", "lost_connection"]
    # RAM is mapped, what has no file is not
    assert card.server.counters == {"clients": 1, "dma_map_mapped": 3, "dma_map_message": 3}
    card.server.close()
    loop.close()
