"""The pytest plugin, over labs that are stand-ins: what is shared, what is fresh, what a report says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import vhca.lab

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
import pytest
import vhca.lab
from vhca.lab.errors import {errors}

class Agent:
    def ping(self, timeout_s): pass

class Guest:
    def __init__(self, name): self.name, self.alive, self.agent = name, True, Agent()
    said = {{"g0": []}}
    kernel_evidence = "kernel.log"
    def kernel_reports(self): return self.said.pop(self.name, [])
    console_log = "booting\\nlast words"
    console_path = "console.log"

class Hca:
    name = "h0"
    def counters(self): return {{"packets": 7, "nothing": 0}}
    def objects(self): return {{"qp": 2}}

class Lab:
    number = 0
    def __init__(self, guests=2, kernel="6.19", log_dir=None, progress=None):
        Lab.number += 1
        self.log_dir = log_dir
        self.number, self.guest_count, self.hcas = Lab.number, guests, [Hca()]
        self.guests = [Guest(f"g{{i}}") for i in range(guests)]
    def start(self):
        {start}
        return self
    rules = []
    def faults(self, card):
        from vhca.chip.fault_rules import parse_rule
        if card != "g0": raise vhca.lab.LabError(f"there is no card {{card}}")
        class Faults:
            def add(self, rule): Lab.rules.append(parse_rule(rule).text)
        return Faults()
    def clear_faults(self): Lab.rules.clear()
    def mark_failed(self): print("marked failed", self.number)
    def stop(self, failed=False):
        with open("stops", "a") as f: f.write(f"{{self.number}} {{failed}}\\n")

vhca.lab.Lab = Lab
"""


@pytest.fixture(autouse=True)
def _lab_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner runs share our process, and their conftest puts a stand-in into the package."""
    monkeypatch.setattr("vhca.lab.Lab", vhca.lab.Lab)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    return _with_start(pytester, "pass")


def _with_start(pytester: pytest.Pytester, start: str) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.format(start=start, errors="GuestError, PackageError"))
    return pytester


def _run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_inprocess("-p", "vhca.lab.pytest_plugin", "--strict-markers", *arguments)


def test_labs_of_one_configuration_are_shared(suite: pytest.Pytester) -> None:
    result = _run(
        suite,
        """
        import pytest
        def test_one(guest_pair, lab): assert [g.name for g in guest_pair] == ["g0", "g1"] and lab.number == 1
        def test_two(lab): assert lab.number == 1
        def test_more_guests_than_needed_will_do(guest, lab): assert (guest.name, lab.number) == ("g0", 1)
        @pytest.mark.vhca(guests=3)
        def test_other(lab): assert lab.number == 2 and len(lab.guests) == 3
        @pytest.mark.vhca(guests=1)
        def test_exactly_one(lab): assert lab.number == 3 and len(lab.guests) == 1
        @pytest.mark.vhca(fresh=True)
        def test_fresh(lab): assert lab.number == 4 and len(lab.guests) == 2
        """,
    )
    result.assert_outcomes(passed=6)
    # the lab used longest ago made room for the third; the fresh one went at once; the rest at the end
    assert (suite.path / "stops").read_text().split("\n") == ["1 False", "4 False", "2 False", "3 False", ""]


def test_faults_are_there_for_one_test(suite: pytest.Pytester) -> None:
    result = _run(
        suite,
        """
        import pytest
        pytestmark = pytest.mark.vhca_fault("g0", "command any lost")
        @pytest.mark.vhca_fault("g0", "event CMD lost", "interrupt late=1s")
        def test_two_more(lab): assert lab.rules == ["command any lost", "event CMD lost", "interrupt late=1s"]
        def test_one(lab): assert lab.rules == ["command any lost"]
        @pytest.mark.vhca_fault("g0", "command any lots")
        def test_no_rule(lab): pass
        @pytest.mark.vhca_fault("g9", "command any lost")
        def test_no_card(lab): pass
        @pytest.mark.vhca_fault("g0")
        def test_nothing(lab): pass
        """,
    )
    result.assert_outcomes(passed=2, errors=3)
    for said in ("knows no 'lots' (did you mean lost?)", "there is no card g9", "takes a card and rules, not"):
        result.stdout.fnmatch_lines([f"*UsageError: @pytest.mark.vhca_fault*{said.replace('?', '[?]')}*"])


def test_a_failed_test_shows_evidence_and_spends_its_lab(suite: pytest.Pytester) -> None:
    result = _run(suite, "def test_a(lab): assert lab.number == 9\ndef test_b(lab): assert lab.number == 2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*console of g0 (console.log)*", "last words", "*counters of h0*", "packets = 7"])
    result.stdout.fnmatch_lines(["live qp = 2"])
    result.stdout.no_fnmatch_line("nothing = 0")
    assert (suite.path / "stops").read_text().splitlines()[0] == "1 True"


def test_recordings_of_a_failed_test_are_kept_and_named(suite: pytest.Pytester) -> None:
    conftest = suite.path / "conftest.py"
    text = conftest.read_text().replace("progress=None):", "progress=None, record=None):")
    made = """self.log_dir = log_dir
        if record:
            from vhca.replay.recorder import Recordings
            self.recordings = Recordings(record)
            record.mkdir(parents=True)
            (record / "h0.vhcarec").touch()"""
    conftest.write_text(text.replace("self.log_dir = log_dir", made))
    tests = "def test_a(lab): assert lab.number == 9\ndef test_b(lab): assert lab.number == 2"
    result = _run(suite, tests, "--vhca-record=failed", "--vhca-artefacts=logs")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*recordings of the cards*", "vhca replay *logs/lab-1-*/recordings"])
    assert len(list((suite.path / "logs").glob("lab-1-*/recordings/h0.vhcarec"))) == 1
    assert not list((suite.path / "logs").glob("lab-2-*/recordings"))
    result = _run(suite, tests, "--vhca-record=all", "--vhca-artefacts=more")
    assert len(list((suite.path / "more").glob("lab-*/recordings/h0.vhcarec"))) == 2
    result = _run(suite, tests, "--vhca-artefacts=none")
    assert not list((suite.path / "none").glob("lab-*/recordings"))


KERNELS = """
import pytest
seen = []
def note(lab, request): seen.append((request.node.name, lab.number, lab.kernel))
def test_one(lab, request): note(lab, request)
def test_two(guest, lab, request): note(lab, request)
@pytest.mark.vhca(kernel="5.10")
def test_named(lab, request): note(lab, request)
@pytest.mark.vhca(kernels=("6.2", "6.3"))
def test_several(lab, request): note(lab, request)
def test_without_guests(): pass
def test_end():
    for line in seen: print(*line)
