"""How long one card may keep the loop, and with it all other cards, waiting for its client.

A DMA message can only be waited for: what the card is doing cannot go on without the memory. An honest client
answers in a tenth of a millisecond, and time up to :data:`FREE_S` for a message costs nothing. Everything beyond that
is taken from an account, which fills up again slowly and which is the card's: a client cannot get a new one by
connecting again. Whoever empties it is dropped.

Many quick answers are a long wait, too: a card that has kept the others waiting for more than a moment in a round rests
before its next turn, so that they have most of the time.
"""

from __future__ import annotations

from typing import Final

ROUND_S: Final = 0.08
"""Waiting in one round of the loop, all messages together."""
FREE_S: Final = 0.001
ACCOUNT_S: Final = 0.5
REFILL: Final = 0.1
"""Seconds that come back to the account in each second: the share of all time that slow clients can take."""
MOMENT_S: Final = 0.002
"""Waiting in one round that is nobody's business: as long as a slice of the loop."""
REST: Final = 3
"""How often that time a card rests that took more."""


class WaitBudget:
    """The account of one card. Times are in s, of any clock that only goes forward.

    :ivar rest_until: when the card may have its next turn.
    """

    def __init__(self, round_s: float = ROUND_S, account_s: float = ACCOUNT_S) -> None:
        self._round_s = self._round_left = round_s
        self._account_s = self._account = account_s
        self._at = 0.0
        self.rest_until = 0.0

    def limit(self, now: float) -> float:
        """How long the next reply may take."""
        self._account = min(self._account_s, self._account + (now - self._at) * REFILL)
        self._at = now
        return max(0.0, min(self._round_left, FREE_S + self._account))

    def spend(self, begin: float, end: float) -> bool:
        """Take the time of a wait from the account; return whether it is empty now."""
        waited = end - begin
        self._round_left -= waited
        self._account -= max(0.0, waited - FREE_S)
        in_round = self._round_s - self._round_left
        if in_round > MOMENT_S:
            self.rest_until = end + REST * in_round
        return self._account <= 0

    def new_round(self) -> None:
        """The loop has been back, and others had their turn."""
        self._round_left = self._round_s
