"""What the C sources take from here: the argument of a train, and the formats of the interface.

Offsets, codes and rights have their declaration in Python; C gets them as macros of the same names.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from firmware.model.capabilities import LOG_MAX_LSO
from firmware.model.counters import Outcome
from firmware.model.objects import LOCAL_READ, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from firmware.model.segment import ASK_PACKETS, BURST_COST_BYTES, SEGMENT_COST_BYTES
from firmware.queues import TERMINATOR_LKEY
from vhca.layout import Layout
from vhca.wire import ipoib
from vhca.wire.connectx.cqe import Cqe64, CqeFormat, CqeOpcode
from vhca.wire.connectx.mkey import QPN_ANY
from vhca.wire.connectx.wqe import (
    INLINE_FLAG,
    AtomicSegment,
    CompletionMode,
    CtrlSegment,
    DatagramSegment,
    DataSegment,
    EthPad,
    EthSegment,
    InlineSegment,
    NextSegment,
    RaddrSegment,
    WqeOpcode,
)
from vhca.wire.headers import Aeth, AtomicAckEth, AtomicEth, Bth, Deth, GrhHeader, ImmDt, Lrh, Reth


class Stop(IntEnum):
    """Why a train ended."""

    EMPTY = 0
    """The host has posted no more."""
    BUDGET = 1
    """It is the next one's turn."""
    MISSING = 2
    """The card's table lacks a key: `wanted_key`, of the far card if `wanted_far`."""
    UNUSUAL = 3
    """The WQE at hand is for the engine in Python; nothing of it was done."""


def _ring(name: str) -> tuple[str, ...]:
    """What is said of a ring: where it is and its size (an address, or a place in pages of a list), its record."""
    return tuple(f"{name}_{what}" for what in ("addr", "offset", "list", "pages", "log_page", "log", "record"))


class KeyKind(IntEnum):
    """How C translates a key to the bus."""

    NONE = 0
    """There is no key in this place."""
    FLAT = 1
    """Its addresses are those of the bus."""
    LINEAR = 2
    """From one address on."""
    PAGES = 3
    """By a page list."""


CONSTANT: Final = (
    *("near_qpn", "near_pd", "near_user", "log_mtu", "message_max", "has_grh", "inline_read", "is_unreliable"),
    # Of datagrams: addresses of the address vector that all have, and of their GRH.
    *("is_datagram", "address_vector", "global_header", "grh_in_cqe", "source_qpn", "pkey"),
    *("near_offloads", "far_offloads"),
    *_ring("sq"),
    *_ring("scq"),
    *("scq_bytes", "scq_ignores"),
    *("far_qpn", "far_pd", "far_user", "far_rights", "inline_receive", "slid", "path_bits", "sl"),
    *_ring("rq"),
    # Of a shared queue: whether it is a linked list, where the scatter list begins, whose keys it has.
    *("has_rq", "rq_log_stride", "rq_is_list", "rq_head", "rq_pd"),
    *_ring("rcq"),
    *("rcq_bytes", "rcq_ignores"),
    *("wqe_budget", "byte_budget"),
)
"""Of a train's argument, what holds as long as both queue pairs stay as they are."""

MOVING: Final = (
    *("near_time", "far_time", "sq_consumer", "next_psn", "scq_producer", "scq_consumer"),
    *("rq_consumer", "rq_next", "rq_limit", "rcq_producer", "rcq_consumer", "near_solicited", "far_solicited"),
    "lso_done",
    *("time_ns", "by_clock"),
)
"""What a train begins with and leaves changed; `..._solicited` are indexes of the last solicited completion.

Of a shared receive queue, `rq_next` is the WQE to be taken next, and `rq_limit` the number of WQEs below which its host
is told; telling is for Python. A train may end within a large send, of which `lso_done` bytes have gone. `time_ns`: how
long it may take, if it is not 0, since what a message takes depends on memory as well; `by_clock`: that alone is its
end, and not the budgets.
"""

RESULTS: Final = (
    *("stop", "outcome", "wanted_key", "wanted_far", "messages", "sq_waiting", "packets", "bytes", "acks", "unasked"),
    *("answers", "answer_bytes", "writes", "reads", "atomics", "near_cqes", "far_cqes", "near_events", "far_events"),
    *("words_out", "words_back", "nops", "has_invalidated", "invalidated"),
)
"""What a train tells: counts of messages, packets and bytes that went out, acknowledgements and answers that came back,
words of 4 bytes of both, completions on both sides, and solicited ones among them, and messages that are no request; 0
before it. A key that the last message invalidated is still to be freed.
"""

LINE: Final = 64
"""Bytes of a line of the processor's cache."""
RUNS: Final = 16
"""Runs of lines that are noted of a queue pair, with a 0 behind the last one: the address of the first line, and in the
bits below it how many follow."""
NOTED: Final = 1 << 14
"""Queue pairs of a card of which runs are noted; each takes the place of one whose number ends alike."""

constant: Final = Struct(f"@{len(CONSTANT)}q")
moving: Final = Struct(f"@{len(MOVING)}q")
results: Final = Struct(f"@{len(RESULTS)}q")
MOVING_AT: Final = constant.size
RESULTS_AT: Final = MOVING_AT + moving.size
TRAIN_BYTES: Final = RESULTS_AT + results.size

