"""Orders to a running rack from the command line: which rack is meant, what is sent to it, and what is printed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vhca.chip.rack import Rack
from vhca.chip.rack_config import CardConfig, RackConfig
from vhca.cli import running, status
from vhca.cli.commands import fault
from vhca.cli.main import main
from vhca.cli.running import control_sockets, find
from vhca.fabric import Fault
from vhca.fabric.faults import ACTIONS, DIRECTIONS
from vhca.fabric.line import LineConfig
from vhca.lab.errors import LabError


@pytest.fixture(autouse=True)
def own_racks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list without the racks of other tests and people, so far as they are not in this test's folder."""
    here = os.fsencode(tmp_path)

    class Listed:
        def read_bytes(self) -> bytes:
            title, *lines = Path("/proc/net/unix").read_bytes().splitlines(keepends=True)
            return b"".join([title, *(line for line in lines if here in line)])

    monkeypatch.setattr(running, "SOCKETS", Listed())


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    (tmp_path / "one").mkdir()
    with Rack(2, tmp_path / "one", RackConfig(logs=False)) as rack:
        yield rack


def plugged(rack: Rack) -> list[bool]:
    return [port.plugged for port in rack.fabric.status()]


# ---- which rack ----


def test_the_only_rack_needs_no_name(rack: Rack) -> None:
    assert find(None) == rack.directory / "rack.sock"


def test_no_rack_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fabric", "show"], ["fault", "h0", "drop"], ["capture", "stop"], ["fabric", "show", "--rack", "x"]):
        assert main(words) == status.TROUBLE
        said = capsys.readouterr().err
        assert "vhca shell" in said
        assert "vhca serve --hcas 2 --dir" in said


def test_one_of_several_is_named_by_folder_name_or_process(
    rack: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a folder").mkdir()
    with Rack(1, tmp_path / "a folder", RackConfig(logs=False)) as other:
        assert main(["fabric", "show"]) == status.TROUBLE
        said = capsys.readouterr().err
        assert said.startswith("vhca: 2 racks are running")
        for folder in (rack.directory, other.directory):
            assert f"--rack {os.getpid()}  in {folder}" in said
        for name in ("a folder", str(other.directory)):
            assert find(name) == other.directory / "rack.sock"
        monkeypatch.chdir(tmp_path)
        assert find("./one") == Path("one/rack.sock")
        with pytest.raises(LabError, match=f"2 racks are called {os.getpid()}"):
            find(str(os.getpid()))
        with pytest.raises(LabError, match="there is no rack three"):
            find("three")
    assert find(str(os.getpid())) == rack.directory / "rack.sock"


@pytest.mark.parametrize("words", [["--rack", "one", "show"], ["show", "--rack", "one"]])
def test_the_rack_is_named_before_or_behind_the_order(rack: Rack, words: list[str]) -> None:
    assert main(["fabric", *words]) == status.OK
    assert main(["fabric", *[word.replace("one", "two") for word in words]]) == status.TROUBLE


def test_a_killed_rack_is_not_found_and_says_that_it_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vhca.cli.main", "serve", "--hcas", "1", "--dir", str(tmp_path / "r")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        heading = process.stdout.readline()
        assert heading.startswith("1 card is waiting")
        while not (line := process.stdout.readline()).startswith("orders from another terminal: "):
            assert line
        assert f"--rack {tmp_path / 'r'}" in line
        assert find(str(process.pid)) == tmp_path / "r" / "rack.sock"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "r" / "rack.sock").is_socket()
    assert control_sockets() == []
    with pytest.raises(LabError, match="no rack of this user"):
        find(None)
    with pytest.raises(LabError, match="has ended"):
        running.order(str(tmp_path / "r"), "show")


