"""rdma-core's suite in real guests: the machine gives it all it asks for and tells what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from acceptance.conformance.machine import HCA, SOFT_ROCE, SUITE, PassthroughMachine, SuiteConfig, SuiteMachine
from acceptance.conformance.report import unexplained
from acceptance.conformance.results import PASSED, TIMEOUT, DeviceRun, load, regressions
from acceptance.conformance.run import KIND, RECORD
from acceptance.places import results_folder

STORED = results_folder(KIND, None) / RECORD


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuiteMachine]:
    with SuiteMachine(SOFT_ROCE, SuiteConfig(log_dir=tmp_path_factory.mktemp("logs"))) as running:
        yield running


def test_the_guest_has_what_the_suite_asks_for(machine: SuiteMachine) -> None:
    run = machine.guest.run
    pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    assert int(run(["cat", pages], check=True).stdout) >= 16
    assert run(["sh", "-c", "ulimit -l"], check=True).stdout.strip() == "unlimited"
    assert int(run(["sh", "-c", "grep MemFree /proc/meminfo"]).stdout.split()[1]) > 1_000_000
    assert run(
        ["python3", "-c", "import scapy.layers.inet6"], env={"PYTHONPATH": "/tmp/conformance/python"}, check=True
    )
    assert {"uverbs0", "rdma_cm"} <= set(run(["ls", "/dev/infiniband"], check=True).stdout.split())
    assert machine.port_active()
    assert machine.about["kernel"].startswith("6.19.")
    assert machine.about["rdma-core"]


@pytest.mark.parametrize("name", ["test_pd", "test_rdmacm", "test_mlx5_devx"])
def test_files_come_out_as_stored(machine: SuiteMachine, name: str) -> None:
    run = DeviceRun(SOFT_ROCE, {}, {name: machine.run_file(name)})
    assert run.totals().total() > 0
    assert regressions(load(STORED)[SOFT_ROCE], run) == []
    assert unexplained(run) == []


def test_a_test_that_hangs_costs_only_itself(machine: SuiteMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "import os, signal, unittest\n"
        "class T(unittest.TestCase):\n"
        "    def test_1(self): pass\n"
        "    def test_2(self):\n"
        "        while True: pass\n"
        "    def test_3(self): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    def test_4(self): pass\n"
    )
    monkeypatch.setattr(machine, "config", replace(machine.config, test_timeout_s=3.0))
    machine.guest.agent.put_file(body.encode(), f"{SUITE}/test_made_up.py")
    run = machine.run_file("test_made_up")
    told = {name.rpartition(".")[2]: test.outcome for name, test in run.tests.items()}
    assert told == {"test_1": PASSED, "test_2": TIMEOUT, "test_3": "crashed", "test_4": PASSED}
    assert "signal 11" in run.tests["tests.test_made_up.T.test_3"].gist
    assert "test_2" in run.tests["tests.test_made_up.T.test_2"].reason


def test_the_card_does_what_is_stored_of_it() -> None:
    with SuiteMachine(HCA) as machine:
        run = DeviceRun(HCA, {}, {name: machine.run_file(name) for name in ("test_pd", "test_srq", "test_mlx5_uar")})
    assert run.totals()[PASSED] > 0
    assert regressions(load(STORED)[HCA], run) == []
    assert unexplained(run) == []


def test_user_space_drives_the_card_behind_an_iommu() -> None:
    with PassthroughMachine() as machine:
        assert not machine.guest.run(["ls", "/sys/class/infiniband"]).stdout.split()
        file = machine.run_file("test_mlx5_vfio")
    assert {test.outcome for test in file.tests.values()} == {PASSED}, [test.reason for test in file.tests.values()]
    assert len(file.tests) == 2
