"""Claims come out in real guests as they are stored; a quick part of them, or all if VHCA_ALL_CLAIMS is set."""

from __future__ import annotations

import os

import pytest

from acceptance.claims.bench import GUEST, RACK, SPARE_HCAS, Bench
from acceptance.claims.framework import Claim, Findings, all_claims, choose, packages_of
from acceptance.claims.report import KIND, load
from acceptance.claims.run import judge
from acceptance.claims.verdict import Status, Verdict
from acceptance.places import results_folder
from vhca.lab import Lab

#: One or two of each group: a trace, a two-sided script, a fault, a claim that is contradicted.
QUICK = ("A02", "A07", "B17", "C03", "C06", "C08", "D06", "E02", "F02", "F03", "F06")
CHOSEN = [] if os.environ.get("VHCA_ALL_CLAIMS") else [c.id for c in all_claims() if c.id in QUICK]
STORED = load(results_folder(KIND, None), "6.19")

pytestmark = pytest.mark.vhca(
    guests=2, guest=GUEST, rack=RACK, spare_hcas=SPARE_HCAS, extra_packages=packages_of(choose(all_claims(), CHOSEN))
)


@pytest.mark.parametrize("claim", choose(all_claims(), CHOSEN), ids=lambda claim: claim.id)
def test_claim_comes_out_as_stored(claim: Claim, lab: Lab) -> None:
    bench = Bench(lab)
    verdict = judge(claim, bench)
    shown = "\n".join(f"[{item.where}] {item.command}\n{item.output}" for item in verdict.evidence)
    assert verdict.status is not Status.FAILED, f"{verdict.summary}\n{shown}"
    assert STORED is not None
    stored = STORED.outcomes[claim.id].verdict
    # what needs the kernel's source is looked up only on request
    if verdict.status is not Status.NOT_OBSERVABLE:
        assert verdict.status is stored.status, f"{verdict.summary}\n{shown}"
    if "spoils" in claim.needs or not bench.usable():
        bench.renew()


def test_an_untrue_claim_is_contradicted_by_a_guest(lab: Lab) -> None:
    """The same bench, asked whether the port is down: the guest says otherwise."""

    def port_is_down(bench: Bench) -> Verdict:
        state = bench.run("cat /sys/class/infiniband/mlx5_0/ports/1/state").stdout.strip()
        found = Findings()
        found.check("the port is down", "DOWN" in state, f"the port is {state}")
        return found.verdict()

    verdict = judge(Claim("Z01", "the port is down", frozenset(), port_is_down), Bench(lab))
    assert verdict.status is Status.CONTRADICTED
    assert verdict.summary == "the port is 4: ACTIVE"
    assert verdict.evidence[0].output == "4: ACTIVE"
