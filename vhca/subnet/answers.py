"""What agents answer to a manager: whether it is good, and what to do if it is not."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from vhca.subnet.counters import ManagerCount
from vhca.subnet.transactions import Request
from vhca.wire.mad import STATUS_DIRECTION, Smp

log = logging.getLogger(__name__)

Answers = Sequence[Smp | None]
CountRefused = Callable[[Sequence[Request], Answers], None]


def ok(answer: Smp | None) -> bool:
    """Tell whether there is an answer, and a good one."""
    return answer is not None and not answer.status & ~STATUS_DIRECTION


def refusals(counters: Counter[ManagerCount]) -> CountRefused:
    """What counts and logs the requests that agents refused."""

    def count(requests: Sequence[Request], answers: Answers) -> None:
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None and not ok(answer):
                counters[ManagerCount.REFUSED_SETS] += 1
                log.warning(
                    "agent at %s refused attribute %#06x/%#x: status %#06x",
                    request.path,
                    request.attr_id,
                    request.attr_mod,
                    answer.status,
                )

    return count
