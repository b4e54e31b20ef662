"""The documentation's examples, run as they are written, a test for each; most pages share one lab."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import PAGES, ROOT, Example, agrees, examples
from vhca.lab import GuestConfig, Lab, LabError, PackageError

LAB: dict[str, Any] = {"guests": 2, "gdb": 0}
OWN_LABS: dict[str, dict[str, Any]] = {
    "docs/upper-protocols.md": {
        "guests": 2,
        "extra_packages": ("storage", "ibacm"),
    }
}
"""Pages that need more in their guests than is usual."""
ORDERS = """
vhca() {
    case $1 in
    fabric) shift; command vhca fabric --rack "$RACK" "$@" ;;
    fault | findings | capture) command vhca "$@" --rack "$RACK" ;;
    *) command vhca "$@" ;;
    esac
}
"""
"""Other racks may be running on this host; a user would have one."""

EXAMPLES = [example for page in PAGES for example in examples(page) if not example.reason and example.mode != "alone"]

Outcome = tuple[int, str, str]


class _Desk:
    """One folder, one lab for all pages that need it, and what became of the blocks so far."""

    def __init__(self, folder: Path, boots: contextlib.ExitStack) -> None:
        self.folder, self._boots = folder, boots
        self._names: dict[str, dict[str, Any]] = {}
        self._done: dict[str, Outcome] = {}
        self._labs: dict[str, Lab] = {}  # by page; "" for all that have none of their own
        self._failed: dict[str, LabError] = {}
        folder.mkdir()
        (folder / ".venv").symlink_to(sys.prefix)

    def lab(self, page: str) -> Lab:
        """The lab of this page; `LabError` if it did not boot."""
        kind = page if page in OWN_LABS else ""
        if kind in self._failed:
            raise self._failed[kind]
        if kind not in self._labs:
            guest, logs = (
                GuestConfig(memory_mib=512, share=self.folder),
                self.folder.with_name(f"logs{len(self._labs)}"),
            )
            try:
                described = Lab(**OWN_LABS.get(kind, LAB), guest=guest, log_dir=logs)
                self._labs[kind] = self._boots.enter_context(described)
            except LabError as error:  # one boot is enough to know
                self._failed[kind] = error
                raise
        return self._labs[kind]

    def complaints(self) -> list[str]:
        """What the kernels of the labs' guests reported since this was last asked."""
        guests = [guest for lab in self._labs.values() for guest in lab.guests]
        return [f"{guest.name}: {report.text}" for guest in guests for report in guest.kernel_reports()]

    def outcome(self, example: Example) -> Outcome:
        """What running this block gave: status, output and errors; the page's blocks before it are run first."""
        for each in (each for each in EXAMPLES if each.page == example.page):
            if str(each) not in self._done and not each.missing:
                self._done[str(each)] = self._run(each)
            if each == example:
                break
        return self._done[str(example)]

    def _run(self, example: Example) -> Outcome:
        if example.mode == "lab":
            return self._in_python(example)
        if example.mode.startswith("g"):
            done = self.lab(example.page).guests[int(example.mode[1:])].run(["sh", "-ec", example.text], timeout_s=120)
            return done.returncode, done.stdout, done.stderr
        return self._on_the_host(example)

    def _in_python(self, example: Example) -> Outcome:
        names = self._names.setdefault(example.page, {"lab": self.lab(example.page)})
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(compile(example.text, str(example), "exec"), names)
        return 0, printed.getvalue(), ""

    def _on_the_host(self, example: Example) -> Outcome:
        if example.mode == "pytest":
            (self.folder / "test_example.py").write_text(example.text)
            command = [sys.executable, "-m", "pytest", "-q", "-rs", "--vhca-require-guests", "test_example.py"]
        else:
            command = [sys.executable, "-c"] if example.language == "python" else ["sh", "-ec"]
            command.append(example.text)
        rack = ""
        if example.mode == "rack":
            lab = self.lab(example.page)
            assert lab.rack is not None
            rack = str(lab.rack.directory)  # type: ignore[attr-defined]
            command[-1] = ORDERS + example.text
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command, cwd=self.folder, env={**os.environ, "PATH": path, "RACK": rack},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Desk]:
    with contextlib.ExitStack() as boots:
        yield _Desk(tmp_path_factory.mktemp("pages") / "share", boots)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_works_as_written(example: Example, desk: _Desk) -> None:
    if example.missing:
        pytest.skip(f"{example.page}:{example.line} needs what is not on this host: {example.missing}")
    try:
        status, printed, errors = desk.outcome(example)
    except PackageError as error:
        pytest.skip(f"{example.page} needs packages that cannot be had: {error}")
    assert status == 0, f"{ROOT / example.page}:{example.line}\n{printed}\n{errors}"
    if example.output is not None:
        assert agrees(example.output, printed), f"expected\n{example.output}\nprinted\n{printed}\n{errors}"
    assert not desk.complaints()