def test_sockets_of_others_and_other_sockets_are_no_racks(
    rack: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as abstract:
        (tmp_path / "two").mkdir()
        silent.bind(str(tmp_path / "two" / "rack.sock"))  # nobody listens there
        abstract.bind(f"\0{tmp_path}/rack.sock")
        abstract.listen()
        assert control_sockets() == [rack.directory / "rack.sock"]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert control_sockets() == []


def test_what_listens_there_and_is_no_rack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_TIMEOUT_S", 0.5)
    for answer, why in (
        (b"hello\n", "does not answer"),
        (b"[]\n", "is no rack of this version"),
        (b"{}\n", "is no rack of this version"),
        (b"", "does not answer"),
        (b"[" * 100000 + b"\n", "does not answer"),
    ):
        (tmp_path / "rack.sock").unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "rack.sock"))
            listener.listen()

            def reply(listener: socket.socket = listener, answer: bytes = answer) -> None:
                with listener.accept()[0] as sock:
                    sock.recv(4096)
                    sock.sendall(answer)

            thread = threading.Thread(target=reply)
            thread.start()
            with pytest.raises(LabError, match=why):
                running.order(str(tmp_path), "show")
            thread.join(20)


def test_a_folder_that_we_may_not_enter_is_another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vhca.cli.running.find", lambda rack: tmp_path / "rack.sock")
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(LabError, match="another user's"):
        running.order(None, "show")


# ---- what the commands do ----


def test_cables(rack: Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "link", "down", "h1"]) == status.OK
    assert plugged(rack) == [True, False]
    assert capsys.readouterr().out == "h1: the cable is pulled\n"
    assert main(["fabric", "show"]) == status.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"rack of process {os.getpid()} in {rack.directory}"
    assert lines[3:] == [
        "h0    plugged  down  Down        -    0            0",
        "h1    pulled   down  Down        -    0            0",
        "",
        "subnet manager      port GUID           priority  state",
        "------------------  ------------------  --------  ------",
        "vhca switch (ours)  0x0002c90000fab000  14        master",
        "",
        "cable  ends           cable is  link  fault rules  packets hit  line",
        "-----  -------------  --------  ----  -----------  -----------  ----",
        "h1     h1 - switch/2  pulled    down  0            0            -",
    ]
    assert main(["fabric", "link", "up", "h1"]) == status.OK
    assert plugged(rack) == [True, True]
    assert main(["fabric", "link", "down", "h2"]) == status.TROUBLE
    assert "there are h0 to h1" in capsys.readouterr().err


def test_what_a_cable_takes_is_set_and_shown(rack: Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "link", "set", "switch/2", "--rate", "25Gbps", "--latency", "2us"]) == status.OK
    assert main(["fabric", "link", "set", "h1", "--bit-error-rate", "1e-9"]) == status.OK
    assert rack.fabric.line("h1") == LineConfig(25 * 10**9, 2_000, 1e-9)
    assert capsys.readouterr().out == "switch/2: 25Gbps 2us\nh1: 25Gbps 2us ber 1e-09\n"
    assert main(["fabric", "show"]) == status.OK
    assert "plugged   down  0            0            25Gbps 2us ber 1e-09\n" in capsys.readouterr().out
    assert main(["fabric", "link", "set", "h1", "--rate", "0", "--latency", "0s", "--bit-error-rate", "0"]) == status.OK
    assert rack.fabric.line("h1") == LineConfig()
    assert capsys.readouterr().out == "h1: as usual\n"
    assert rack.fabric.cables() == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["set", "h1"], "what shall it be?"),
        (["set", "h1", "--rate", "25"], "25Gbps"),
        (["set", "h1", "--rate", "1Kbps"], "1 Mbit/s"),
        (["set", "h1", "--latency", "2"], "2us"),
        (["set", "h1", "--bit-error-rate", "1"], "0 to 0.1"),
        (["flap", "h1", "--times", "0"], "not in 1 .."),
        (["flap", "h1", "--down", "soon"], "2us"),
    ],
)
def test_wrong_cables_are_said_before_any_rack_is_asked(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fabric", "link", *words])
    assert ended.value.code == status.USAGE
    assert hint in capsys.readouterr().err


def test_a_port_is_disabled_and_a_cable_flaps(rack: Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "link", "disable", "h1"]) == status.OK
    (changed,) = rack.fabric.cables()
    assert (changed.name, changed.ends, changed.disabled) == ("h1", ("h1", "switch/2"), True)
    assert main(["fabric", "link", "enable", "switch/2"]) == status.OK
    assert rack.fabric.cables() == []
    assert main(["fabric", "link", "flap", "h0", "--times", "2", "--down", "1h", "--up", "1s"]) == status.OK
    assert plugged(rack) == [False, True]
    assert main(["fabric", "link", "up", "h0"]) == status.OK
    assert plugged(rack) == [True, True]
    assert capsys.readouterr().out.splitlines()[:3] == [
        "h1: the switch's port is disabled",
        "switch/2: the switch's port is enabled",
        "h0: flaps 2 times, 1h down and 1s up",
    ]


