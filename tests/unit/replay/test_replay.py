"""A recorded card does the same when it is played again, or the first step that differs is found and named."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from firmware import boot
from firmware.native.library import loaded
from tests.scenario.world import World, pair
from tests.support.content import some_bytes
from tests.support.driver import CommandFailed, Driver
from tests.unit.replay.recorded import (
    alloc_pd,
    played,
    record_scenarios,
    recorded_session,
    recorder,
    session,
)
from vhca.chip.middleware import ProgramTap, tapped
from vhca.hw.effects import CommandDone, Effects, EntryWrite
from vhca.hw.events import CommandPosted, Event, PacketIn, Reset
from vhca.hw.hardware import Firmware, FirmwareImage
from vhca.replay.file import Reader, RecordingError
from vhca.replay.forms import Asked, Read
from vhca.replay.player import Player
from vhca.wire.connectx.cmd import Status
from vhca.wire.connectx.qpc import ServiceType


@pytest.mark.parametrize("watched", [False, True])
def test_a_card_with_its_driver(tmp_path: Path, watched: bool) -> None:
    steps = played(recorded_session(tmp_path / "h0.vhcarec"), watched=watched)
    assert [step.difference for step in steps if step.difference] == []
    events = [step.step.event for step in steps if step.step.event is not None]
    assert len(events) > 15
    assert sum(isinstance(given, Read) for step in steps for given in step.step.inputs) == 1
    assert any(isinstance(effect, EntryWrite) for step in steps for effect in step.step.effects)


def test_the_beginning_says_what_was_recorded(tmp_path: Path) -> None:
    with Reader(recorded_session(tmp_path / "h0.vhcarec")) as reader:
        head = reader.head
        list(reader.steps())
    assert (head["card"], head["firmware"], len(head["firmware_hash"])) == ("h0", "firmware", 64)
    assert head["board"]["node_guid"] == 0x0002C90300000100
    assert (reader.ending, reader.last["why"]) == ("end", "end")


class Refuses(ProgramTap):
    """The n-th command ends with another status."""

    def __init__(self, inner: Firmware, nth: int) -> None:
        super().__init__(inner)
        self.left = nth

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        super().handle(event, now_ns, out)
        if isinstance(event, CommandPosted):
            self.left -= 1
            if not self.left:
                bad = bytes((Status.NO_RES_ERR,)) + bytes(15)
                out[:] = [replace(effect, output=bad) if isinstance(effect, CommandDone) else effect for effect in out]


def test_the_first_step_that_differs(tmp_path: Path) -> None:
    path = recorded_session(tmp_path / "h0.vhcarec")
    commands = [step.number for step in played(path) if isinstance(step.step.event, CommandPosted)]
    *same, last = played(path, tapped(boot, lambda inner: Refuses(inner, 3)))
    assert all(step.difference is None for step in same)
    assert last.number == commands[2]
    assert last.difference is not None
    assert last.difference.what == "effect 1"
    assert last.difference.expected.startswith("command in slot 0 ends: OK; ")
    assert last.difference.got.startswith("command in slot 0 ends: NO_RES")


def test_a_program_that_reads_something_else(tmp_path: Path) -> None:
    class Elsewhere(ProgramTap):
        def handle(self, event: Event, now_ns: int, out: Effects) -> None:
            if isinstance(event, CommandPosted):
                self.inner.hca.memory.read(0x1234, 8)  # type: ignore[attr-defined]
            super().handle(event, now_ns, out)

    last = played(recorded_session(tmp_path / "h0.vhcarec"), tapped(boot, Elsewhere))[-1]
    assert last.difference is not None
    assert last.difference.what == "what it asks for"
    assert last.difference.expected == "its objects may take 1073741824 bytes"
    assert last.difference.got == "read of 8 bytes at 0x1234"


def failing() -> FirmwareImage:
    """An image whose first program fails at its first command."""
    boots = itertools.count()

    class Failing(ProgramTap):
        def __init__(self, inner: Firmware) -> None:
            super().__init__(inner)
            self.is_first = not next(boots)

        def handle(self, event: Event, now_ns: int, out: Effects) -> None:
            if self.is_first and isinstance(event, CommandPosted):
                raise RuntimeError("a fault of the program")
            super().handle(event, now_ns, out)

    return tapped(boot, Failing)


def test_a_program_that_failed_fails_again_and_is_booted_again(tmp_path: Path) -> None:
    keeper = recorder(tmp_path / "h0.vhcarec")
    driver = Driver(image=keeper.of(failing()))
    driver.board.event(CommandPosted(0, bytes(16), 16))
    assert driver.board.dead
    # What was done up to there is in the file already.
    assert played(keeper.path, failing())[-1].step.raised == "RuntimeError: a fault of the program"
    driver.board.reset("flr")
    driver.bar_write(0x14, driver.queue.to_bytes(4, "big"))
    session(driver)
    keeper.close()
    steps = played(keeper.path, failing())
    assert [step.step.call for step in steps].count("boot") == 2
    assert "inherit" in [step.step.call for step in steps]
    assert [step.difference for step in steps if step.difference] == []
    last = played(keeper.path)[-1]
    assert last.difference is not None
    assert last.difference.expected == "RuntimeError: a fault of the program"


def test_a_reset_and_faults_inside_the_card(tmp_path: Path) -> None:
    keeper = recorder(tmp_path / "h0.vhcarec")
    driver = Driver(image=keeper.of(boot))
    driver.board.faults.add("command ALLOC_PD limit=1 status=NO_RES_ERR")
    driver.board.faults.add("event PORT_CHANGE twice")
    with pytest.raises(CommandFailed):
        session(driver)
    driver.board.link_change(1, False)
    driver.board.reset("flr")
    driver.board.faults.clear()
    keeper.close()
    steps = played(keeper.path)
    assert [step.difference for step in steps if step.difference] == []
    assert any(isinstance(step.step.event, Reset) for step in steps)
    asked = [given for step in steps for given in step.step.inputs if isinstance(given, Asked)]
    assert asked
    assert {step.step.call for step in steps} >= {"tamper", "handle", "boot"}


def traffic(world: World | None = None, service: int = ServiceType.RC) -> None:
    world, a, b = pair(service, world)
    for size in (1, 300, 5000):
        content = some_bytes(size)
        target = b.buffer(size)
        b.post_recv(b.buffer(size), size)
        a.send(a.buffer(content), size)
        if service != ServiceType.UD:
            a.write(a.buffer(content), size, target, b.card.key)
        world.settle()
        if service != ServiceType.UD:
            assert b.peek(target, size) == content
    a.send_cq.poll()


def errors() -> None:
    """A key that nobody has, and packets that are lost until the sender gives up."""
    world, a, b = pair()
    a.write(a.buffer(bytes(64)), 64, b.buffer(64), b.card.key + 0x100)
    world.settle()
    assert [done.syndrome for done in a.send_cq.poll()] == [0x13]
    world, a, b = pair()
    world.fault = lambda packet: []
    a.write(a.buffer(bytes(64)), 64, b.buffer(64), b.card.key)
    world.pass_time(20_000_000_000)
    assert [done.syndrome for done in a.send_cq.poll()] == [0x15]


@pytest.mark.parametrize("engine", ["python", "trains"])
@pytest.mark.parametrize("run", [traffic, errors])
def test_two_cards_and_their_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: object, engine: str) -> None:
    if engine == "trains" and not loaded().there:
        pytest.skip(f"no engine in C: {loaded().reason}")
    monkeypatch.setattr(World, "rails_by_default", engine == "trains")
    image = record_scenarios(monkeypatch, tmp_path)
    run()  # type: ignore[operator]
    packets = 0
    for path in image.close():
        steps = played(path)
        assert [step.difference for step in steps if step.difference] == []
        packets += sum(isinstance(step.step.event, PacketIn) for step in steps)
        # Others may be asked to tell what they do, which changes nothing.
        assert [step.difference for step in played(path, watched=True) if step.difference] == []
    assert packets > 2


def test_a_recording_of_bounded_size(tmp_path: Path) -> None:
    def many(driver: Driver) -> None:
        session(driver)
        for _ in range(6000):
            driver.board.event(CommandPosted(0, b"\x08\x00" + some_bytes(510), 16))

    path = recorded_session(tmp_path / "h0.vhcarec", many, limit_bytes=600 << 10)
    assert path.stat().st_size <= 600 << 10
    with Reader(path) as reader:
        steps = list(Player(reader, boot).play())
    assert reader.ending == "limit"
    assert "614400 bytes at most" in reader.last["text"]
    assert len(steps) > 500
    assert not any(step.difference for step in steps)


def test_a_file_that_is_cut_off_is_played_to_its_end(tmp_path: Path) -> None:
    keeper = recorder(tmp_path / "h0.vhcarec")
    driver = Driver(image=keeper.of(boot))
    session(driver)
    assert keeper.flush_at is not None
    deadline = driver.board.next_deadline()
    assert deadline is not None
    assert deadline <= keeper.flush_at
    driver.board.run_timers(driver.clock.now_ns())
    # Not closed: as if its process had been killed.
    with Reader(keeper.path) as reader:
        whole = list(Player(reader, boot).play())
    assert reader.ending == "cut off"
    assert len(whole) > 20
    assert not any(step.difference for step in whole)
    cut = tmp_path / "cut.vhcarec"
    cut.write_bytes(keeper.path.read_bytes()[:-3])
    with Reader(cut) as reader:
        assert len(list(Player(reader, boot).play())) < len(whole)
    assert reader.ending == "cut off"
    keeper.close()


def test_a_disk_that_is_full_ends_the_recording_and_not_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = recorder(tmp_path / "h0.vhcarec")
    driver = Driver(image=keeper.of(boot))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vhca.replay.file.os.write", full)
    session(driver)
    keeper.flush()
    session(Driver(image=boot))
    assert not keeper.on
    assert not driver.board.dead
    assert alloc_pd(driver)
    assert caplog.text.count("ends here: [Errno 28]") == 1


def test_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    with Reader(recorded_session(tmp_path / "h0.vhcarec")) as reader:
        reader.head["forms"] += 1
        with pytest.raises(RecordingError, match="events and effects are others"):
            Player(reader, boot)
