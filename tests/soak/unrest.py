"""What happens to the fabric of a soak: cables fall and come back, OpenSM in a guest takes over, dies, comes again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tests.soak.distant import DistantRack
from vhca.lab import Guest

PAUSE_S: Final = (1.0, 5.0)
TRUNK_S: Final = (0.1, 2.0)
CARD_S: Final = (0.1, 0.6)
"""How long a guest's cable is out; the manager then has to bring up its port, while trunks are led around."""
CARD_PART: Final = 0.15
REIGN_S: Final = (20.0, 45.0)
CHANGE_S: Final = 60.0
"""How long a change of managers may take."""
OPENSM: Final = ("sh", "-c", "mkdir -p /var/cache/opensm; exec opensm -p 14 -f /tmp/opensm.log")


class Unrest:
    """Cables and managers change until it is stopped; `reign_s`: how long each manager is left, at least and at most.

    :ivar done: how often what happened.
    :ivar trouble: what did not happen that should have.
    """

    def __init__(
        self,
        rack: DistantRack,
        trunks: Sequence[str],
        cards: Sequence[str],
        host: Guest,
        seed: int,
        reign_s: tuple[float, float] = REIGN_S,
    ) -> None:
        self.done: Counter[str] = Counter()
        self.trouble: list[str] = []
        self._rack = rack
        self._trunks = trunks
        self._cards = cards
        self._host = host
        self._reign_s = reign_s
        self._chance = random.Random(seed)
        self._end = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._cut, self._overthrow)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End with all cables plugged and our own manager as master."""
        self._end.set()
        for thread in self._threads:
            thread.join(2 * CHANGE_S)
            if thread.is_alive():
                self.trouble.append("a change of cables or managers does not end")

    def _cut(self) -> None:
        while not self._end.wait(self._chance.uniform(*PAUSE_S)):
            is_card = self._chance.random() < CARD_PART
            cable = self._chance.choice(self._cards if is_card else self._trunks)
            self._rack.set_link(cable, False)
            time.sleep(self._chance.uniform(*(CARD_S if is_card else TRUNK_S)))
            self._rack.set_link(cable, True)
            self.done["guests' cables" if is_card else "trunks"] += 1
            # One at a time: who tries for half a minute is not to be promised more.
            if not _in_time(self._rack.healed, CHANGE_S):
                self.trouble.append(f"{cable} is not Active after {CHANGE_S:.0f} s")

    def _overthrow(self) -> None:
        chance = random.Random(self._chance.random())
        while not self._end.wait(chance.uniform(*self._reign_s)):
            opensm = self._host.popen(list(OPENSM))
            if not self._becomes("standby"):
                self.trouble.append(f"OpenSM does not take over: {self._host.run(['tail', '/tmp/opensm.log']).stdout}")
            self.done["to OpenSM"] += 1
            self._end.wait(chance.uniform(*self._reign_s))
            opensm.kill()
            opensm.wait(30)
            if not self._becomes("master"):
                self.trouble.append("our manager does not take over again")
            self.done["and back"] += 1

    def _becomes(self, state: str) -> bool:
        return _in_time(lambda: self._rack.manager_state() == state, CHANGE_S)


def _in_time(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True