def test_show_and_counters_as_json(rack: Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "show", "--json"]) == status.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["pid"] == os.getpid()
    assert [port["name"] for port in shown["ports"]] == ["h0", "h1"]
    assert main(["fabric", "counters", "h1", "--json"]) == status.OK
    counters = json.loads(capsys.readouterr().out)
    assert counters == {key: value for key, value in rack.fabric.counters().items() if key.startswith("h1.")}
    assert main(["fabric", "counters"]) == status.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(rack.fabric.counters())


def test_faults(rack: Rack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fault", "h1", "drop", "--nth", "3"]) == status.OK
    assert capsys.readouterr().out == "h1: drop nth 3\n"
    words = "h0 delay --delay-ms 5 --dest-qp 0x4b --psn 9 --opcode SEND --skip 1 --limit 2 --probability 0.5"
    assert main(["fault", *words.split(), "--management", "--direction", "from_card"]) == status.OK
    assert rack.fabric.faults("h1") == [("both", Fault("drop", nth=3))]
    delay = Fault(
        "delay", delay_ns=5_000_000, dest_qp=0x4B, psn=9, opcode="SEND", skip=1, limit=2, probability=0.5,
        management=True,
    )  # fmt: skip
    assert rack.fabric.faults("h0") == [("from_card", delay)]
    capsys.readouterr()
    assert main(["fault", "list"]) == status.OK
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"h0     from_card  0     0     {delay}",
        "h1     both       0     0     drop nth 3",
    ]
    assert main(["fault", "list", "h1", "--json"]) == status.OK
    assert json.loads(capsys.readouterr().out) == [
        {"cable": "h1", "direction": "both", "rule": "drop nth 3", "seen": 0, "hits": 0}
    ]
    assert main(["fault", "clear", "h1"]) == status.OK
    assert main(["fault", "clear"]) == status.OK
    assert main(["fault", "list"]) == status.OK
    assert capsys.readouterr().out == "1 rule cleared\n1 rule cleared\nno rules\n"


