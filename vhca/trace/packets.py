"""A packet in a trace: what its headers say, as far as they are there. Never raises for any bytes."""

from __future__ import annotations

from typing import Final

from vhca.layout import Layout
from vhca.wire.headers import Aeth, AethSyndrome, Bth, Deth, GrhHeader, Lrh, NextHeader, Reth, Xrceth
from vhca.wire.opcodes import AETH, DETH, OPCODES, RETH, XRCETH
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE

_ANSWERS: Final = (READ_RESPONSE, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)
_CRC_BYTES: Final = 6

Told = tuple[str, dict[str, object], bool]
"""One line; the same by name; whether it tells of something that went wrong."""


def _view(layout: type[Layout], raw: bytes, at: int) -> Layout | None:
    return layout.from_bytes(raw[at : at + layout.SIZE]) if len(raw) >= at + layout.SIZE else None


def told_of(raw: bytes, size: int) -> Told:
    """What the first bytes of a packet, LRH first, of `size` bytes tell."""
    lrh = _view(Lrh, raw, 0)
    if not isinstance(lrh, Lrh):
        return f"{size} bytes that are no packet", {"size": size}, True
    fields: dict[str, object] = {"slid": lrh.slid, "dlid": lrh.dlid, "size": size}
    at = Lrh.SIZE
    if lrh.lnh == NextHeader.GLOBAL:
        at += GrhHeader.SIZE
    elif lrh.lnh != NextHeader.LOCAL:
        return f"a packet without a transport header, {size} bytes", fields, True
    bth = _view(Bth, raw, at)
    if not isinstance(bth, Bth):
        return f"a packet of {size} bytes", fields, False
    row = OPCODES[bth.opcode]
    name = row.name if row is not None else f"opcode {bth.opcode:#04x}"
    fields |= {"opcode": name, "dest_qp": bth.dest_qp, "psn": bth.psn}
    words = [name]
    at += Bth.SIZE
    if row is None:
        return f"{name} to QP {bth.dest_qp:#x}, psn {bth.psn}", fields, True
    fields["request"] = row.op not in _ANSWERS
    bad = _extended(raw, at, row.headers, fields, words)
    words += [f"QP {bth.dest_qp:#x}", f"psn {bth.psn}"]
    length = size - at - row.headers_size_bytes - bth.pad_cnt - _CRC_BYTES
    if row.payload and length >= 0:
        fields["length"] = length
        words.append(f"{length} B")
    if bth.ack_req:
        fields["ack_req"] = True
    return " ".join(words), fields, bad


def _extended(raw: bytes, at: int, headers: int, fields: dict[str, object], words: list[str]) -> bool:
    """Extended headers that tell something, in their order on the wire; whether one is a refusal."""
    bad = False
    if headers & XRCETH:
        xrc = _view(Xrceth, raw, at)
        if isinstance(xrc, Xrceth):
            fields["srqn"] = xrc.xrc_srq
        at += Xrceth.SIZE
    if headers & DETH:
        deth = _view(Deth, raw, at)
        if isinstance(deth, Deth):
            fields["src_qp"] = deth.src_qp
            words.append(f"from {deth.src_qp:#x}")
        at += Deth.SIZE
    if headers & RETH:
        reth = _view(Reth, raw, at)
        if isinstance(reth, Reth):
            fields["dma_length"] = reth.dma_len
    if headers & AETH:
        aeth = _view(Aeth, raw, at)
        if isinstance(aeth, Aeth):
            fields |= {"aeth": _acknowledged(aeth.syndrome), "msn": aeth.msn}
            bad = aeth.syndrome & 0x60 != 0
            if bad:
                words.append(str(fields["aeth"]))
    return bad


def _acknowledged(syndrome: int) -> str:
    """A syndrome of an AETH in words (9.7.5.1.1)."""
    kind = syndrome & 0x60
    if not kind:
        return "ACK"
    if kind == 0x20:
        return f"RNR NAK, timer {syndrome & 0x1F}"
    try:
        return AethSyndrome(syndrome).name.replace("NAK_", "NAK ").replace("_", " ").lower().replace("nak", "NAK")
    except ValueError:
        return f"NAK {syndrome:#04x}"
