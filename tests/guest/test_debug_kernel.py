"""A kernel that is built here with what finds faults, and traffic on it that it has nothing to say of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from acceptance.claims.bench import Bench
from acceptance.claims.framework import all_claims, choose
from acceptance.claims.run import judge
from acceptance.claims.verdict import Status
from acceptance.demo import run
from vhca.lab import Cache, GuestConfig, Lab, Progress, build_kernel, prepare

pytestmark = pytest.mark.skipif(
    os.environ.get("VHCA_DEBUG_KERNEL") != "build",
    reason="builds a kernel for a quarter of an hour; `make debug-kernel` runs it",
)


@pytest.fixture(scope="module")
def kernel() -> str:
    built = build_kernel("linux-source-6.19", debug=True, progress=Progress(sys.stderr))
    assert built.lacks == []
    return built.name


def test_the_demonstration_on_it_and_a_clean_log(kernel: str, tmp_path: Path) -> None:
    progress, cache = Progress(sys.stderr), Cache()
    lab = Lab(2, kernel, guest=GuestConfig(boot_timeout_s=300.0), log_dir=tmp_path / "logs", cache=cache)
    table = run(lab, progress, lambda: prepare(progress, kernel, cache=cache))
    assert "6.19.14-vhca-debug" in table


def test_leaks_show_in_dma_debugging(kernel: str, tmp_path: Path) -> None:
    (claim,) = choose(all_claims(), ["C05"])
    with Bench(kernel=kernel, log_dir=tmp_path / "logs") as bench:
        verdict = judge(claim, bench)
    assert verdict.status is Status.CONFIRMED, verdict.summary
    assert [statement for statement in verdict.statements if statement.holds is None] == []
