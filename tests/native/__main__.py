"""`make check-native`: the engine in C under the sanitizers, with random trains; what they find ends it."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from firmware.native import declarations
from vhca.native import NativeError, compiler

HERE = Path(__file__).parent
SOURCES = Path(declarations.__file__).parent / "src"
FLAGS = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all")  # fmt: skip


def build(folder: Path) -> Path:
    """The harness, with sanitizers; NativeError if there is no compiler, CalledProcessError with its words if not."""
    (folder / "train.h").write_text(declarations.train_h())
    (folder / "formats.h").write_text(declarations.formats_h())
    program = folder / "harness"
    sources = [*sorted(SOURCES.glob("*.c")), HERE / "harness.c"]
    command: list[str | Path] = [*compiler(), *FLAGS, "-I", folder, "-I", SOURCES, *sources, "-o", program]
    subprocess.run(command, check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.native", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100_000, help="pairs of machines (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = build(Path(folder))
        except NativeError as error:
            print(error, file=sys.stderr)
            return 1
        return subprocess.run([program, str(args.seed), str(args.rounds)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
