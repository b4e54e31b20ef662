"""Three tables of one life cycle, made from three sources, say the same: the card's, the claims', the kernel's."""

from itertools import product

from acceptance.claims import b_transitions as claims
from firmware.model.qp import (
    ERR,
    INIT,
    RST,
    RTR,
    RTS,
    SQD,
    SQER,
    ST_DCI,
    ST_QP0,
    ST_QP1,
    ST_RC,
    ST_UC,
    ST_UD,
    ST_XRC,
)
from firmware.transport.lifecycle import TRANSITIONS, Attribute, Transition
from tests.unit.transport.kernel_transitions import BARE, DYNAMIC, EVERY, FACTS, Fact
from vhca.wire.connectx.cmd import Op

STATES = {"RESET": RST, "INIT": INIT, "RTR": RTR, "RTS": RTS, "SQD": SQD, "SQE": SQER, "ERR": ERR}
# An XRC queue pair of the card is one of the two kinds, which its number of queues tells.
SERVICES = {
    ST_RC: "RC", ST_UC: "UC", ST_UD: "UD", ST_XRC: "XRC_SEND XRC_RECV", ST_QP0: "SMI", ST_QP1: "GSI", ST_DCI: "DCI",
}  # fmt: skip
# The card's attributes in the words of verbs; those without one belong to the device.
VERBS = {
    Attribute.REMOTE_READ: "ACCESS_FLAGS",
    Attribute.REMOTE_WRITE: "ACCESS_FLAGS",
    Attribute.REMOTE_ATOMIC: "ACCESS_FLAGS",
    Attribute.PKEY_INDEX: "PKEY_INDEX",
    Attribute.PORT: "PORT",
    Attribute.Q_KEY: "QKEY",
    Attribute.MIN_RNR_TIMER: "MIN_RNR_TIMER",
    Attribute.PATH_MIGRATION: "PATH_MIG_STATE",
    Attribute.ALTERNATE_PATH: "ALT_PATH",
    Attribute.PATH: "AV",
    Attribute.PATH_MTU: "PATH_MTU",
    Attribute.REMOTE_QPN: "DEST_QPN",
    Attribute.RECEIVE_PSN: "RQ_PSN",
    Attribute.SEND_PSN: "SQ_PSN",
    Attribute.RESPONDER_RESOURCES: "MAX_DEST_RD_ATOMIC",
    Attribute.INITIATOR_DEPTH: "MAX_QP_RD_ATOMIC",
    Attribute.RETRY_COUNT: "RETRY_CNT",
    Attribute.RNR_RETRY: "RNR_RETRY",
    Attribute.ACK_TIMEOUT: "TIMEOUT",
}
# Of the core and the driver alone.
SOFTWARE = {"CUR_STATE", "EN_SQD_ASYNC_NOTIFY"}

Masks = tuple[set[str], set[str]]
Key = tuple[str, str, str]


def kernel(facts: tuple[Fact, ...] = FACTS) -> dict[Key, Masks]:
    """(before, after, service) -> (required, optional)."""
    found: dict[Key, Masks] = {}
    for fact in facts:
        for service in fact.services.split():
            key = fact.before, fact.after, service
            assert key not in found, key
            found[key] = set(fact.required.split()), set(fact.optional.split())
    return found


def command(before: int, after: int, service: int) -> Transition | None:
    """The card's command from one state to another."""
    rows = [
        row
        for row in TRANSITIONS
        if (row.source, row.target) == (before, after) and service in row.services and isinstance(row.cause, Op)
    ]
    assert len(rows) < 2
    return rows[0] if rows else None


def card(row: Transition, service: int) -> Masks:
    """(required, optional) in the words of verbs."""
    required, optional = (
        {VERBS[attribute] for attribute, services in attributes.items() if service in services and attribute in VERBS}
        for attributes in (row.required, row.optional)
    )
    return required, optional


def test_the_facts_cover_every_service_of_every_pair() -> None:
    facts = kernel()
    pairs = {(before, after) for before, after, _ in facts}
    assert set(facts) == {(*pair, service) for pair in pairs for service in EVERY.split()}
    assert not pairs & set(BARE)


