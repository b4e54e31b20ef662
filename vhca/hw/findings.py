"""What a host does wrong with the objects of its card, and the lives of those objects: as a program tells of them.

A program keeps the lives of objects only if it is asked to, as strictly as :class:`Strictness` says. Numbers of objects
are those of the manual's commands; times are the card's clock in ns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

Place = tuple[str, int]
"""An object: its kind, as in the ledger, and its number."""


class Strictness(IntEnum):
    """How much is a finding; each level has those of the levels below it."""

    OFF = 0
    """Nothing is kept, and nothing found."""
    NORMAL = 1
    """What no driver does in its normal life, and no correct program."""
    PEDANTIC = 2
    """Also what is allowed, or happens when programs and machines end without a word."""


STRICTNESSES: Final = tuple(level.name.lower() for level in Strictness)


def strictness(name: str) -> Strictness:
    """The level with this name. ValueError: there is none."""
    try:
        return Strictness[name.upper()]
    except KeyError:
        raise ValueError(f"{name!r} is no strictness: there are {', '.join(STRICTNESSES)}") from None


class FindingKind(StrEnum):
    """What can be found."""

    DOUBLE_DESTROY = "double-destroy"
    USE_AFTER_DESTROY = "use-after-destroy"
    DESTROY_WHILE_USED = "destroy-while-used"
    KEY_AFTER_INVALIDATION = "key-after-invalidation"
    DOORBELL_AFTER_DESTROY = "doorbell-after-destroy"
    MODIFY_OUT_OF_ORDER = "modify-out-of-order"
    LEAK_AT_TEARDOWN = "leak-at-teardown"
    PROGRAM_DESTROY_WHILE_USED = "program-destroy-while-used"
    LEAK_OF_CONTEXT = "leak-of-context"
    LEAK_AT_RESET = "leak-at-reset"
    UNKNOWN_NUMBER = "unknown-number"
    UNKNOWN_KEY = "unknown-key"
    UNKNOWN_DOORBELL = "unknown-doorbell"


@dataclass(frozen=True, slots=True)
class FindingRule:
    """From which strictness on something is a finding, and what it means."""

    level: Strictness
    meaning: str


_N: Final = Strictness.NORMAL
_P: Final = Strictness.PEDANTIC
FINDING_RULES: Final[Mapping[FindingKind, FindingRule]] = MappingProxyType(
    {
        FindingKind.DOUBLE_DESTROY: FindingRule(_N, "a command destroys what was destroyed before"),
        FindingKind.USE_AFTER_DESTROY: FindingRule(_N, "a command names an object that was destroyed"),
        FindingKind.DESTROY_WHILE_USED: FindingRule(_N, "the kernel destroys an object that others still use"),
        FindingKind.KEY_AFTER_INVALIDATION: FindingRule(
            _N, "an lkey or rkey is used after it was invalidated, changed or destroyed"
        ),
        FindingKind.DOORBELL_AFTER_DESTROY: FindingRule(_N, "a doorbell rings for a queue that was destroyed"),
        FindingKind.MODIFY_OUT_OF_ORDER: FindingRule(
            _N, "a queue pair is not in a state that the transition starts from"
        ),
        FindingKind.LEAK_AT_TEARDOWN: FindingRule(_N, "an object is left when the driver says goodbye"),
        FindingKind.PROGRAM_DESTROY_WHILE_USED: FindingRule(
            _P,
            "a user context destroys an object that others use: uverbs tries so, again and again, when a program ends",
        ),
        FindingKind.LEAK_OF_CONTEXT: FindingRule(_P, "a user context is destroyed, and objects of it are left"),
        FindingKind.LEAK_AT_RESET: FindingRule(_P, "an object is left when the function is reset or enabled anew"),
        FindingKind.UNKNOWN_NUMBER: FindingRule(_P, "a command names an object that never was, as far as is known"),
        FindingKind.UNKNOWN_KEY: FindingRule(_P, "an lkey or rkey is used that never was valid, as far as is known"),
        FindingKind.UNKNOWN_DOORBELL: FindingRule(
            _P, "a doorbell rings for a queue that never was, or from a wrong page"
        ),
    }
)


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """Something that happened to an object.

    :ivar time_ns: when, by the card's clock.
    :ivar what: "created", "destroyed", "invalidated", "registered", a transition such as "RST2INIT_QP" ...
    :ivar by: the command, or the work request and its queue pair.
    :ivar uid: the user context that sent the command; 0: the kernel, for itself or for a program that uses verbs.
    :ivar op_mod: of the command.
    :ivar words: the command's input behind its header, 8 bytes.
    """

    time_ns: int
    what: str
    by: str
    uid: int = 0
    op_mod: int = 0
    words: bytes = b""

    def __str__(self) -> str:
        """One line for people."""
        user = f" of user context {self.uid}" if self.uid else ""
        return f"{self.time_ns / 1e9:.6f} s {self.what} by {self.by}{user}"


@dataclass(frozen=True, slots=True)
class ObjectLife:
    """The life of one object; of a long one the first event and the latest, `left_out` between them are forgotten.

    :ivar kind: as in the ledger: qp, cq, mkey ...
    :ivar alive: it is there.
    """

    kind: str
    number: int
    uid: int
    alive: bool
    events: tuple[ObjectEvent, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a host does wrong.

    :ivar card: the card's name.
    :ivar time_ns: when it was seen first, by the card's clock.
    :ivar object_kind: as in the ledger: qp, cq, mkey ...
    :ivar number: of the object; of a memory key its index.
    :ivar text: what was seen, in one sentence.
    :ivar life: of the object until then; None if the card knows nothing of it.
    :ivar times: how often the same was seen.
    """

    card: str
    kind: FindingKind
    time_ns: int
    object_kind: str
    number: int
    text: str
    life: ObjectLife | None
    times: int = 1

    @property
    def level(self) -> Strictness:
        """From which strictness on it is a finding."""
        return FINDING_RULES[self.kind].level

    @property
    def meaning(self) -> str:
        """What findings of its kind are."""
        return FINDING_RULES[self.kind].meaning

    def told(self) -> str:
        """All of it, for people, in several lines."""
        often = f", {self.times} times" if self.times > 1 else ""
        lines = [
            f"{self.card}: {self.kind}: {self.text} (at {self.time_ns / 1e9:.6f} s{often})",
            f"  which means: {self.meaning}",
        ]
        if self.life is not None:
            events = [f"  {event}" for event in self.life.events]
            if self.life.left_out:
                events.insert(1, f"  ... {self.life.left_out} more")
            lines += events
        return "\n".join(lines)
