"""Blocks: Python's view and C's are the same bytes."""

import shutil
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

import firmware.model.hot  # noqa: F401
from firmware.model.block import BLOCKS, U8, CType, Flag, block, c_struct, fill, image, own_fields
from firmware.model.objects import Cq, Mkey
from firmware.model.qp import Qp, Requester, Responder
from firmware.model.rings import RecvQueue, SendQueue
from tests.scenario.world import CompletionQueue, End, World, pair
from vhca.wire.connectx.wqe import WqeOpcode

# Who adds to which block.
USERS: dict[str, type] = {
    "QpBlock": Qp,
    "RequesterBlock": Requester,
    "ResponderBlock": Responder,
    "SendRing": SendQueue,
    "ReceiveRing": RecvQueue,
    "CqBlock": Cq,
    "MkeyBlock": Mkey,
}


def parts(end: End) -> list[tuple[str, Any]]:
    """Everything with a block that a queue pair uses, by the name of its block."""
    qp = end.qp
    return [
        ("QpBlock", qp), ("RequesterBlock", qp.requester), ("ResponderBlock", qp.responder), ("SendRing", qp.sq),
        ("ReceiveRing", qp.rq), ("CqBlock", qp.send_cq), ("MkeyBlock", end.card.hca.mkeys.get(end.card.key >> 8)),
    ]  # fmt: skip


def test_every_block_has_a_class_that_adds_to_it() -> None:
    assert BLOCKS.keys() == USERS.keys()
    for name, user in USERS.items():
        assert BLOCKS[name] in user.__mro__


@pytest.mark.parametrize("name", list(USERS))
@pytest.mark.parametrize("largest", [False, True])
def test_values_of_any_size_survive(name: str, largest: bool) -> None:
    _, a, b = pair()
    of = dict(parts(a)), dict(parts(b))
    expected = {}
    for field, kind in own_fields(BLOCKS[name]):
        bits = struct.calcsize(kind.code) * 8
        signed = kind.code.islower()
        value: int = bool(largest) if kind.code == "?" else (1 << bits - signed) - 1 if largest else -signed << bits - 1
        setattr(of[0][name], field, value)
        expected[field] = value
    fill(of[1][name], BLOCKS[name], image(of[0][name], BLOCKS[name]))
    assert {field: getattr(of[1][name], field) for field in expected} == expected


def test_a_value_that_does_not_fit_is_refused() -> None:
    _, a, _ = pair()
    a.qp.requester.mtu = 1 << 32
    with pytest.raises(struct.error):
        image(a.qp.requester, BLOCKS["RequesterBlock"])


def _zeros(cls: type) -> object:
    """An object with all fields of a block."""
    return SimpleNamespace(**{field: 0 for field, _ in own_fields(cls)})


@pytest.mark.skipif(shutil.which("cc") is None, reason="this host has no C compiler (cc): nobody to compare with")
def test_a_c_compiler_lays_blocks_out_in_the_same_way(tmp_path: Path) -> None:
    lines = ["#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>", "#include <stdio.h>"]
    lines += [c_struct(cls) for cls in BLOCKS.values()]
    lines.append("int main(void) {")
    expected = []
    for cls in BLOCKS.values():
        structure = c_struct(cls).split()[1]
        at = "@"
        for field, kind in own_fields(cls):
            lines.append(f'printf("%zu\\n", offsetof(struct {structure}, {field}));')
            expected.append(struct.calcsize(at + "0" + kind.code))
            at += kind.code
        lines.append(f'printf("%zu\\n", sizeof(struct {structure}));')
        expected.append(len(image(_zeros(cls), cls)))
    lines += ["return 0;", "}"]
    (tmp_path / "blocks.c").write_text("\n".join(lines))
    subprocess.run(["cc", "-std=c11", "-Werror", "-o", tmp_path / "blocks", tmp_path / "blocks.c"], check=True)
    told = subprocess.run([tmp_path / "blocks"], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in told.split()] == expected


def test_a_block_without_a_width_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Bad\.size: a block's fields have a type with a width"):

        @block
        class Bad:
            count: U8 = 0
            size: int = 0

    with pytest.raises(TypeError, match=r"Worse\.size"):

        @block
        class Worse:
            size: Annotated[int, "bytes"] = 0

    for name in ("Bad", "Worse"):
        BLOCKS.pop(name, None)


def test_a_block_declares_what_its_base_does_not() -> None:
    @block
    class One:
        a: U8 = 1

    @block
    class Two(One):
        b: Flag = False

    try:
        assert own_fields(Two) == [("b", CType("bool", "?"))]
        assert (Two().a, Two().b) == (1, False)
        assert c_struct(Two) == "struct two {\n    bool b;\n};"
    finally:
        del BLOCKS["One"], BLOCKS["Two"]


def test_what_a_queue_pair_does_is_in_its_blocks() -> None:
    """Two queue pairs that do the same have the same blocks, in traffic, too; a third one has others."""

    def run(size: int) -> list[bytes]:
        world, a, b = pair()
        a.write(a.buffer(size), size, b.buffer(size), b.card.key)
        a.atomic(WqeOpcode.ATOMIC_FA, a.buffer(8), b.buffer(8), b.card.key, 1)
        b.post_recv(b.buffer(100), 100)
        a.send(a.buffer(100), 100)
        world.deliver(3)
        return [image(part, BLOCKS[name]) for end in (a, b) for name, part in parts(end)]

    assert run(3000) == run(3000)
    other = run(9000)
    assert [one == two for one, two in zip(run(3000), other, strict=True)] != [True] * len(other)


def test_rings_and_queues_know_where_they_lie() -> None:
    world = World()
    end = End(world.a)
    queue = CompletionQueue(world.a)
    assert end.qp.sq is not None
    assert end.qp.rq is not None
    assert (end.qp.rq.linear, end.qp.sq.linear, queue.cq.linear) == (end.rq_addr, end.sq_addr, queue.addr)
