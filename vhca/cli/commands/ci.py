"""`vhca ci`: a recipe for continuous integration, for the repository at hand."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from vhca import DEFAULT_KERNEL
from vhca.cli import status
from vhca.cli.options import existing_folder, whole

NAME: Final = "ci"
SUMMARY: Final = "print a recipe for continuous integration"
DESCRIPTION: Final = """\
Print a recipe that tests the repository in this folder on each of some kernels: a workflow for GitHub Actions, a job
for GitLab, a Jenkinsfile, or a Containerfile.  With pytest in the repository the job runs pytest, else `vhca matrix`
with the command behind `--`.  What vhca cannot see there is said on standard error.

Jobs run in a container of Debian, keep the cache between runs, and leave JUnit XML and, in artefacts/, consoles, logs
and captures.  docs/ci.md tells what of the recipes was run, and what a job takes of time and memory."""
EPILOG: Final = f"""\
examples:
  vhca ci github > .github/workflows/vhca.yml
  vhca ci gitlab --kernels 6.1,6.12,6.19 > .gitlab-ci.yml
  vhca ci jenkins --vhca 'vhca[pytest] @ git+https://git.example.org/vhca@v1' > Jenkinsfile
  vhca ci github -- sh /mnt/share/test.sh
  vhca ci container --vhca . > Containerfile

exit codes:
  0    the recipe was printed
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = "vhca ci [options] {github,gitlab,jenkins,container} [-- CMD ARG...]"
    parser.add_argument("kind", choices=("github", "gitlab", "jenkins", "container"), help="for whom")
    parser.add_argument(
        "--kernels",
        type=versions,
        default=[DEFAULT_KERNEL],
        metavar="A,B,...",
        help=f"a job for each (default: {DEFAULT_KERNEL})",
    )
    parser.add_argument(
        "--vhca",
        metavar="REQUIREMENT",
        help="what pip installs vhca by: a folder, a wheel, NAME @ URL (default: as the project asks for it, else the"
        " folder vhca of the repository)",
    )
    parser.add_argument(
        "--repository", type=existing_folder, default=Path(), metavar="DIR", help="look there (default: here)"
    )
    parser.add_argument(
        "--minutes", type=whole(5, 1440), default=60, metavar="N", help="how long a job may take (default: 60)"
    )


def versions(text: str) -> list[str]:
    """A type for a list of kernels by version, with commas between: what a job elsewhere can fetch."""
    from vhca.cli.cells import kernel_names

    names = kernel_names(text)
    if wrong := [name for name in names if not re.fullmatch(r"\d+\.\d[\w.+~-]*", name)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no version: a job fetches kernels such as 6.19")
    return names


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.cli import recipes

    try:
        plan = recipes.look(options.repository, options.kernels, options.vhca, options.guest_command, options.minutes)
    except ValueError as error:
        print(f"vhca ci: {error}", file=sys.stderr)
        return status.TROUBLE
    for note in plan.notes:
        print(f"vhca ci: {note}", file=sys.stderr)
    print(recipes.RECIPES[options.kind](plan), end="")
    return status.OK
