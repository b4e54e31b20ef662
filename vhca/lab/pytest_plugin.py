"""The lab as pytest sees it: fixtures that are booted guests, so that a driver test is a few lines.

::

    @pytest.mark.vhca(guests=2, kernel="6.19")
    def test_ping(guest_pair):
        server, client = guest_pair
        assert client.run(["ping", "-c1", server.name]).returncode == 0

Fixtures: `lab` (a running :class:`vhca.lab.Lab`), `guest` (its first guest), `guest_pair` (its first two).
`@pytest.mark.vhca_fault("g0", "command CREATE_MKEY nth=3 status=NO_RES_ERR")` lets something go wrong inside a card.
The marker `vhca` takes the arguments of `Lab`, and `fresh=True` for a lab of the test's own. Without it, tests with
the same arguments share one lab; it is replaced after a failed test, and when a guest of it no longer answers.
`@pytest.mark.vhca_findings()`, or `--vhca-findings=fail` for all tests: what guests do wrong with objects fails a test.
`kernels=("6.1", "6.19")` runs the test once on each of these; `--vhca-kernels 6.1,6.19` does so for all tests whose
marker names no kernel.

Assumes nothing: every pytest run of the environment loads this file, so it imports nothing but pytest until a test
asks for a guest. Guarantees: a host that cannot run guests skips these tests, says why and counts them
(`--vhca-require-guests` makes that a failure); a failed test's report has the consoles' ends and the cards' counters.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from vhca.lab import pytest_findings, pytest_record, pytest_trace

if TYPE_CHECKING:
    from pathlib import Path

    from vhca.lab.guest import Guest
    from vhca.lab.lab import Lab

_FIXTURES: Final = {"lab": 1, "guest": 1, "guest_pair": 2}
_MARKERS: Final = (
    "vhca(guests, kernel, hcas_per_guest, guest, card, rack, ..., kernels=(), fresh=False): the lab that the fixtures"
    " lab, guest and guest_pair give; the arguments are those of vhca.lab.Lab; kernels: once on each of these;"
    " fresh=True: not shared with other tests",
    "vhca_fault(card, rule, ...): let something go wrong inside a card (h0, or g0 for guest g0's first) while the test"
    " runs; docs/faults.md has the rules",
    "vhca_allow_kernel_bug(regex, ...): a kernel report whose headline one of these matches does not fail the test",
    pytest_findings.MARKER,
    "guest: boots guests (set by itself on tests that use those fixtures)",
)
_KERNEL: Final = "vhca_kernel"
_SHARED_LABS_MAX: Final = 2
_TAIL_LINES: Final = 30
_POOL: Final = pytest.StashKey["_Pool"]()


class _CannotRun(Exception):
    """This host cannot run guests; the text says why."""


class _Pool:
    """The labs of a session that tests share."""

    def __init__(self, folders: pytest.TempPathFactory, artefacts: Path | None = None, record: str = "off") -> None:
        self._record = record
        self._folders = folders
        self._artefacts = artefacts
        self._shared: dict[str, Lab] = {}  # by configuration, the one used longest ago first
        self._refused: dict[tuple[str, ...], str] = {}  # kernel, packages, suite -> why this host cannot boot them
        self._number = 0
        self.skipped: dict[str, int] = {}  # why -> how many tests
        self.current: Lab | None = None

    def shared(self, wanted: dict[str, Any], least_guests: int) -> Lab:
        """A running lab of this configuration, booted if there is none.

        Without `guests` in it, one that differs only in having more guests than `least_guests` will do.
        """
        for key, lab in reversed(self._shared.items()):
            exact = key == _key({"guests": least_guests, **wanted})
            larger = "guests" not in wanted and key == _key({**wanted, "guests": lab.guest_count})
            if exact or (larger and lab.guest_count >= least_guests):
                if _answers(lab):
                    self._shared[key] = self._shared.pop(key)
                    return lab
                self.discard(lab)
                break
        while len(self._shared) >= _SHARED_LABS_MAX:
            self.discard(next(iter(self._shared.values())))
        arguments = {"guests": least_guests, **wanted}
        lab = self._shared[_key(arguments)] = self.boot(arguments)
        return lab

    def boot(self, arguments: dict[str, Any]) -> Lab:
        """A new running lab; :class:`_CannotRun` if this host cannot run one."""
        from vhca.lab import Lab, Progress
        from vhca.lab.errors import ImageError, KernelError, PackageError, QemuError

        asked = tuple(str(arguments.get(name, "")) for name in ("kernel", "extra_packages", "suite"))
        if asked in self._refused:
            raise _CannotRun(self._refused[asked])
        self._number += 1
        logs = self._log_dir(arguments)
        try:
            recorded = pytest_record.arguments(self._record, logs)
            lab = Lab(**{"log_dir": logs, "progress": Progress(quiet=True), **recorded, **arguments})
        except TypeError as error:
            raise pytest.UsageError(f"@pytest.mark.vhca: {error}; it takes the arguments of vhca.lab.Lab") from None
        try:
            return lab.start()
        except KernelError as error:
            if "kernel" in arguments:
                # A kernel that was asked for by name and is not to be had is the test's mistake, not the host's.
                raise pytest.UsageError(f"@pytest.mark.vhca: {error}") from None
            self._refused[asked] = str(error)
            raise _CannotRun(str(error)) from error
        except (PackageError, ImageError, QemuError) as error:
            self._refused[asked] = str(error)
            raise _CannotRun(str(error)) from error

    def _log_dir(self, arguments: dict[str, Any]) -> Path:
        name = re.sub(r"\W+", "-", "-".join(f"{k}-{v}" for k, v in arguments.items()))[:60]
        if self._artefacts is not None:
            place = self._artefacts / f"lab-{self._number}-{name}"
            while place.exists():  # of an earlier run
                self._number += 1
                place = self._artefacts / f"lab-{self._number}-{name}"
            return place
        return self._folders.mktemp(f"lab-{self._number}-{name}", numbered=False)

    def discard(self, lab: Lab, failed: bool = False) -> None:
        """Stop a lab; it is not given to further tests."""
        self._shared = {key: other for key, other in self._shared.items() if other is not lab}
        lab.stop(failed=failed)
        pytest_record.ended(lab, self._record, failed)

    def close(self) -> None:
        """Stop all labs."""
        for lab in list(self._shared.values()):
            self.discard(lab)


def _key(arguments: dict[str, Any]) -> str:
    return repr(sorted(arguments.items()))


def _answers(lab: Lab) -> bool:
    for guest in lab.guests:
        try:
            if not guest.alive:
                return False
            guest.agent.ping(10.0)
        except Exception:
            return False
    return True


# ---- hooks ----


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("vhca", "virtual HCAs in booted guests")
    group.addoption(
        "--vhca-require-guests",
        action="store_true",
        help="fail, instead of skipping, a test whose guests cannot be booted on this host",
    )
    group.addoption(
        "--vhca-artefacts",
        metavar="DIR",
        help="keep the consoles, QEMU's messages and the cards' logs of every lab in DIR/lab-N-... (with xdist:"
        " DIR/gwN/lab-N-...), instead of in pytest's temporary folder",
    )
    group.addoption(
        "--vhca-kernels",
        metavar="A,B,...",
        help="run each test with guests, unless its marker names kernels, once on each of these kernels",
    )
    pytest_findings.add_option(group)
    pytest_record.add_option(group)
    pytest_trace.add_option(group)
    parser.addini(
        "vhca_fail_on_kernel_bug", "fail a test during which a guest's kernel reports a bug", type="bool", default=True
    )
    parser.addini(
        "vhca_allow_kernel_bug", "regular expressions; a report whose headline one matches is expected", type="linelist"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test with guests run once on each kernel that was asked for; those on one kernel follow each other."""
    if _KERNEL not in metafunc.fixturenames:
        return
    named: dict[str, Any] = {}
    for marker in reversed(list(metafunc.definition.iter_markers("vhca"))):
        named.update(marker.kwargs)
    kernels = named.get("kernels", ())
    if isinstance(kernels, str) or ("kernels" in named and "kernel" in named):
        raise pytest.UsageError("@pytest.mark.vhca takes kernel='6.19', or kernels=('6.12', '6.19')")
    if not {"kernel", "kernels"} & named.keys() and (asked := metafunc.config.getoption("--vhca-kernels")):
        kernels = [name.strip() for name in str(asked).split(",") if name.strip()]
    if kernels:
        metafunc.parametrize(_KERNEL, list(map(str, kernels)), indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses our fixtures `guest`, before `-m` selects."""
    for item in items:
        if item.get_closest_marker("vhca") or any(name in _FIXTURES for name in _ours(item)):
            item.add_marker("guest")


def _ours(item: pytest.Item) -> Iterator[str]:
    """The names of the fixtures of an item that are this plugin's, and not a test's own of the same name."""
    info = getattr(item, "_fixtureinfo", None)
    for name in getattr(item, "fixturenames", ()):
        definitions = info.name2fixturedefs.get(name) if info is not None else None
        if definitions and definitions[-1].func.__module__ == __name__:
            yield name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed while a guest's kernel complained; the complaints are in a failed test's report, too."""
    pool = item.config.stash.get(_POOL, None)
    lab = pool.current if pool is not None else None
    try:
        result = yield
    finally:
        bugs = _kernel_bugs(item, lab) if lab is not None else ""
    if bugs:
        pytest.fail(bugs, pytrace=False)
    if found := pytest_findings.verdict(item):
        pytest.fail(f"what guests did wrong with objects of their cards:\n{found}", pytrace=False)
    return result


def _kernel_bugs(item: pytest.Item, lab: Lab) -> str:
    """What the kernels reported since they were last asked and nobody expects, for people; empty if nothing."""
    if not item.config.getini("vhca_fail_on_kernel_bug"):
        return ""
    allowed = list(item.config.getini("vhca_allow_kernel_bug"))
    for marker in item.iter_markers("vhca_allow_kernel_bug"):
        allowed += marker.args
    found = []
    for guest in lab.guests:
        for report in guest.kernel_reports():
            if not any(re.search(pattern, report.headline) for pattern in allowed):
                words = f"{guest.name}: the kernel reported: {report.headline}"
                found.append(f"{words}\n(the whole is in {guest.kernel_evidence})\n{report.text}")
    if found:
        from vhca.lab.errors import printable

        item.stash[_BUGS] = printable("\n\n".join(found))
        return item.stash[_BUGS]
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test's report what its guests and cards have to say."""
    report = yield
    pool = item.config.stash.get(_POOL, None)
    if pool is not None and report.failed and pool.current is not None:
        pool.current.mark_failed()
        evidence = _evidence(pool.current) + pytest_record.evidence(pool.current)
        if bugs := item.stash.get(_BUGS, ""):
            evidence.append(("reports of the guests' kernels", bugs))
        if found := pytest_findings.told(item):
            evidence.append(("findings", found))
        if page := pytest_trace.told(item):
            evidence.append(("trace", page))
        report.sections += evidence
        # JUnit XML has no sections; it takes properties from the item at its teardown
        item.user_properties += evidence
        item.stash[_FAILED] = True
    return report


_FAILED: Final = pytest.StashKey[bool]()
_BUGS: Final = pytest.StashKey[str]()


def _evidence(lab: Lab) -> list[tuple[str, str]]:
    from vhca.lab.errors import last_lines, printable

    sections = []
    for guest in lab.guests:
        text = printable(last_lines(guest.console_log, _TAIL_LINES))
        sections.append((f"console of {guest.name} ({guest.console_path})", text))
    for hca in lab.hcas:
        try:
            lines = [f"{name} = {value}" for name, value in sorted(hca.counters().items()) if value]
            lines += [f"live {kind} = {value}" for kind, value in sorted(hca.objects().items()) if value]
        except Exception as error:  # a card that cannot be asked must not hide why the test failed
            lines = [f"cannot be read: {error!r}"]
        sections.append((f"counters of {hca.name}", "\n".join(lines)))
    return sections


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests were skipped because guests cannot run, and why."""
    pool = config.stash.get(_POOL, None)
    for why, count in (pool.skipped if pool is not None else {}).items():
        terminalreporter.write_line(f"vhca: guest tests skipped: {count}: {why}", yellow=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared labs."""
    pool = config.stash.get(_POOL, None)
    if pool is not None:
        pool.close()


# ---- fixtures ----


@pytest.fixture(scope="session")
def vhca_kernel(request: pytest.FixtureRequest) -> str | None:
    """The kernel that the test shall run on, if it runs on several; else None: its marker's, or the usual one."""
    return getattr(request, "param", None)


@pytest.fixture
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, vhca_kernel: str | None
) -> Iterator[Lab]:
    """A running lab, as the test's marker `vhca` describes it; by default two guests with a card each."""
    pool = request.config.stash.setdefault(
        _POOL, _Pool(tmp_path_factory, _artefacts(request.config), pytest_record.asked(request.config))
    )
    arguments, fresh = _wanted(request)
    if vhca_kernel is not None:
        arguments["kernel"] = vhca_kernel
    uses = [count for name, count in _FIXTURES.items() if name in request.fixturenames]
    only_lab = not {"guest", "guest_pair"}.intersection(request.fixturenames)
    least = 2 if only_lab else max(uses)
    try:
        running = pool.boot({"guests": least, **arguments}) if fresh else pool.shared(arguments, least)
    except _CannotRun as trouble:
        why = " ".join(str(trouble).split())
        if request.config.getoption("--vhca-require-guests"):
            pytest.fail(f"guests cannot run here: {trouble}", pytrace=False)
        pool.skipped[why] = pool.skipped.get(why, 0) + 1
        pytest.skip(f"guests cannot run here: {why}")
    pool.current = running
    try:
        pytest_findings.begin(request.node, running)
        pytest_trace.begin(request.node, running)
        _let_go_wrong(request, running)
        yield running
    finally:
        pool.current = None
        pytest_findings.end(request.node)
        pytest_trace.end(request.node)
        running.clear_faults()  # also those that the test has made itself
        # what the test's own fixtures did on their way out; a failed test has said enough
        failed = request.node.stash.get(_FAILED, False)
        bugs = "" if failed else _kernel_bugs(request.node, running)
        if fresh or failed or bugs:
            pool.discard(running, failed=failed or bool(bugs))
        if bugs:
            pytest.fail(bugs, pytrace=False)