"""


def test_tests_run_once_on_each_kernel_and_share_labs(suite: pytest.Pytester) -> None:
    conftest = suite.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("Lab.number += 1", "Lab.number += 1; self.kernel = kernel"))
    result = _run(suite, KERNELS, "--vhca-kernels", "6.1, 6.19", "-s")
    result.assert_outcomes(passed=9)
    seen = re.findall(r"(test_\w+\[\S+\]) (\d+) (\S+)", result.stdout.str())
    assert {(name, kernel) for name, _, kernel in seen} == {
        (f"{test}[{kernel}]", kernel)
        for test, kernels in (
            ("test_one", ("6.1", "6.19")),
            ("test_two", ("6.1", "6.19")),
            ("test_several", ("6.2", "6.3")),
        )
        for kernel in kernels
    }
    labs = {kernel: {number for _, number, other in seen if other == kernel} for _, _, kernel in seen}
    assert [len(numbers) for numbers in labs.values()] == [1] * 4, "tests on one kernel share its lab"


@pytest.mark.parametrize("marker", ["kernels='6.1'", "kernel='6.1', kernels=('6.2',)"])
def test_kernels_are_several_or_one(suite: pytest.Pytester, marker: str) -> None:
    result = _run(suite, f"import pytest\n@pytest.mark.vhca({marker})\ndef test_a(lab): pass")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*takes kernel='6.19', or kernels=*"])


def test_junit_has_the_evidence_of_a_failed_test(suite: pytest.Pytester) -> None:
    test = """
    import pytest
    def test_a(lab): assert False
    def test_b(lab): pass
    @pytest.fixture
    def broken(lab): assert False
    def test_c(broken): pass
    """
    _run(suite, test, "--junitxml=j.xml")
    cases = {case.get("name"): case for case in ElementTree.parse(suite.path / "j.xml").iter("testcase")}
    for name in ("test_a", "test_c"):
        found = {prop.get("name"): prop.get("value", "") for prop in cases[name].iter("property")}
        assert "last words" in found["console of g0 (console.log)"]
        assert "packets = 7" in found["counters of h0"]
    assert not list(cases["test_b"].iter("property"))


def test_logs_go_where_the_user_says(pytester: pytest.Pytester) -> None:
    suite = _with_start(pytester, 'open("where", "a").write(f"{self.log_dir}\\n"); self.log_dir.mkdir(parents=True)')
    test = "def test_a(lab): assert False\ndef test_b(lab): pass"
    for _ in range(2):
        _run(suite, test, "--vhca-artefacts=out").assert_outcomes(passed=1, failed=1)
    where = [Path(line) for line in (suite.path / "where").read_text().splitlines()]
    assert len(set(where)) == 4
    assert {place.parent for place in where} == {suite.path / "out"}


def test_a_skip_s_reason_is_whole(pytester: pytest.Pytester) -> None:
    suite = _with_start(pytester, 'raise PackageError("apt failed:\\n  E: no route\\n  E: more", "check it")')
    result = _run(suite, "def test_a(guest): pass", "-ra")
    whole = "apt failed: E: no route E: more -> check it"
    result.stdout.fnmatch_lines([f"vhca: guest tests skipped: 1: {whole}", f"SKIPPED*cannot run here: {whole}"])


def test_a_lab_whose_guest_died_is_replaced(suite: pytest.Pytester) -> None:
    test = """
    def test_kill(lab): lab.guests[1].alive = False
    def test_next(lab): assert lab.number == 2
    """
    _run(suite, test).assert_outcomes(passed=2)


def test_a_host_that_cannot_run_guests_skips_and_says_so(pytester: pytest.Pytester) -> None:
    suite = _with_start(pytester, 'raise PackageError("no mirror", "find one")')
    test = "def test_a(guest): pass\ndef test_b(guest): pass\ndef test_c(): pass"
    result = _run(suite, test, "-ra")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["vhca: guest tests skipped: 2: no mirror -> find one", "SKIPPED*cannot run here: no mirror*"]
    )
    _run(suite, test, "--vhca-require-guests").assert_outcomes(passed=1, errors=2)


def test_a_guest_that_does_not_boot_is_a_failure(pytester: pytest.Pytester) -> None:
    suite = _with_start(pytester, 'raise GuestError("g0 does not boot")')
    _run(suite, "def test_a(guest): pass").assert_outcomes(errors=1)


def test_the_marker_guest_selects(suite: pytest.Pytester) -> None:
    test = """
    import pytest
    def test_boots(guest): pass
    class TestOwn:
        @pytest.fixture
        def lab(self): return 1
        def test_with_a_lab_of_its_own(self, lab): assert lab == 1
    """
    _run(suite, test, "-m", "guest").assert_outcomes(passed=1, deselected=1)
    _run(suite, test, "-m", "not guest").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(("marker", "words"), [("gests=2", "gests"), ("2", "keywords only")])
def test_a_wrong_marker_is_explained(marker: str, words: str, suite: pytest.Pytester) -> None:
    result = _run(suite, f"import pytest\n@pytest.mark.vhca({marker})\ndef test_a(lab): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{words}*"])


def test_a_session_without_guests_pays_nothing() -> None:
    code = (
        "import sys, pytest, vhca.lab; before = set(sys.modules); import vhca.lab.pytest_plugin;"
        " print(*sorted(set(sys.modules) - before), *(n for n in sys.modules if n.startswith('vhca.chip.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    names = ("pytest_findings", "pytest_plugin", "pytest_record", "pytest_trace")
    options = [f"vhca.lab.{name}" for name in names]
    assert done.stdout.split() == [*options, "vhca.chip.rack_config"]  # of the device, its description


_SAYS = "lab.guests[0].said['g0'] = [Report('WARNING', 'WARNING: CPU: 0 at x.c:1 f+0x1', ('all of it',))]"


@pytest.mark.parametrize(
    ("marker", "options", "passed"),
    [
        ("", (), False),
        ("@pytest.mark.vhca_allow_kernel_bug('y.c')", (), False),
        ("@pytest.mark.vhca_allow_kernel_bug('x.c:')", (), True),
        ("", ("-o", "vhca_allow_kernel_bug=z.c\nx.c"), True),
        ("", ("-o", "vhca_fail_on_kernel_bug=false"), True),
    ],
)
def test_what_a_kernel_reports_fails_the_test(
    marker: str, options: tuple[str, ...], passed: bool, suite: pytest.Pytester
) -> None:
    test = f"import pytest\nfrom vhca.lab import Report\n{marker}\ndef test_a(lab): {_SAYS}\ndef test_b(lab): pass"
    result = _run(suite, test, *options)
    result.assert_outcomes(passed=1 + passed, failed=0 if passed else 1)
    if not passed:
        result.stdout.fnmatch_lines(
            ["g0: the kernel reported: WARNING: CPU: 0 at x.c:1*", "*in kernel.log*", "all of it"]
        )
        assert (suite.path / "stops").read_text().splitlines()[0] == "1 True"


def test_what_a_kernel_reports_while_fixtures_leave_is_an_error(suite: pytest.Pytester) -> None:
    test = f"""
    import pytest
    from vhca.lab import Report
    @pytest.fixture
    def mine(lab):
        yield
        {_SAYS}
    def test_a(mine): pass
    def test_b(lab): assert lab.number == 2
    """
    _run(suite, test).assert_outcomes(passed=2, errors=1)


FINDINGS = """
import pytest
from vhca.hw.findings import Finding, FindingKind, ObjectLife, ObjectEvent

