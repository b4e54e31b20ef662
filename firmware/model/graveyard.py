"""Tables of objects that a reset has dropped, freed a few objects at a time.

A guest may have made a million objects. Dropping them in one go takes this program a second, which is everybody's time.
"""

from collections import deque
from typing import Any, Final

# Objects of one piece: some tenths of a millisecond. One that holds long lists counts as an object for each so many
# bytes: giving 16 MiB back takes a millisecond.
PIECE: Final = 256
BYTES_PER_OBJECT: Final = 32 << 10

Grave = dict[Any, Any] | list[Any] | deque[Any]


class Graveyard:
    """What one card has dropped and not freed yet."""

    __slots__ = ("_graves",)

    def __init__(self) -> None:
        self._graves: deque[Grave] = deque()

    def bury(self, *graves: Grave) -> None:
        """Take containers over; nobody else uses them any more."""
        self._graves.extend(grave for grave in graves if grave)

    def adopt(self, other: "Graveyard") -> None:
        """Take over what another one holds."""
        self._graves.extend(other._graves)
        other._graves.clear()

    def shrink(self, most: int = PIECE) -> bool:
        """Free so many objects; True if there are more."""
        graves = self._graves
        while graves and most > 0:
            grave = graves.popleft()
            while grave and most > 0:
                most -= self._let_go(grave.popitem()[1] if isinstance(grave, dict) else grave.pop())
            if grave:
                graves.appendleft(grave)
        return bool(graves)

    def _let_go(self, thing: object) -> int:
        """Break the circles that an object is part of: nothing but the collector would free it otherwise.

        Returns how many objects it counts as.
        """
        if isinstance(thing, tuple):
            thing = thing[-1]
        let_go = getattr(thing, "let_go", None)
        if let_go is not None:
            self.bury(*let_go())
        charged: int = getattr(thing, "charged", 0)
        return 1 + charged // BYTES_PER_OBJECT

    def __bool__(self) -> bool:
        """True if there is something to free."""
        return bool(self._graves)