def _let_go_wrong(request: pytest.FixtureRequest, lab: Lab) -> None:
    """Make the rules of the markers vhca_fault, the outermost first."""
    from vhca.chip.fault_rules import FaultRuleError
    from vhca.lab.errors import LabError

    for marker in reversed(list(request.node.iter_markers("vhca_fault"))):
        card, *rules = marker.args or ("",)
        if not rules:
            raise pytest.UsageError(f"@pytest.mark.vhca_fault takes a card and rules, not {marker.args!r}")
        try:
            for rule in rules:
                lab.faults(card).add(rule)
        except (FaultRuleError, LabError) as error:
            raise pytest.UsageError(f"@pytest.mark.vhca_fault: {error}") from None


def _artefacts(config: pytest.Config) -> Path | None:
    """The folder for the logs of labs that the user named; absolute, since a test may change the working folder."""
    named = config.getoption("--vhca-artefacts")
    if named is None:
        return None
    folder: Path = config.invocation_params.dir / str(named)
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    return folder / worker if worker else folder


def _wanted(request: pytest.FixtureRequest) -> tuple[dict[str, Any], bool]:
    arguments: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("vhca"))):
        if marker.args:
            raise pytest.UsageError("@pytest.mark.vhca takes keywords only, such as guests=2")
        arguments.update(marker.kwargs)
    arguments.pop("kernels", None)
    return arguments, bool(arguments.pop("fresh", False))


@pytest.fixture
def guest(lab: Lab) -> Guest:
    """A booted guest with a card."""
    return lab.guests[0]


@pytest.fixture
def guest_pair(lab: Lab) -> tuple[Guest, Guest]:
    """Two booted guests with a card each, on one fabric."""
    if len(lab.guests) < 2:
        raise pytest.UsageError("guest_pair takes a lab with guests=2 or more")
    return lab.guests[0], lab.guests[1]