def put(lab, kind=FindingKind.DOUBLE_DESTROY, times=1):
    lab.found = (Finding("h0", kind, 5, "qp", 0x48, "DESTROY_QP names qp 0x48", None, times),)

def test_plain(lab): put(lab)
def test_again(lab): put(lab, times=2)
@pytest.mark.vhca_findings(level="pedantic", allow=["double-destroy"])
def test_allowed(lab):
    assert lab.level == "pedantic"
    put(lab, times=3)
def test_after(lab): assert lab.found
@pytest.mark.vhca_findings(level="off")
def test_off(lab):
    assert lab.level is None
    put(lab, times=4)
@pytest.mark.vhca_findings()
def test_marked(lab): put(lab, FindingKind.LEAK_AT_TEARDOWN)
@pytest.mark.vhca_findings(allow=["double-destory"])
def test_no_kind(lab): pass
"""


def _findings(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    (suite.path / "conftest.py").write_text(
        (suite.path / "conftest.py").read_text()
        + "\nLab.found, Lab.level = (), None\nLab.findings = lambda self: self.found\n"
        "def look(self, level): Lab.level = level\nLab.look_for_findings = look\n"
    )
    return _run(suite, FINDINGS, *options)


def test_findings_fail_a_test_that_is_marked(suite: pytest.Pytester) -> None:
    result = _findings(suite)
    result.assert_outcomes(passed=5, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*what guests did wrong with objects*", "h0: leak-at-teardown: DESTROY_QP names qp*"])
    result.stdout.fnmatch_lines(["*UsageError*'double-destory' is not a valid FindingKind*"])


def test_findings_fail_every_test_if_that_is_asked_for(suite: pytest.Pytester) -> None:
    result = _findings(suite, "--vhca-findings=fail")
    result.assert_outcomes(passed=3, failed=3, errors=1)
    result.stdout.fnmatch_lines(["FAILED *::test_plain*", "FAILED *::test_again*", "FAILED *::test_marked*"])


def test_findings_are_told_of_in_reports(suite: pytest.Pytester) -> None:
    suite.path.joinpath("test_more.py").write_text(
        FINDINGS.split("def test_plain")[0] + "def test_it(lab):\n    put(lab)\n    assert False\n"
    )
    result = _findings(suite, "--vhca-findings=report")
    result.assert_outcomes(passed=5, failed=2, errors=1)
    result.stdout.fnmatch_lines(["*findings*", "h0: double-destroy: DESTROY_QP names qp 0x48*"])


TRACED = """
import sys, pathlib
import pytest
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig

