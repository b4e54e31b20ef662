"""Registration by work request, as a host posts it: free keys, the request itself, the registration queue."""

from firmware.model.objects import LOCAL_READ, MODE_MTT, Mkey
from tests.scenario.card import Card
from tests.scenario.world import ST_REG_UMR, End, rights_fields
from vhca.wire.connectx.wqe import MkeyMask, UmrCtrlSegment, UmrMkeySegment, WqeOpcode

PAGES = 4
LENGTH = PAGES * 4096
REGISTER = sum(
    1 << bit
    for bit in (MkeyMask.LEN, MkeyMask.PAGE_SIZE, MkeyMask.START_ADDR, MkeyMask.KEY, MkeyMask.LR, MkeyMask.LW,
                MkeyMask.RR, MkeyMask.RW, MkeyMask.FREE)
)  # fmt: skip
START = 0x7000_0000


def free_key(card: Card, mode: int = MODE_MTT, octwords: int = 4, entries: bytes = b"", **fields: int) -> Mkey:
    """A key that waits for its registration, with these entries, if any; see :meth:`Commands.create_key`."""
    basic = {"mkey_7_0": 0x10, "free": 1, "umr_en": 1, "length64": 0, "log_page_size": 12,
             "translations_octword_size": octwords, **rights_fields(LOCAL_READ)}  # fmt: skip
    return card.mkey(card.create_key(mode, entries, **{**basic, **fields}))


def used_key(card: Card, **fields: int) -> Mkey:
    """As :func:`free_key`, in use and without a right, but of length 0."""
    return free_key(card, entries=bytes(16), **{"free": 0, **rights_fields(0), **fields})


def umr(end: End, mkey: Mkey | int, *, mask: int, payload: bytes = b"", inline: bool = True, check_free: int = 0,
        variant: int = 0x11, offset: int | None = None, check_qpn: int = 0, **fields: int) -> int:  # fmt: skip
    """Post a UMR for `mkey`; without `inline` the entries are gathered from memory."""
    ctrl = UmrCtrlSegment(inline=int(inline), check_free=check_free, check_qpn=check_qpn, mkey_mask=mask,
                          xlt_octowords=len(payload) // 16, translation_offset_en=int(offset is not None),
                          xlt_offset=(offset or 0) & 0xFFFF, xlt_offset_47_16=(offset or 0) >> 16)  # fmt: skip
    segment = UmrMkeySegment(mkey_7_0=variant, **fields)
    body = ctrl.to_bytes() + segment.to_bytes()
    if payload:
        body += payload if inline else end.sge(end.buffer(payload), len(payload))
    index = mkey if isinstance(mkey, int) else mkey.handle
    return end.post(WqeOpcode.UMR, body, imm=index << 8 | variant)


def entries(pages: list[int]) -> bytes:
    raw = b"".join((page | 3).to_bytes(8, "big") for page in pages)
    return raw + bytes(-len(raw) % 64)


def register(end: End, mkey: Mkey, pages: list[int], **more: object) -> int:
    args = {"mask": REGISTER, "payload": entries(pages), "check_free": 1, "start_addr": START, "len": LENGTH,
            "log_page_size": 12, "lr": 1, "lw": 1, "rr": 1, "rw": 1}  # fmt: skip
    return umr(end, mkey, **{**args, **more})  # type: ignore[arg-type]


def registration_queue(card: Card) -> End:
    """A registration queue."""
    queue = End(card, ST_REG_UMR, has_rq=False)
    queue.connect(queue)
    return queue


def load(queue: End, mkey: Mkey, payload: bytes, offset: int = 0, mask: int = 0, **fields: int) -> int:
    """Load entries that lie in memory; gives the syndrome of the completion."""
    umr(queue, mkey, mask=mask, payload=payload, inline=False, offset=offset, variant=mkey.variant, **fields)
    (completion,) = queue.send_cq.poll()
    return completion.syndrome
