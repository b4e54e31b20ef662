"""The fuzzer: episodes of random moves from a seed, with every rule checked after each; a failure is thinned out.

`python -m tests.fuzz --seed 7 --seconds 300` runs until the time is over or a rule is broken; with `--episode E` it
plays one episode again.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.fuzz import talk  # noqa: F401
from tests.fuzz.moves import MOVES, Turn, furnish
from tests.fuzz.traffic import connect
from tests.fuzz.watch import Violation
from tests.fuzz.world import NoMemory, World
from vhca.wire.ib import split

STEPS = 250
# Generous: the machine may be busy with other things.
STEP_LIMIT_S = 4.0
THINNING_S = 60.0
_FUNCTIONS = [function for function, _ in MOVES]
_WEIGHTS = [weight for _, weight in MOVES]


@dataclass
class Totals:
    """What a run did."""

    episodes: int = 0
    steps: int = 0
    commands: int = 0
    refused: int = 0
    packets: int = 0
    trains: int = 0
    most_effects: int = 0
    effects: int = 0
    longest_s: float = 0.0
    longest_move: str = ""
    moves: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)


@dataclass
class Failure:
    """One broken rule: the episode's seed, the steps that lead there, and how it shows."""

    seed: str
    steps: list[int]
    what: str
    notes: list[str]
    trace: list[str]

    def report(self) -> str:
        lines = [f"broken rule: {self.what}", f"seed {self.seed}, steps {self.steps}", "script:"]
        lines += [f"  {note}" for note in self.notes[-60:]]
        lines += ["last lines of the cards' trace:", *(f"  {line[:220]}" for line in self.trace)]
        return "\n".join(lines)


def bad_share(seed: str) -> float:
    """How much goes wrong in an episode: nothing, little, or a lot."""
    return Random(f"{seed}/bad").choice((0.0, 0.03, 0.03, 0.1, 0.3))


def play(seed: str, steps: list[int], totals: Totals | None = None) -> Failure | None:
    """One episode: the moves with these numbers, in order, then an orderly end."""
    try:
        world = World(0)
    except Exception as error:
        return Failure(seed, [], f"bring-up: {type(error).__name__}: {error}", [traceback.format_exc()], [])
    bad = bad_share(seed)
    if Random(f"{seed}/cut").random() < 0.3:
        # A cable on which packets are seen one by one.
        world.spoil = split
    # The others know the engine in Python only.
    world.rails = Random(f"{seed}/rails").random() < 0.6
    done: list[int] = []
    name = ""
    try:
        if -1 in steps:
            steps = [step for step in steps if step >= 0]
            done.append(-1)
            for host in world.hosts:
                turn = Turn(world, Random(f"{seed}/{host.name}"), 0.0)
                turn.host = host
                furnish(turn)
            for number in range(4):
                connect(Turn(world, Random(f"{seed}/connect{number}"), 0.0))
        for step in steps:
            random = Random(f"{seed}/{step}")
            function = random.choices(_FUNCTIONS, _WEIGHTS)[0]
            name = function.__name__
            done.append(step)
            start = time.process_time()
            try:
                function(Turn(world, random, bad))
            except NoMemory:
                break
            world.check()
            took = time.process_time() - start
            if totals is not None:
                totals.steps += 1
                totals.moves[name] += 1
                if took > totals.longest_s:
                    totals.longest_s, totals.longest_move = took, f"{name} in {seed}/{step}"
            if took > STEP_LIMIT_S:
                raise Violation(f"{name} took {took:.1f} s")
        name = "the orderly end"
        _end(world)
    except Exception as error:
        what = f"{name}: {type(error).__name__}: {error}"
        where = "".join(traceback.format_exception(error)[-6:])
        trace = [f"{host.name} {line}" for host in world.hosts for line in list(host.board.ring)[-12:]]
        return Failure(seed, done, what, [*world.notes, where], trace)
    if totals is not None:
        _add(totals, world)
    return None


def _end(world: World) -> None:
    world.settle()
    world.pass_time(1_000_000_000, 20)
    for host in world.hosts:
        if not host.book.items["uar"]:
            host.probe()
        host.take_down()
    world.settle()
    world.pass_time(1_000_000_000, 20)
    world.check()


def _add(totals: Totals, world: World) -> None:
    totals.episodes += 1
    totals.packets += world.packets
    totals.trains += world.trains
    for host in world.hosts:
        totals.commands += host.answers
        totals.refused += host.refused
        totals.effects += host.board.effects_done
        totals.most_effects = max(totals.most_effects, host.board.most_effects)
        totals.counters.update(host.board.counters())


def symptom(failure: Failure) -> str:
    """What makes two failures the same one: the kind of error without its numbers."""
    text = failure.what.split(": ", 1)[-1]
    return "".join(char for char in text if not char.isdigit())[:60]


def thin_out(failure: Failure, seconds: float = THINNING_S) -> Failure:
    """Leave out as many steps as possible while the failure stays the same."""
    deadline = time.monotonic() + seconds
    best = failure
    size = max(1, len(best.steps) // 2)
    while size and time.monotonic() < deadline:
        at = 0
        while at < len(best.steps) and time.monotonic() < deadline:
            fewer = best.steps[:at] + best.steps[at + size :]
            again = play(failure.seed, fewer)
            if again is not None and symptom(again) == symptom(failure):
                best = again
            else:
                at += size
        size //= 2
    return best


def campaign(seed: int, seconds: float, totals: Totals, first: int = 0) -> Failure | None:
    """Episodes until the time is over; the first failure, thinned out."""
    deadline = time.monotonic() + seconds
    episode = first
    while time.monotonic() < deadline:
        failure = play(f"{seed}.{episode}", list(range(-1, STEPS)), totals)
        if failure is not None:
            return thin_out(failure)
        episode += 1
        # Worlds refer to themselves: without this they pile up.
        gc.collect()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz two cards on a cable.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--episode", type=int, help="play this episode of the seed only")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    totals = Totals()
    print(f"seed {options.seed}, {options.seconds:.0f} s", flush=True)
    if options.episode is None:
        failure = campaign(options.seed, options.seconds, totals)
    else:
        failure = play(f"{options.seed}.{options.episode}", list(range(-1, STEPS)), totals)
        failure = failure and thin_out(failure)
    print(
        f"{totals.episodes} episodes, {totals.steps} moves, {totals.commands} commands ({totals.refused} refused), "
        f"{totals.packets} packets, {totals.trains} trains, "
        f"{totals.effects} effects (at most {totals.most_effects} in one step); "
        f"longest move {totals.longest_s * 1000:.0f} ms ({totals.longest_move})"
    )
    for name, count in sorted(totals.counters.items()):
        print(f"  {name:36} {count}")
    if failure is None:
        print("no rule was broken")
        return 0
    print(failure.report())
    return 1


if __name__ == "__main__":
    sys.exit(main())
