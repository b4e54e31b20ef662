"""Rules of what goes wrong inside a card, by a seed: legal but nasty answers, and illegal ones.

Guarantees: the same seed and budget give the same rules on every machine; there are as many as the budget says; each is
one line as `--fault` takes it. Assumes that the card is new to its driver when a rule is made: the counting of `nth`
begins with the first command of the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from vhca.chip.fault_rules import parse_rule
from vhca.wire.connectx.cmd import Op, Status

PROBE: Final = (
    "ENABLE_HCA", "QUERY_ISSI", "SET_ISSI", "QUERY_PAGES", "MANAGE_PAGES", "QUERY_HCA_CAP", "SET_HCA_CAP", "INIT_HCA",
    "SET_DRIVER_VERSION", "QUERY_ADAPTER", "ALLOC_UAR", "CREATE_EQ", "QUERY_SPECIAL_CONTEXTS", "ACCESS_REG",
    "QUERY_HCA_VPORT_CONTEXT", "QUERY_HCA_VPORT_GID", "QUERY_HCA_VPORT_PKEY", "ALLOC_Q_COUNTER", "QUERY_VPORT_STATE",
    "MAD_IFC", "ALLOC_PD", "CREATE_MKEY", "CREATE_CQ", "CREATE_QP", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP",
)  # fmt: skip
"""Commands of a driver that finds its card."""
TRAFFIC: Final = (
    "CREATE_UCTX", "CREATE_UMEM", "ALLOC_TRANSPORT_DOMAIN", "ALLOC_XRCD", "CREATE_XRC_SRQ", "CREATE_RMP", "QUERY_QP",
    "QUERY_Q_COUNTER", "QUERY_VPORT_COUNTER", "ATTACH_TO_MCG", "MODIFY_CQ", "QP_2ERR", "RTS2RTS_QP", "QUERY_MKEY",
    "CREATE_QP", "CREATE_CQ", "CREATE_MKEY", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP",
)  # fmt: skip
REMOVAL: Final = (
    "DESTROY_QP", "DESTROY_CQ", "DESTROY_MKEY", "DESTROY_EQ", "DEALLOC_PD", "DEALLOC_UAR", "DEALLOC_Q_COUNTER",
    "DETACH_FROM_MCG", "DESTROY_XRC_SRQ", "DESTROY_RMP", "DEALLOC_XRCD", "DEALLOC_TRANSPORT_DOMAIN", "QP_2RST",
    "DESTROY_UCTX", "DESTROY_UMEM", "TEARDOWN_HCA", "DISABLE_HCA", "MANAGE_PAGES",
)  # fmt: skip
OFTEN: Final = {"QUERY_HCA_CAP": 60, "ACCESS_REG": 30, "CREATE_MKEY": 24, "CREATE_CQ": 8, "CREATE_QP": 8, "MAD_IFC": 40}
"""Commands that come more than a few times, and about how often."""
DEEP: Final = {"QUERY_HCA_CAP": 0x110, "MAD_IFC": 0x110, "ACCESS_REG": 0x50, "QUERY_HCA_VPORT_CONTEXT": 0x110}
"""How many bytes of an output have something in them; of others 0x20."""
EVENTS: Final = ("PORT_CHANGE", "CMD", "COMP", "any")
TYPES: Final = (
    "CQ_ERROR", "WQ_CATAS_ERROR", "INTERNAL_ERROR", "PORT_CHANGE", "CMD", "PAGE_REQUEST", "PAGE_FAULT", "SRQ_RQ_LIMIT",
    "WQ_ACCESS_ERROR", "DCT_DRAINED", "XRQ_ERROR", "COMM_EST", "ESW_FUNCTIONS_CHANGED", "VHCA_STATE_CHANGE",
    "TEMP_WARN_EVENT", "GENERAL_EVENT", "PORT_MODULE_EVENT", "PPS_EVENT", "MONITOR_COUNTER", "OBJECT_CHANGE", "0xff",
)  # fmt: skip
FIELDS: Final = {"PORT_CHANGE": ("port_num", 4), "CMD": ("vector", 32), "COMP": ("cqn", 24)}
"""What events tell, with its width in bits."""
LATE: Final = ("20ms", "150ms", "900ms", "2500ms")
MOST_BUDGET: Final = 100_000


def rules(seed: int, budget: int) -> list[str]:
    """So many rules, no two alike.

    :raises ValueError: the budget is none.
    """
    if not 1 <= budget <= MOST_BUDGET:
        raise ValueError(f"a budget of {budget}: give 1 to {MOST_BUDGET} rules")
    chance = Random(seed)
    found: dict[str, None] = {}
    while len(found) < budget:
        make = chance.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
        found[parse_rule(make(chance)).text] = None
    return list(found)


def sweep() -> list[str]:
    """Each command that a driver gives refused once, and its answer wrong once, in the order of its life."""
    found: dict[str, None] = {}
    for op in (*PROBE, *TRAFFIC, *REMOVAL):
        found[f"command {op} nth=1 status=NO_RES_ERR"] = None
        found[f"command {op} nth=2 status=NO_RES_ERR"] = None
        if op not in REMOVAL:
            found[f"command {op} nth=1 damage=11:0x1"] = None  # of what is made, its number
    return list(found)


def _command(chance: Random, among: tuple[tuple[str, ...], ...] = (PROBE, TRAFFIC, REMOVAL)) -> str:
    """A name of a command, and which one of them."""
    op = chance.choice(chance.choice(among))
    nth = chance.randint(1, OFTEN.get(op, 3))
    return f"command {op} nth={nth}" if chance.random() < 0.8 else f"command {op}"


def _refused(chance: Random) -> str:
    status = chance.choice([name for name in Status.__members__ if name != "OK"])
    syndrome = f" syndrome={chance.getrandbits(24):#x}" if chance.random() < 0.3 else ""
    return f"{_command(chance)} status={status}{syndrome}"


def _damaged(chance: Random) -> str:
    rule = _command(chance, (PROBE, TRAFFIC))  # nobody reads what a removal answers
    depth = DEEP.get(rule.split()[1], 0x20)
    # Status and syndrome are what a refusal is; behind them is what is believed.
    return f"{rule} damage={chance.randrange(8, depth)}:{chance.choice((0xFF, 0x80, 1, chance.randint(1, 255))):#x}"


def _late(chance: Random) -> str:
    return f"{_command(chance)} late={chance.choice(LATE)}"


def _twice(chance: Random) -> str:
    return f"{_command(chance)} twice"


def _event(chance: Random) -> str:
    kind = chance.choice(EVENTS)
    if kind in FIELDS and chance.random() < 0.5:
        name, bits = FIELDS[kind]
        return f"event {kind} nth={chance.randint(1, 40)} flip={name}:{chance.randrange(1, 1 << bits):#x}"
    actions = [f"late={chance.choice(LATE)}", "twice", f"type={chance.choice(TYPES)}"]
    if kind != "any" and kind != "CMD":  # an event that ends a command is waited for a minute
        actions.append("lost")
    return f"event {kind} nth={chance.randint(1, 40)} {chance.choice(actions)}"


def _completion(chance: Random) -> str:
    bits = {"wqe_counter": 16, "byte_cnt": 31, "opcode": 4, "qpn": 24, "srqn_uidx": 24}
    field = chance.choice(list(bits))
    flip = f"flip={field}:{chance.randrange(1, 1 << bits[field]):#x}"
    action = chance.choice(
        (flip, flip, flip, "twice", "lost", f"late={chance.choice(LATE)}", "syndrome=LOCAL_PROT_ERR")
    )
    return f"completion any nth={chance.randint(1, 60)} {action}"


def _health(chance: Random) -> str:
    begins = f"from={chance.randint(0, 6000)}ms"
    ends = f"until={chance.randint(7000, 9000)}ms"
    return chance.choice(
        (
            f"health synd={chance.randint(1, 255)} severity={chance.randint(0, 7)} rfr={chance.randint(0, 1)}"
            f" {begins} {ends}",
            f"health stop {begins} {ends}",
            f"card removed {begins} {ends}",
            f"link untrained {begins} {ends}",
        )
    )


def _interrupt(chance: Random) -> str:
    return (
        f"interrupt vector={chance.randint(1, 3)} nth={chance.randint(1, 40)} {chance.choice(('lost', 'late=150ms'))}"
    )


def _memory(chance: Random) -> str:
    action = chance.choice(("fail", "stale", f"damage={chance.randrange(16)}:{chance.randint(1, 255):#x}"))
    return f"dma size={chance.choice((4, 8, 16, 64))} nth={chance.randint(1, 200)} {action}"


_KINDS: Final[tuple[tuple[Callable[[Random], str], int], ...]] = (
    (_refused, 36),
    (_damaged, 30),
    (_late, 6),
    (_twice, 4),
    (_event, 10),
    (_completion, 6),
    (_health, 3),
    (_interrupt, 2),
    (_memory, 3),
)
"""Kinds of rules, and how often each is chosen."""
assert all(name in Op.__members__ for name in (*PROBE, *TRAFFIC, *REMOVAL))