def test_good(lab): lab.rack.fabric.link_down("h1")
def test_bad(lab):
    lab.rack.fabric.link_up("h1")
    assert False
"""


def test_a_failed_test_leaves_a_trace(suite: pytest.Pytester) -> None:
    conftest = suite.path / "conftest.py"
    rack = f"""
import pathlib, tempfile
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
def start(self):
    self.log_dir = pathlib.Path({str(suite.path)!r})
    self.rack = Rack(2, pathlib.Path(tempfile.mkdtemp()), RackConfig(logs=False))
    self.rack.start()
    self.fabric = self.rack.fabric
    return self
def stop(self, failed=False): self.rack.stop()
Lab.start, Lab.stop = start, stop
"""
    conftest.write_text(conftest.read_text() + rack)
    result = _run(suite, TRACED, "--vhca-trace=failed", "--junitxml=results.xml")
    result.assert_outcomes(passed=1, failed=1)
    (page,) = suite.path.glob("trace-*.html")
    assert page.name == "trace-test_bad.html"
    result.stdout.fnmatch_lines(["*trace*", f"{page}: * events"])
    properties = ElementTree.parse(suite.path / "results.xml").iter("property")
    (told,) = [each.get("value") for each in properties if each.get("name") == "trace"]
    assert str(told).startswith(f"{page}: ")
    assert "test_bad" in page.read_text()