IP_HEADERS: Final = (ipoib.IpoibHeader, ipoib.Ipv4Header, ipoib.Ipv6Header, ipoib.TcpHeader, ipoib.UdpHeader)
HEADERS: Final = (Lrh, GrhHeader, Bth, Deth, Reth, AtomicEth, Aeth, AtomicAckEth, ImmDt)
PROTOTYPES: Final = """
struct card *vhca_card_new(void);
void vhca_card_free(struct card *card);
void vhca_card_map(struct card *card, uint32_t count, const uint64_t *starts, const uint64_t *ends,
                   void *const *places, const uint8_t *access, const uint64_t *faults);
void vhca_card_forget_keys(struct card *card);
void vhca_card_add_key(struct card *card, uint32_t key, uint32_t pd, uint32_t qpn, uint8_t rights, uint8_t kind,
                       uint8_t log_page, uint8_t flags, uint64_t start, uint64_t length, uint64_t linear,
                       const void *list, uint64_t pages);
void vhca_card_note(struct card *card, uint32_t qpn, const uint64_t *runs);
void vhca_card_warm(const struct card *card, uint32_t qpn);
void vhca_run_train(struct train *train, struct card *near, struct card *far);
uint32_t vhca_crew(uint32_t threads);
uint32_t vhca_train_begin(struct train *train, struct card *near, struct card *far);
void vhca_train_end(uint32_t number);
"""


def train_h() -> str:
    """`train.h`."""
    lines = ["#ifndef VHCA_TRAIN_H", "#define VHCA_TRAIN_H", "#include <stdint.h>", "struct card;", "struct train {"]
    lines += [f"    int64_t {name};" for name in (*CONSTANT, *MOVING, *RESULTS)]
    lines += ["};", "enum outcome {", *(f"    {outcome.name} = {int(outcome)}," for outcome in Outcome)]
    lines += ["};", *(f"#define TRAIN_{stop.name} {int(stop)}" for stop in Stop), PROTOTYPES, "#endif", ""]
    return "\n".join(lines)


def formats_h() -> str:
    """`formats.h`: of each field its place, and of bit fields shift and mask in their dword; codes."""
    lines = ["#ifndef VHCA_FORMATS_H", "#define VHCA_FORMATS_H"]
    for layout in (
        CtrlSegment,
        RaddrSegment,
        AtomicSegment,
        DatagramSegment,
        EthPad,
        EthSegment,
        DataSegment,
        NextSegment,
        Cqe64,
        *HEADERS,
        *IP_HEADERS,
    ):
        lines += _fields(layout)
    codes = {f"WQE_{code.name}": int(code) for code in WqeOpcode}
    codes |= {f"CQE_{code.name}": int(code) for code in CqeOpcode}
    codes |= {f"CQE_{code.name}": int(code) for code in CqeFormat}
    codes |= {f"KEY_{kind.name}": int(kind) for kind in KeyKind}
    codes |= {f"COMPLETION_{code.name}": int(code) for code in CompletionMode}
    codes |= {f"ETHER_{code.name}": int(code) for code in ipoib.EtherType}
    codes |= {f"PROTOCOL_{code.name}": int(code) for code in ipoib.IpProtocol}
    codes |= {f"TCP_{code.name}": int(code) for code in ipoib.TcpFlag}
    codes |= {
        "MOST_HEADER_BYTES": ipoib.MOST_HEADER_BYTES,
        "LOG_MAX_LSO": LOG_MAX_LSO,
        "ACCESS_LOCAL_READ": LOCAL_READ,
        "ACCESS_LOCAL_WRITE": LOCAL_WRITE,
        "ACCESS_REMOTE_READ": REMOTE_READ,
        "ACCESS_REMOTE_WRITE": REMOTE_WRITE,
        "ACCESS_REMOTE_ATOMIC": REMOTE_ATOMIC,
        "TERMINATOR_LKEY": TERMINATOR_LKEY,
        "LINE": LINE,
        "RUNS": RUNS,
        "NOTED": NOTED,
        "INLINE_FLAG": INLINE_FLAG,
        "INLINE_HEADER": InlineSegment.SIZE,
        "QPN_ANY": QPN_ANY,
        "ASK_PACKETS": ASK_PACKETS,
        "BURST_COST_BYTES": BURST_COST_BYTES,
        "SEGMENT_COST_BYTES": SEGMENT_COST_BYTES,
    }
    lines += [f"#define {name} {value:#x}" for name, value in codes.items()]
    return "\n".join([*lines, "#endif", ""])


def _fields(layout: type[Layout]) -> list[str]:
    prefix = "".join("_" + letter if letter.isupper() else letter.upper() for letter in layout.__name__).lstrip("_")
    lines = [f"#define {prefix}_SIZE {layout.SIZE}"]
    for field in layout.fields():
        name = f"{prefix}_{field.name.upper()}"
        lines.append(f"#define {name}_AT {field.offset:#x}")
        if field.kind == "bits":
            lines += [f"#define {name}_SHIFT {field.lo}", f"#define {name}_MASK {(1 << field.width) - 1:#x}u"]
    return lines
