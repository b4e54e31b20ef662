"""Claims come out as what was seen, never as what was expected; the bench's notebook and trace parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from acceptance.claims import framework
from acceptance.claims.bench import Bench, Result, ScriptError, excerpt, last_object
from acceptance.claims.framework import Claim, Findings, all_claims, choose, claim, packages_of
from acceptance.claims.run import judge, run_claims
from acceptance.claims.trace import Probe, Trace, parse, too_old
from acceptance.claims.verdict import CannotSee, Evidence, Status, Verdict
from vhca.lab import Guest
from vhca.lab.errors import Completed, GuestError


class FakeBench:
    """Stands in for the bench: claims may look at a world that the test made."""

    def __init__(self, world: dict[str, object]) -> None:
        self.world = world
        self.evidence: list[Evidence] = []
        self.renewed = 0
        self.works = True
        self.booted = False

    @property
    def lab(self) -> object:
        self.booted = True
        return self

    def start_notes(self) -> None:
        self.evidence = []

    def note_trouble(self) -> None:
        self.evidence.append(Evidence("world", "dmesg", "the sky fell"))

    def renew(self) -> None:
        self.renewed += 1
        self.works = True

    def usable(self) -> bool:
        return self.works

    def look(self, name: str) -> object:
        seen = self.world[name]
        self.evidence.append(Evidence("world", f"look at {name}", str(seen)))
        return seen


def as_bench(fake: FakeBench) -> Bench:
    return cast(Bench, fake)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    known: dict[str, Claim] = {}
    monkeypatch.setattr(framework, "_REGISTRY", known)
    return known


def observed(registry: dict[str, Claim]) -> Claim:
    @claim("A01", "the sky is blue")
    def sky(bench: Bench) -> Verdict:
        colour = cast(FakeBench, bench).look("sky")
        found = Findings()
        found.check("the sky is blue", colour == "blue", f"the sky is {colour}")
        return found.verdict("blue it is")

    return registry["A01"]


@pytest.mark.parametrize(
    ("world", "status", "summary"),
    [
        ({"sky": "blue"}, Status.CONFIRMED, "blue it is"),
        ({"sky": "green"}, Status.CONTRADICTED, "the sky is green"),
        ({}, Status.FAILED, "KeyError: 'sky'"),
    ],
)
def test_the_same_claim_comes_out_as_the_world_is(
    registry: dict[str, Claim], world: dict[str, object], status: Status, summary: str
) -> None:
    verdict = judge(observed(registry), as_bench(FakeBench(world)))
    assert (verdict.status, verdict.summary) == (status, summary)


def test_one_statement_that_does_not_hold_contradicts_the_claim() -> None:
    found = Findings()
    found.check("water is wet", True)
    found.check("fire is cold", False, "fire is hot")
    found.unseen("the moon is cheese", "too far away")
    found.note("the sun is warm")
    verdict = found.verdict("all is as they say")
    assert verdict.status is Status.CONTRADICTED
    assert verdict.summary == "fire is hot. The sun is warm"


def test_what_could_not_be_seen_is_said() -> None:
    found = Findings()
    found.unseen("the moon is cheese", "too far away")
    assert found.verdict("cheese").status is Status.NOT_OBSERVABLE
    assert found.verdict("cheese").summary == "too far away"
    found.check("water is wet", 1)
    verdict = found.verdict("wet")
    assert verdict.status is Status.CONFIRMED
    assert "not observed: the moon is cheese (too far away)" in verdict.summary


def test_nothing_checked_confirms_nothing() -> None:
    assert Findings().verdict("certainly").status is Status.NOT_OBSERVABLE


def test_a_verdict_without_evidence_is_a_failure(registry: dict[str, Claim]) -> None:
    @claim("A02", "trust me")
    def trust(bench: Bench) -> Verdict:
        return Verdict(Status.CONFIRMED, "trust me")

    verdict = judge(registry["A02"], as_bench(FakeBench({})))
    assert verdict.status is Status.FAILED
    assert "no evidence" in verdict.summary


def test_a_claim_that_returns_something_else_is_a_failure(registry: dict[str, Claim]) -> None:
    @claim("A03", "yes")
    def yes(bench: Bench) -> Verdict:
        return cast(Verdict, True)

    assert judge(registry["A03"], as_bench(FakeBench({}))).status is Status.FAILED


def test_what_a_kernel_has_no_means_to_show_is_not_observable(registry: dict[str, Claim]) -> None:
    @claim("A05", "probes tell names")
    def names(bench: Bench) -> Verdict:
        raise CannotSee("too old")

    verdict = judge(registry["A05"], as_bench(FakeBench({})))
    assert (verdict.status, verdict.summary) == (Status.NOT_OBSERVABLE, "too old")
    assert [too_old(release) for release in ("6.1.0-50-amd64", "6.5.3", "6.6.0", "6.19.14", "7.2.1")] == [
        True,
        True,
        False,
        False,
        False,
    ]


class KernelWithout:
    """A guest whose kernel refuses a trace as `error_log` tells, and has no DMA events."""

    name = "g0"

    def __init__(self, error_log: str) -> None:
        self._error_log = error_log

    def run(self, words: Sequence[str], timeout_s: float) -> Completed:
        script = words[-1]
        if script.startswith("set -e"):
            return Completed(words, 1, "", "I/O error")
        answers = {"tail": self._error_log, "uname": "7.3.4-x", "[ -d": "dma/dma_map_phys" if "dma/" in script else ""}
        return Completed(words, 0, next((said for word, said in answers.items() if script.startswith(word)), ""), "")


@pytest.mark.parametrize(
    ("probes", "events", "log", "said"),
    [
        (
            [Probe("umem", "ib_umem_get")],
            [],
            "symbol\n  Command: p:vhca/umem ib_umem_get addr=addr:x64\n     ^",
            "umem_get",
        ),
        ([], ["dma/dma_map_phys"], "", "the trace event dma/dma_map_phys, which 7.3.4-x does not have"),
    ],
)
def test_what_a_kernel_does_not_have_is_not_observable(
    probes: list[Probe], events: list[str], log: str, said: str
) -> None:
    log = f"[ 24.2] trace_kprobe: error: Invalid probed address or {log}" if log else log
    with pytest.raises(CannotSee, match=said), Trace(cast(Guest, KernelWithout(log)), probes, events):
        pass


def test_a_trace_that_fails_for_another_reason_is_a_failure() -> None:
    log = "trace_kprobe: error: Bad fetch arg\n  Command: p:vhca/x f a=+0(:x64"
    with pytest.raises(GuestError, match="Bad fetch"), Trace(cast(Guest, KernelWithout(log)), [Probe("x", "f")]):
        pass


def test_evidence_of_a_failure_holds_what_was_seen_and_the_traceback(registry: dict[str, Claim]) -> None:
    @claim("A04", "both are there")
    def both(bench: Bench) -> Verdict:
        fake = cast(FakeBench, bench)
        fake.look("one")
        fake.look("two")
        raise AssertionError

    verdict = judge(registry["A04"], as_bench(FakeBench({"one": 1})))
    assert [item.command for item in verdict.evidence] == ["look at one", "dmesg", "traceback"]


def test_broken_and_spoiled_guests_are_replaced(registry: dict[str, Claim]) -> None:
    def see(bench: Bench) -> Verdict:
        cast(FakeBench, bench).look("sky")
        return Verdict(Status.CONFIRMED, "seen")

    def break_it(bench: Bench) -> Verdict:
        cast(FakeBench, bench).works = False
        return see(bench)

    def fail(bench: Bench) -> Verdict:
        raise GuestError("the guest went away")

    claim("A01", "calm")(see)
    claim("A02", "wild")(break_it)
    claim("A03", "calm again")(see)
    claim("A04", "spoiled", needs=("spoils",))(see)
    claim("A05", "failed")(fail)
    fake = FakeBench({"sky": "blue"})
    counts: list[int] = []
    verdicts = run_claims(registry.values(), as_bench(fake), lambda _claim, _verdict: counts.append(fake.renewed))
    assert counts == [0, 0, 1, 1, 2]
    assert fake.renewed == 3
    assert [verdict.status.value for verdict in verdicts.values()] == ["confirmed"] * 4 + ["failed"]


def test_a_claim_without_guests_boots_none(registry: dict[str, Claim]) -> None:
    def see(bench: Bench) -> Verdict:
        cast(FakeBench, bench).look("sky")
        return Verdict(Status.CONFIRMED, "seen")

    claim("A01", "book", needs=("no-guest",))(see)
    fake = FakeBench({"sky": "blue"})
    judge(registry["A01"], as_bench(fake))
    assert not fake.booted


@pytest.mark.parametrize("words", [("1A", ()), ("A1", ()), ("A01", ("coffee",))])
def test_malformed_claims_are_refused(registry: dict[str, Claim], words: tuple[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match=r"not the id|choose from"):
        claim(words[0], "text", needs=words[1])


def test_an_id_has_one_test(registry: dict[str, Claim]) -> None:
    observed(registry)
    with pytest.raises(ValueError, match="has a test already"):
        observed(registry)


def test_claims_are_chosen_by_id_and_by_group() -> None:
    claims = all_claims()
    names = [c.id for c in claims]
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert {f"A{n:02d}" for n in range(1, 13)} <= set(names)
    assert [c.id for c in choose(claims, ["a02", "A01"])] == ["A01", "A02"]
    assert {c.group for c in choose(claims, ["a"])} == {"A"}
    assert choose(claims, []) == claims
    with pytest.raises(KeyError, match="Z99"):
        choose(claims, ["A01", "Z99"])


def test_guests_get_the_packages_of_the_claims_that_are_chosen() -> None:
    claims = all_claims()
    assert packages_of(choose(claims, ["A", "F01"])) == ()
    assert {"nvme-cli", "open-iscsi", "srptools"} <= set(packages_of(choose(claims, ["F"])))


# ---- the notebook and the trace ----


def test_a_script_says_what_it_saw_in_its_last_object() -> None:
    assert last_object('hello\n{"a": 1}\n{"b": 2}\nbye\n') == {"b": 2}
    assert last_object("{no json\n[1]\n") is None
    result = Result({"b": 2}, Completed(["x.py"], 0, "", ""))
    assert result["b"] == 2
    assert result.get("c") is None
    with pytest.raises(ScriptError, match="nothing about 'c'"):
        result["c"]


def test_long_output_is_cut_from_the_middle() -> None:
    text = excerpt("\n".join(map(str, range(1000))))
    assert text.startswith("0\n1\n")
    assert text.endswith("998\n999")
    assert "940 lines" in text
    assert len(excerpt("x" * 100_000)) < 1000


TRACE = """\
# tracer: nop
#
        modprobe-402   [000] .....    12.345678: add: (add_client_context+0x0/0x1a0 [ib_core]) device="mlx5_0" n=3
        modprobe-402   [000] .....    12.345679: <stack trace>
 => add_client_context
 => enable_device_and_get+0x1
 kworker/u4:0-12     [000] .....    13.000001: sys_enter: NR 110 (7f, 0, a1, 6, 0, 7f)
"""


def test_trace_lines_become_events_with_stacks() -> None:
    first, second = parse(TRACE)
    assert (first.task, first.pid, first.time_s, first.name) == ("modprobe", 402, 12.345678, "add")
    assert first.arguments == {"device": "mlx5_0", "n": "3"}
    assert first.stack == ["add_client_context", "enable_device_and_get"]
    assert (second.task, second.pid, second.text) == ("kworker/u4:0", 12, "NR 110 (7f, 0, a1, 6, 0, 7f)")
    assert second.stack == []


def test_probes_are_written_in_the_kernels_syntax() -> None:
    assert Probe("add", "m:f", "a=$arg1").definition == "p:vhca/add m:f a=$arg1"
    assert Probe("back", "f", on_return=True).definition == "r:vhca/back f"


def test_arguments_of_any_kind_are_kept() -> None:
    event = parse('  x-1 [000] ..... 1.0: e: (f+0x0/0x1) s="a b" t=f+0x1/0x2 v={1,2}\n')[0]
    expected: dict[str, Any] = {"s": "a b", "t": "f+0x1/0x2", "v": "{1,2}"}
    assert event.arguments == expected
