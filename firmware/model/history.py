"""The lives of objects, and what a host does wrong with them; kept only if somebody asked for it.

Everything that tells of it is off the path of packets: commands, registrations by work request, and accesses that are
refused anyway. What is kept is bounded, whatever a host does: objects, those of the past, events of each, findings.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from firmware.model.graveyard import Grave
from vhca.hw.findings import FINDING_RULES, Finding, FindingKind, ObjectEvent, ObjectLife, Place, Strictness
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import QpState

MOST_LIVES: Final = 1 << 16
MOST_GRAVES: Final = 4096
MOST_EVENTS: Final = 12
MOST_FINDINGS: Final = 1000
MOST_VARIANTS: Final = 8
# Where a command's input begins behind its header, and how much of it is kept.
_WORDS: Final = slice(8, 16)
_ENDS: Final = ("DESTROY_", "DEALLOC_")
_BY_ITSELF: Final = (QpState.ERR.name, QpState.SQER.name)
# One text for all queue pairs: there may be many lives.
_TAKEN: Final = {state: f"taken to {state}" for state in QpState.__members__}

# time, what, by, uid, op_mod, words
_Event = tuple[int, str, str, int, int, bytes]


class _Object(Protocol):
    handle: int
    uid: int
    refs: int


class _Key(_Object, Protocol):
    variant: int
    free: bool


class _Life:
    """`events` as they came; of a memory key also the variants that were valid: each, when it ended, and by what."""

    __slots__ = ("events", "left_out", "uid", "variants")

    def __init__(self, uid: int, event: _Event) -> None:
        self.uid = uid
        self.events = [event]
        self.left_out = 0
        self.variants: list[tuple[int, int, str]] = []

    def add(self, event: _Event) -> None:
        self.events.append(event)
        if len(self.events) > MOST_EVENTS:
            del self.events[1]
            self.left_out += 1

    def ended(self, variant: int, now_ns: int, by: str) -> None:
        self.variants.append((variant, now_ns, by))
        del self.variants[:-MOST_VARIANTS]


class _Found:
    __slots__ = ("life", "text", "time_ns", "times")

    def __init__(self, time_ns: int, text: str, life: ObjectLife | None) -> None:
        self.time_ns = time_ns
        self.text = text
        self.life = life
        self.times = 1


def _name(opcode: int) -> str:
    try:
        return Op(opcode).name
    except ValueError:
        return f"command {opcode:#x}"


class History:
    """The lives of one card's objects and its findings, as strict as `level`.

    :ivar untracked: objects that are not kept, since there were too many.
    :ivar left_out: findings that are not kept, since there were too many.
    """

    def __init__(self, level: Strictness) -> None:
        self.level = level
        self.untracked = 0
        self.left_out = 0
        self._lives: dict[Place, _Life] = {}
        self._graves: dict[Place, _Life] = {}
        self._of_uid: dict[int, dict[Place, None]] = {}
        self._found: dict[tuple[FindingKind, str, int, str], _Found] = {}
        # The command under way.
        self._now_ns = 0
        self._opcode = 0
        self._uid = 0
        self._op_mod = 0
        self._words = b""

    # ---- what happens ----

    def begin(self, data: bytes, now_ns: int) -> None:
        """A command begins; what is told without a time until the next one is its doing."""
        self._now_ns = now_ns
        self._opcode = int.from_bytes(data[0:2], "big")
        self._uid = int.from_bytes(data[2:4], "big")
        self._op_mod = int.from_bytes(data[6:8], "big")
        self._words = data[_WORDS]

    def _event(self, what: str) -> _Event:
        return self._now_ns, what, _name(self._opcode), self._uid, self._op_mod, self._words

    def created(self, kind: str, obj: _Object) -> None:
        """The command has made an object."""
        self._begins(kind, obj, self._event("created"))

    def adopt(self, kind: str, objects: Iterable[_Object], now_ns: int) -> None:
        """Objects that were there before their lives were kept."""
        for obj in objects:
            self._begins(kind, obj, (now_ns, "there", "somebody, before lives were kept", obj.uid, 0, b""))

    def _begins(self, kind: str, obj: _Object, event: _Event) -> None:
        place = kind, obj.handle
        self._graves.pop(place, None)
        if len(self._lives) >= MOST_LIVES:
            self.untracked += 1
            return
        self._lives[place] = _Life(obj.uid, event)
        if obj.uid:
            self._of_uid.setdefault(obj.uid, {})[place] = None

    def removed(self, kind: str, obj: _Object) -> None:
        """The command has destroyed an object."""
        place = kind, obj.handle
        life = self._lives.pop(place, None)
        if life is None:
            return
        life.add(self._event("destroyed"))
        if life.uid:
            own = self._of_uid[life.uid]
            del own[place]
            if not own:
                del self._of_uid[life.uid]
        self._graves[place] = life
        if len(self._graves) > MOST_GRAVES:
            del self._graves[next(iter(self._graves))]
        if kind == "uctx":
            self._context_ends(obj.handle)

    def key_removed(self, key: _Key) -> None:
        """The command has destroyed a memory key; behind :meth:`removed`."""
        life = self._graves.get(("mkey", key.handle))
        if life is not None and not key.free:
            life.ended(key.variant, self._now_ns, _name(self._opcode))

    def happened(self, kind: str, number: int, what: str) -> None:
        """The command has changed an object."""
        life = self._lives.get((kind, number))
        if life is not None:
            life.add(self._event(what))

    def transition(self, number: int, state: str) -> None:
        """The command has taken a queue pair to a state."""
        self.happened("qp", number, _TAKEN[state])

    def key_changed(self, now_ns: int, key: _Key, variant: int, was_free: bool, by: str) -> None:
        """A work request or a peer, `by`, has changed a key whose variant and state were these."""
        life = self._lives.get(("mkey", key.handle))
        if life is None or (key.variant == variant and key.free == was_free):
            return
        if not was_free:
            life.ended(variant, now_ns, by)
        what = "invalidated" if key.free else f"registered with variant {key.variant:#04x}"
        life.add((now_ns, what, by, 0, 0, b""))

    def clear(self) -> tuple[Grave, ...]:
        """All objects are gone at once; findings stay. Returns what is to be freed, in pieces."""
        gone: tuple[Grave, ...] = (self._lives, self._graves, *self._of_uid.values())
        self._lives, self._graves, self._of_uid = {}, {}, {}
        return gone

    # ---- what is wrong ----

    def missing(self, kind: str, number: int) -> None:
        """The command names an object that is not there."""
        name = _name(self._opcode)
        grave = self._graves.get((kind, number))
        if grave is None:
            self._find(FindingKind.UNKNOWN_NUMBER, kind, number, f"{name} names {kind} {number:#x}", name)
            return
        ends = name.startswith(_ENDS)
        found = FindingKind.DOUBLE_DESTROY if ends else FindingKind.USE_AFTER_DESTROY
        self._find(found, kind, number, f"{name} names {kind} {number:#x}, {_last(grave)}", name)

    def in_use(self, kind: str, obj: _Object, program: bool) -> None:
        """The command is to destroy an object that others use; `program`: a user context sends it."""
        name = _name(self._opcode)
        found = FindingKind.PROGRAM_DESTROY_WHILE_USED if program else FindingKind.DESTROY_WHILE_USED
        self._find(found, kind, obj.handle, f"{name} of {kind} {obj.handle:#x}, which {obj.refs} others use", name)

    def out_of_order(self, number: int, state: str) -> None:
        """The command is a transition that does not start from the state of its queue pair.

        A host that cannot know the state yet does nothing wrong: the card went there for an error, by itself.
        """
        life = self._lives.get(("qp", number))
        if state in _BY_ITSELF and (life is None or life.events[-1][1] != _TAKEN[state]):
            return
        name = _name(self._opcode)
        self._find(FindingKind.MODIFY_OUT_OF_ORDER, "qp", number, f"{name} of QP {number:#x} in state {state}", name)

    def refused_key(self, now_ns: int, key: int, there: _Key | None, who: str) -> None:
        """Somebody uses a key that is not valid; `there`: the memory key at its index."""
        index, variant = key >> 8, key & 0xFF
        life = self._lives.get(("mkey", index)) if there is not None else self._graves.get(("mkey", index))
        past = [] if life is None else [entry for entry in life.variants if entry[0] == variant]
        self._now_ns = now_ns
        text = f"key {key:#010x} is used by {who}"
        if past:
            _, ended_ns, by = past[-1]
            how = f"{text}, {(now_ns - ended_ns) / 1e3:.0f} us after its end by {by}"
            self._find(FindingKind.KEY_AFTER_INVALIDATION, "mkey", index, how, f"{variant} {who}")
        elif life is not None and there is None:
            how = f"{text}, {_last(life)}"
            self._find(FindingKind.KEY_AFTER_INVALIDATION, "mkey", index, how, f"{variant} {who}")
        else:
            self._find(FindingKind.UNKNOWN_KEY, "mkey", index, text, f"{variant} {who}")

    def rung(self, now_ns: int, kind: str, number: int, page: int) -> None:
        """A doorbell is for a queue that is not there, or not at this doorbell page."""
        self._now_ns = now_ns
        grave = self._graves.get((kind, number))
        text = f"doorbell of {kind} {number:#x} in page {page:#x}"
        if grave is not None:
            self._find(FindingKind.DOORBELL_AFTER_DESTROY, kind, number, f"{text}, {_last(grave)}", "")
        else:
            self._find(FindingKind.UNKNOWN_DOORBELL, kind, number, text, "")

    def left(self, now_ns: int, when: str, goodbye: bool) -> None:
        """What is there now is left: `goodbye`, if the driver said so."""
        self._now_ns = now_ns
        found = FindingKind.LEAK_AT_TEARDOWN if goodbye else FindingKind.LEAK_AT_RESET
        if FINDING_RULES[found].level > self.level:
            return
        for count, (kind, number) in enumerate(self._lives):
            if count == MOST_FINDINGS:
                self.left_out += len(self._lives) - count
                break
            self._find(found, kind, number, f"{kind} {number:#x} is left at {when}", "")

    def _context_ends(self, uid: int) -> None:
        for count, (kind, number) in enumerate(self._of_uid.get(uid, ())):
            if count == MOST_FINDINGS:
                self.left_out += len(self._of_uid[uid]) - count
                break
            text = f"{kind} {number:#x} is left by user context {uid}"
            self._find(FindingKind.LEAK_OF_CONTEXT, kind, number, text, "")

    def _find(self, found: FindingKind, kind: str, number: int, text: str, who: str) -> None:
        if FINDING_RULES[found].level > self.level:
            return
        same = self._found.get((found, kind, number, who))
        if same is not None:
            same.times += 1
        elif len(self._found) < MOST_FINDINGS:
            self._found[found, kind, number, who] = _Found(self._now_ns, text, self.life(kind, number))
        else:
            self.left_out += 1

    # ---- questions ----

    def life(self, kind: str, number: int) -> ObjectLife | None:
        """The life of an object, or of the last one with this number; None: nothing is known of it."""
        place = kind, number
        life = self._lives.get(place)
        alive = life is not None
        if life is None:
            life = self._graves.get(place)
        if life is None:
            return None
        return ObjectLife(
            kind, number, life.uid, alive, tuple(ObjectEvent(*each) for each in life.events), life.left_out
        )

    def known(self) -> list[Place]:
        """All objects that are there, and then those of the past."""
        return [*self._lives, *self._graves]

    def findings(self, card: str) -> tuple[Finding, ...]:
        """What was found on the card of this name, in the order in which it was seen first."""
        return tuple(
            Finding(card, found, each.time_ns, kind, number, each.text, each.life, each.times)
            for (found, kind, number, _), each in self._found.items()
        )


def _last(life: _Life) -> str:
    """What was done to an object last."""
    time_ns, what, by, *_ = life.events[-1]
    return f"{what} at {time_ns / 1e9:.6f} s by {by}"
