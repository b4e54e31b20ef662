"""Runs claims on a bench, one after the other, each on guests that work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from acceptance.claims.bench import Bench
from acceptance.claims.framework import Claim
from acceptance.claims.verdict import CannotSee, Status, Verdict
from vhca.lab import LabError


def judge(claim: Claim, bench: Bench) -> Verdict:
    """The verdict of one claim. Never raises for what goes wrong in the claim: that is status FAILED."""
    started_s = time.monotonic()
    bench.start_notes()
    try:
        if "no-guest" not in claim.needs:
            if "fresh" in claim.needs and bench.booted:
                bench.renew()
            bench.lab  # noqa: B018 - boots it
        verdict = claim.observe(bench)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"the test of {claim.id} returned {verdict!r}, not a verdict")
    except CannotSee as why:
        verdict = Verdict.not_observable(str(why))
    except Exception as error:
        verdict = Verdict.failed(error)
        with contextlib.suppress(Exception):  # must not hide why the claim failed
            bench.note_trouble()
    verdict.evidence = [*bench.evidence, *verdict.evidence]
    if verdict.status in (Status.CONFIRMED, Status.CONTRADICTED) and not verdict.evidence:
        verdict = Verdict.failed(LabError(f"the test of {claim.id} gives no evidence for {verdict.status.value!r}"))
    verdict.seconds = time.monotonic() - started_s
    return verdict


def run_claims(
    claims: Iterable[Claim], bench: Bench, tell: Callable[[Claim, Verdict], None] | None = None
) -> dict[str, Verdict]:
    """Judge claims in order. Guests that a claim spoiled or broke are replaced before the next one."""
    verdicts: dict[str, Verdict] = {}
    for claim in claims:
        verdict = verdicts[claim.id] = judge(claim, bench)
        if tell is not None:
            tell(claim, verdict)
        if bench.booted and ("spoils" in claim.needs or verdict.status is Status.FAILED or not bench.usable()):
            bench.renew()
    return verdicts
