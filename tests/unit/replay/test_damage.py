"""Files that are damaged, or made to do harm: a clear error each time, or a playback that ends."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import pytest

from firmware import boot
from tests.unit.replay.recorded import recorded_session
from vhca.replay import file
from vhca.replay.file import Reader, RecordingError
from vhca.replay.player import Player


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return recorded_session(tmp_path_factory.mktemp("good") / "h0.vhcarec").read_bytes()


def outcome(path: Path, data: bytes) -> str:
    """How playing these bytes ends: "same", "cut off", "differs", or the error."""
    path.write_bytes(data)
    try:
        with Reader(path) as reader:
            steps = list(Player(reader, boot, watched=True).play())
    except RecordingError as error:
        return f"error: {error}"
    if steps and steps[-1].difference is not None:
        return "differs"
    return "same" if reader.ending == "end" else reader.ending


def test_bytes_that_were_flipped(tmp_path: Path, good: bytes) -> None:
    chance = random.Random(1)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        # Whatever is flipped is noticed: nothing is in no checksum.
        assert outcome(tmp_path / "x", bytes(data)) not in ("same", "differs")


def test_files_that_end_anywhere(tmp_path: Path, good: bytes) -> None:
    chance = random.Random(2)
    for size in [0, 1, 8, 12, 20, *(chance.randrange(len(good)) for _ in range(60))]:
        found = outcome(tmp_path / "x", good[:size])
        assert found == "cut off" or found.startswith("error: ")


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Tags and contents."""
    found, at = [], 12
    while at < len(data):
        tag, size, _, _ = file._CHUNK.unpack_from(data, at)
        found.append((tag, zlib.decompress(data[at + 16 : at + 16 + size])))
        at += 16 + size
    return found


def sealed(good: bytes, parts: list[tuple[bytes, bytes]]) -> bytes:
    """A file of these, whose checksums are right."""
    return good[:12] + b"".join(file._chunk(tag, data) for tag, data in parts)


def test_contents_that_were_changed_under_right_checksums(tmp_path: Path, good: bytes) -> None:
    chance = random.Random(3)
    parts = chunks(good)
    seen = set()
    for _ in range(150):
        changed = []
        for tag, content in parts:
            data = bytearray(content)
            for _ in range(chance.choice((0, 1, 2))):
                at = chance.randrange(len(data))
                data[at : at + 1] = chance.choice((b"", b"\xff" * 4, bytes((chance.randrange(256),))))
            changed.append((tag, bytes(data)))
        seen.add(outcome(tmp_path / "x", sealed(good, changed)).split(":")[0])
    assert {"error", "differs"} <= seen


def test_lengths_beyond_all_bounds(tmp_path: Path, good: bytes) -> None:
    head = chunks(good)[0]
    huge = sealed(good, [head])
    for stored, size in ((1 << 31, 8), (8, 1 << 31), (0xFFFFFFFF, 0xFFFFFFFF)):
        assert "that is no chunk" in outcome(tmp_path / "x", huge + file._CHUNK.pack(b"STEP", stored, size, 0))
    assert outcome(tmp_path / "x", huge + file._CHUNK.pack(b"STEP", 1 << 20, 8, 0) + bytes(100)) == "cut off"
    # A number of things that no file could hold.
    step = b"\0" + bytes(9) + b"\0" + b"\xff\xff\xff\xff" * 4
    assert "are there" in outcome(tmp_path / "x", sealed(good, [head, (b"STEP", step)]))


def test_a_chunk_that_unpacks_to_more_than_it_says(tmp_path: Path, good: bytes) -> None:
    bomb = zlib.compress(bytes(100 << 20), 9)
    start = file._CHUNK.pack(b"STEP", len(bomb), 1000, 0)
    chunk = file._CHUNK.pack(b"STEP", len(bomb), 1000, zlib.crc32(bomb, zlib.crc32(start))) + bomb
    found = outcome(tmp_path / "x", sealed(good, chunks(good)[:1]) + chunk)
    assert "has not the length" in found


@pytest.mark.parametrize(
    "change",
    [
        {"board": None},
        {"board": {}},
        {"forms": "x"},
        {"board.uar_pages": 1 << 60},
        {"board.port_guids": [1] * 1000},
        {"board.port_guids": "12"},
        {"board.link": {"width": 77, "speed": "EDR"}},
        {"board.link": 5},
        {"board.capabilities": {"log_max_qp": "many"}},
        {"board.capabilities": {"no such": 1}},
        {"board.capabilities": []},
        {"board.node_description": 7},
        {"board.device_memory_bytes": -1},
        {"board.mtu": 3},
    ],
)
def test_boards_that_cannot_be(tmp_path: Path, good: bytes, change: dict[str, object]) -> None:
    (_, content), *rest = chunks(good)
    head = json.loads(content)
    for name, value in change.items():
        if name.startswith("board."):
            head["board"][name.removeprefix("board.")] = value
        else:
            head[name] = value
    data = sealed(good, [(b"HEAD", json.dumps(head).encode()), *rest])
    found = outcome(tmp_path / "x", data)
    assert found == "differs" or found.startswith("error: ")


def test_no_recordings_at_all(tmp_path: Path) -> None:
    assert "is no recording" in outcome(tmp_path / "x", b"\x7fELF" + bytes(100))
    with pytest.raises(RecordingError, match="No such file"):
        Reader(tmp_path / "none")
    with pytest.raises(RecordingError, match="Is a directory"):
        Reader(tmp_path)
    assert "format 2" in outcome(tmp_path / "x", file._FILE_HEAD.pack(file.MARK, 2))
