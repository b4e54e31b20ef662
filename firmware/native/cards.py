"""What the engine in C knows of one card: its guest's memory, and keys as they are asked for.

Both are copies, so each has a stamp that changes with the original; :meth:`NativeCard.refresh` compares them before a
train begins.
"""

from typing import Any, cast

from firmware.memory import direct
from firmware.model.block import Scratch
from firmware.model.hca import Hca
from firmware.model.objects import MODE_MTT, MODE_PA, Mkey
from firmware.native.declarations import KeyKind
from firmware.native.library import Library, loaded
from vhca.hw.memory import MOST_SPANS, MappedMemory, Memory


def native_card(memory: Memory) -> "NativeCard | None":
    """The card with this memory; None if there is no engine in C, or the memory cannot be reached by address."""
    library = loaded()
    if not library.there or not hasattr(memory, "spans"):
        return None
    return NativeCard(library, cast(MappedMemory, memory))


class NativeCard(Scratch):
    """One card's memory and keys in C."""

    def __init__(self, library: Library, memory: MappedMemory) -> None:
        self._lib = library.lib
        self._ffi = library.ffi
        self._memory = memory
        self.card = library.ffi.gc(library.lib.vhca_card_new(), library.lib.vhca_card_free)
        self._generation = -1
        # What was seen of the card's table of keys, and of all keys, when the last one was added or all were forgotten.
        self._table: object = None
        self._table_changes = 0
        self._key_changes = 0
        self.usable = False
        # Counted whenever something has changed on the card that is more than the progress of trains.
        self.changes = 0

    @property
    def is_mapped(self) -> bool:
        """Whether C knows the guest's memory as it is."""
        return self.usable and self._memory.generation == self._generation

    def warm(self, qpn: int) -> None:
        """Ask the processor's cache for what a train of this queue pair reads, if it is known."""
        self._lib.vhca_card_warm(self.card, qpn)

    def note(self, qpn: int, runs: list[int]) -> None:
        """Note what a train of this queue pair reads, as :data:`firmware.native.declarations.RUNS` says."""
        self._lib.vhca_card_note(self.card, qpn, runs)

    def refresh(self, hca: Hca) -> bool:
        """Bring memory and keys up to date; False if the memory cannot be reached by address."""
        if self._memory.generation != self._generation:
            self._map()
        table = hca.mkeys
        if Mkey.changes != self._key_changes or table.changes != self._table_changes or table is not self._table:
            self._look(hca)
            self._lib.vhca_card_forget_keys(self.card)
        return self.usable

    def _look(self, hca: Hca) -> None:
        self._table = hca.mkeys
        self._table_changes = hca.mkeys.changes
        self._key_changes = Mkey.changes

    def _map(self) -> None:
        spans = self._memory.spans()
        self._generation = self._memory.generation
        self.usable = 0 < len(spans) <= MOST_SPANS
        if not self.usable:
            spans = []
        ffi = self._ffi
        self._lib.vhca_card_map(
            self.card,
            len(spans),
            ffi.new("uint64_t[]", [span.start for span in spans]),
            ffi.new("uint64_t[]", [span.end for span in spans]),
            ffi.new("void *[]", [ffi.cast("void *", span.place) for span in spans]),
            ffi.new("uint8_t[]", [span.readable | span.writable << 1 for span in spans]),
            ffi.cast("uint64_t *", self._memory.faults_at),
        )

    def add_key(self, hca: Hca, key: int) -> bool:
        """Tell C of a key; False if it is not one that C can use."""
        mkey = hca.mkeys.get(key >> 8)
        if mkey is None or mkey.variant != key & 0xFF or mkey.free or mkey.mode not in (MODE_PA, MODE_MTT):
            return False
        pages: Any = self._ffi.NULL
        count = linear = 0
        if mkey.mode == MODE_PA:
            kind = KeyKind.FLAT
        elif direct(mkey, mkey.start) >= 0:
            kind, linear = KeyKind.LINEAR, mkey.linear
        elif mkey.surveyed and mkey.mtts:
            # No view is kept, since a part may be put in place: any change of a key makes C forget all of them first.
            kind, count = KeyKind.PAGES, len(mkey.mtts) >> 3
            pages = self._ffi.cast("void *", self._ffi.from_buffer(mkey.mtts))
        else:
            return False
        flags = mkey.length64 | mkey.paged << 1 | mkey.remote_invalidate << 2
        # Looking at the list may have changed the stamp: what is known holds, this key's as well.
        self._look(hca)
        self._lib.vhca_card_add_key(
            self.card, key, mkey.pd, mkey.qpn, mkey.rights, kind, mkey.log_page_size, flags, mkey.start,
            mkey.length, linear, pages, count,
        )  # fmt: skip
        return True