def test_the_claims_say_what_the_kernel_says() -> None:
    facts = kernel()
    # A claim is about what can be tried, and nobody gets into SQD to try.
    untried = {("SQD", "RTS"), ("SQD", "SQD")}
    assert set(claims.RULES) == {(before, after) for before, after, _ in facts} - untried | set(BARE)
    for service, (before, after) in product(claims.Service, claims.RULES):
        required, optional = facts.get((before, after, str(service.name)), (set(), set()))
        masks = claims.masks(service, before, after)
        assert masks is not None
        names = tuple({str(attr.name) for attr in claims.Attr if attr & mask} for mask in masks)
        assert names == (required, optional), (service, before, after)


def test_the_card_leads_where_the_kernel_goes() -> None:
    pairs = {(before, after) for before, after, _ in kernel()} | set(BARE)
    for service in SERVICES:
        of_card = {
            (before, after)
            for before, after in product(STATES, STATES)
            if command(STATES[before], STATES[after], service) is not None
        }
        # No command of the driver's interface drains a send queue; ERR from RST is in the driver's table of commands.
        assert pairs - of_card == {("RTS", "SQD"), ("SQD", "SQD")}
        assert of_card - pairs == {("RESET", "ERR")}


def test_the_card_takes_what_the_kernel_lets_through() -> None:
    facts = kernel()
    unlike: dict[tuple[str, str, int], tuple[set[str], set[str]]] = {}
    for service, (before, after) in product(SERVICES, {(before, after) for before, after, _ in facts}):
        row = command(STATES[before], STATES[after], service)
        if row is None or service == ST_DCI:
            continue
        required: set[str] = set()
        optional: set[str] = set()
        for name in SERVICES[service].split():
            required |= facts[before, after, name][0]
            optional |= facts[before, after, name][1] - SOFTWARE
        of_card = card(row, service)
        # What is required for one kind of XRC may be optional for the other: the card takes it always.
        difference = of_card[0] ^ required, of_card[1] ^ optional
        if any(difference):
            unlike[before, after, service] = difference
    for service in (ST_RC, ST_UC, ST_UD, ST_XRC):
        # The driver always says that a path is not migrated.
        assert unlike.pop(("RESET", "INIT", service)) == ({"PATH_MIG_STATE"}, set())
    for service in (ST_QP0, ST_QP1):
        # The driver knows the port by itself, and flags nothing for management queue pairs.
        assert unlike.pop(("RESET", "INIT", service)) == ({"PATH_MIG_STATE", "PORT"}, set())
        assert unlike.pop(("INIT", "INIT", service)) == (set(), {"PKEY_INDEX", "QKEY"})
        assert unlike.pop(("INIT", "RTR", service)) == ({"PATH_MTU"}, {"PKEY_INDEX", "QKEY"})
        for before in ("RTR", "RTS", "SQD", "SQE"):
            assert unlike.pop((before, "RTS", service)) == (set(), {"QKEY"})
    # Datagrams have an MTU too; the driver says 4096.
    assert unlike.pop(("INIT", "RTR", ST_UD)) == ({"PATH_MTU"}, set())
    for service in (ST_RC, ST_UC, ST_XRC):
        # Nothing gets into SQD, and reliable services do not get into SQE: these are the driver's masks.
        assert unlike.pop(("SQD", "RTS", service)) == (set(), {"ALT_PATH", "PATH_MIG_STATE"})
        if service != ST_UC:
            assert unlike.pop(("SQE", "RTS", service)) == (set(), {"ACCESS_FLAGS", "MIN_RNR_TIMER"})
    assert not unlike


def test_the_card_takes_what_the_driver_lets_through_for_initiators_of_dc() -> None:
    for (before, after, _), (required, optional) in kernel(DYNAMIC).items():
        row = command(STATES[before], STATES[after], ST_DCI)
        assert row is not None
        takes, may_take = card(row, ST_DCI)
        assert required <= takes, (before, after)
        assert optional <= may_take, (before, after)