def test_faults_inside_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab").mkdir()
    with Rack([CardConfig(cable="g0/1"), CardConfig(cable="g1/1")], tmp_path / "lab", RackConfig(logs=False)) as rack:
        assert main(["fault", "add", "g1", "command", "CREATE_MKEY", "nth=3", "status=NO_RES_ERR"]) == status.OK
        assert main(["fault", "add", "h0", "command any lost"]) == status.OK
        assert main(["fault", "h1", "drop"]) == status.OK
        assert [len(card.faults.rules()) for card in rack.hcas] == [1, 1]
        assert capsys.readouterr().out.splitlines() == [
            "g1: rule 1: command CREATE_MKEY nth=3 status=NO_RES_ERR", "h0: rule 1: command any lost", "h1: drop",
        ]  # fmt: skip
        assert main(["fault", "list"]) == status.OK
        assert capsys.readouterr().out.splitlines()[4:] == [
            "card  number  seen  hits  rule",
            "----  ------  ----  ----  -------------------------------------------",
            "h0    1       0     0     command any lost",
            "h1    1       0     0     command CREATE_MKEY nth=3 status=NO_RES_ERR",
        ]
        assert main(["fault", "list", "g1", "--json"]) == status.OK
        (listed,) = json.loads(capsys.readouterr().out)
        assert listed["names"] == ["h1", "g1/1", "g1"]
        assert main(["fault", "remove", "g1", "1"]) == status.OK
        assert main(["fault", "remove", "g1"]) == status.OK
        assert main(["fault", "clear"]) == status.OK
        assert capsys.readouterr().out == "1 rule removed\n0 rules removed\n2 rules cleared\n"
        assert main(["fault", "add", "h9", "command any lost"]) == status.TROUBLE
        assert main(["fault", "add", "h0", "command CREATE_MKY lost"]) == status.TROUBLE
        said = capsys.readouterr().err
        assert "there is no card 'h9'; there are h0, h1" in said
        assert "did you mean CREATE_MKEY" in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["add"], "in which card?"),
        (["remove", "g0", "x"], "remove takes the number of one rule"),
        (["h0", "drop", "command"], "Say: vhca fault add h0 RULE"),
        (["h1"], "vhca fault h1 drop|duplicate"),
        (["h1", "explode"], "vhca fault h1 drop|duplicate"),
        (["h1", "delay"], "delay needs --delay-ms"),
        (["h1", "drop", "--delay-ms", "1"], "delay needs --delay-ms"),
        (["list", "--nth", "3"], "list takes no --nth"),
        (["clear", "--json"], "--json goes with list"),
        (["h1", "drop", "--nth", "0"], "not in 1 .."),
        (["h1", "drop", "--psn", "0x1000000"], "24 bits"),
        (["h1", "drop", "--dest-qp", "x"], "0x4b"),
        (["h1", "drop", "--drection", "both"], "did you mean --direction?"),
        ([], "CABLE|list|clear"),
    ],
)
def test_wrong_faults_are_said_before_any_rack_is_asked(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fault", *words])
    assert ended.value.code == status.USAGE
    said = capsys.readouterr().err
    assert said.startswith("usage: vhca fault CABLE ACTION")
    assert hint in said


def test_a_schedule_is_started_and_stopped(rack: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "faults.toml"
    words = 'cable = "h1"\naction = "down"\n'
    file.write_text(f'[[event]]\nat = "0s"\n{words}[[event]]\nat = "1h"\n{words}')
    assert main(["fault", "schedule", str(file)]) == status.OK
    deadline_s = time.monotonic() + 10
    while plugged(rack) != [True, False]:
        assert time.monotonic() < deadline_s
    assert main(["fault", "schedule", str(file)]) == status.TROUBLE
    assert main(["fault", "schedule", "stop"]) == status.OK
    assert main(["fault", "schedule", "stop"]) == status.TROUBLE
    said = capsys.readouterr()
    assert said.out == "2 events are planned\n1 events have happened\n"
    assert "a schedule is under way" in said.err
    assert "no schedule was started" in said.err
    file.write_text(f'[[event]]\nat = "0s"\n{words.replace("h1", "h9")}')
    assert main(["fault", "schedule", str(file)]) == status.TROUBLE
    file.write_text("x")
    assert main(["fault", "schedule", str(file)]) == status.TROUBLE
    assert main(["fault", "schedule", str(tmp_path / "none")]) == status.TROUBLE
    said = capsys.readouterr()
    assert [word in said.err for word in ("no such cable 'h9'", "not TOML", "No such file")] == [True] * 3
    with pytest.raises(SystemExit):
        main(["fault", "schedule"])


def test_the_command_line_knows_all_faults() -> None:
    assert (fault._ACTIONS, fault._DIRECTIONS) == (ACTIONS, DIRECTIONS)


def test_captures(
    rack: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["capture", "start", "a.pcapng", "--port", "h1", "--both-ends", "--file-size", "2M"]) == status.OK
    (capture,) = rack._subnet.captures.running
    assert capture.name == str(tmp_path / "a.pcapng")
    assert main(["fabric", "show"]) == status.OK
    assert capsys.readouterr().out.splitlines()[-1] == f"capture to {tmp_path}/a.pcapng: 0 packets"
    capture.writer.trouble = "No space left on device"
    assert main(["capture", "stop"]) == status.FAILED
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/a.pcapng: 0 packets\n"
    assert "ended early: No space left" in said.err
    assert main(["capture", "stop"]) == status.TROUBLE
    assert main(["capture", "start", "b.pcapng"]) == status.OK
    assert main(["capture", "stop"]) == status.OK


@pytest.mark.parametrize("words", [[], ["start"], ["start", "a.txt"], ["start", "/none/a.pcapng"], ["stop", "x"]])
def test_wrong_captures_are_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["capture", *words])
    assert ended.value.code == status.USAGE
