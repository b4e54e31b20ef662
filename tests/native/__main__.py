"""`make check-native`: the engine in C under the sanitizers, with random trains; what they find ends it.

First under ASan and UBSan, pair by pair; then under TSan, with pairs side by side on several threads.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from firmware.native import declarations
from vhca.native import NativeError, compiler

HERE = Path(__file__).parent
SOURCES = Path(declarations.__file__).parent / "src"
FLAGS = ("-std=c11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror")
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# A fence is for the order in which guests' stores are seen, which are none of these threads'; GCC warns of each.
THREADS = ("-fsanitize=thread", "-Wno-error")
PAIRS = 5
CREW = 3


def build(folder: Path, sanitizers: tuple[str, ...] = MEMORY) -> Path:
    """The harness, with sanitizers; NativeError if there is no compiler, CalledProcessError with its words if not."""
    (folder / "train.h").write_text(declarations.train_h())
    (folder / "formats.h").write_text(declarations.formats_h())
    program = folder / "harness"
    sources = [*sorted(SOURCES.glob("*.c")), HERE / "harness.c"]
    command: list[str | Path] = [*compiler(), *FLAGS, *sanitizers, "-I", folder, "-I", SOURCES, *sources, "-o", program]
    subprocess.run(command, check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.native", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100_000, help="pairs of machines (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for sanitizers, rounds, more in (
                (MEMORY, args.rounds, ()),
                (MEMORY, args.rounds // 500, (PAIRS, CREW)),
                (THREADS, args.rounds // 500, (PAIRS, CREW)),
            ):
                command = [build(Path(folder), sanitizers), args.seed, rounds, *more]
                if status := subprocess.run([str(word) for word in command], check=False).returncode:
                    return status
        except NativeError as error:
            print(error, file=sys.stderr)
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main())
