"""Two programs without board and cable: events are handed over as directly as can be."""

from firmware.model.hca import Hca
from firmware.model.qp import Qp
from firmware.transport import engine
from vhca.hw.effects import DmaWrite, Effect, EntryWrite, Transmit
from vhca.hw.memory import Memory
from vhca.wire.packet import Packet


def ring_and_finish(near: Hca, far: Hca, qp: Qp, now_ns: int) -> None:
    """A doorbell of `qp`, which is the near card's, and everything that follows from it."""
    near.now_ns = far.now_ns = now_ns
    out: list[Effect] = []
    near.out = out
    engine.ring(near, qp)
    engine.turn(near)
    to_far = _carry_out(near.memory, out)
    to_near: list[Packet] = []
    while to_far or to_near or near.turns or far.turns:
        if not to_far and not to_near:
            for hca, packets in ((near, to_far), (far, to_near)):
                if hca.turns:
                    out = []
                    hca.out = out
                    engine.turn(hca)
                    packets += _carry_out(hca.memory, out)
        for packet in to_far:
            out = []
            far.out = out
            engine.packet_in(far, 1, packet)
            to_near += _carry_out(far.memory, out)
        to_far = []
        for packet in to_near:
            out = []
            near.out = out
            engine.packet_in(near, 1, packet)
            to_far += _carry_out(near.memory, out)
        to_near = []


def _carry_out(memory: Memory, out: list[Effect]) -> list[Packet]:
    packets = []
    for effect in out:
        kind = type(effect)
        if kind is Transmit:
            packets.append(effect.packet)  # type: ignore[union-attr]
        elif kind is DmaWrite or kind is EntryWrite:
            memory.write(effect.addr, effect.data)  # type: ignore[union-attr]
    return packets
