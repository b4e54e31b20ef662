"""`vhca validate`: what is said of RDMA on Linux, claim by claim, against what two guests really do."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vhca.cli import status
from vhca.cli.cells import kernel_names
from vhca.cli.options import add_kernel_options

if TYPE_CHECKING:
    from acceptance.claims.framework import Claim
    from acceptance.claims.report import Record
    from acceptance.claims.verdict import Verdict

NAME: Final = "validate"
SUMMARY: Final = "test what is said of RDMA on Linux, claim by claim"
DESCRIPTION: Final = """\
Boot two guests with a card each and test claims about RDMA on Linux one by one.  Each comes out as confirmed,
contradicted (with what is true instead) or not observable (with why), with its evidence.  Nothing says beforehand how
a claim should come out.

A run of all claims writes a page, a record (JSON) and JUnit XML, named after the kernel's version, to docs/validation
of a checkout, or to the folder given with --output.  A run of some prints them, unless --update or --output is
given."""
EPILOG: Final = f"""\
examples:
  vhca validate
  vhca validate --only A C07
  vhca validate --kernel 6.12 --output ~/validation
  vhca validate --kernels 6.1,6.12,6.19 --output ~/validation
  vhca validate --only A12 --source --update

exit codes:
  0    every test worked, whatever its outcome
  1    a test did not work: it says nothing about its claim
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ID", help="only these claims: ids (B16) or letters of groups (A)"
    )
    parser.add_argument("--list", action="store_true", help="print the claims and do nothing")
    parser.add_argument(
        "--source", action="store_true", help="fetch the kernel's source package (160 MB) for claims about its text"
    )
    guests = parser.add_argument_group("guests")
    add_kernel_options(guests)
    guests.add_argument(
        "--kernels", type=kernel_names, metavar="A,B,...", help="test on each of these, and compare (as --compare does)"
    )
    output = parser.add_argument_group("results")
    output.add_argument("--output", type=Path, metavar="DIR", help="write page, record and XML to this folder")
    output.add_argument(
        "--update", action="store_true", help="with --only: put the outcomes into the record that is there"
    )
    output.add_argument(
        "--compare",
        action="store_true",
        help="test nothing: write the page that compares the records that are there, kernels.md",
    )
    output.add_argument("--evidence", action="store_true", help="print the evidence of each claim")
    output.add_argument("--log-dir", type=Path, metavar="DIR", help="keep the logs of guests and cards in this folder")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from acceptance.claims.compare import write_page
    from acceptance.claims.framework import all_claims, choose
    from acceptance.claims.report import KIND
    from acceptance.places import results_folder

    try:
        claims = choose(all_claims(), options.only)
    except KeyError as error:
        print(f"vhca validate: {error.args[0]}", file=sys.stderr)
        return status.USAGE
    if options.list:
        for claim in claims:
            print(f"{claim.id}  {claim.text}")
        return status.OK
    writes = not options.only or options.update or options.output is not None
    folder = results_folder(KIND, options.output) if writes or options.compare else None
    failed = 0
    for kernel in [] if options.compare else options.kernels or [options.kernel]:
        failed += _on_kernel(kernel, claims, options, folder)
    if folder is not None and (options.kernels or options.compare):
        print(f"written: {write_page(folder)}")
    return status.FAILED if failed else status.OK


def _on_kernel(kernel: str, claims: list[Claim], options: argparse.Namespace, folder: Path | None) -> int:
    """Test the claims on a kernel and write its record, if there is a folder; how many tests did not work."""
    from acceptance.claims.bench import Bench
    from acceptance.claims.framework import packages_of
    from acceptance.claims.report import Record, load, write
    from acceptance.claims.run import run_claims
    from acceptance.claims.verdict import Status
    from vhca.lab import Cache, Progress

    started_s = time.monotonic()
    bench = Bench(
        kernel=kernel,
        modules_dir=options.modules,
        log_dir=options.log_dir,
        packages=packages_of(claims),
        source=options.source,
        progress=Progress(sys.stderr),
        cache=Cache(),
    )
    with bench:
        record = Record(bench.kernel.release)

        def tell(claim: Claim, verdict: Verdict) -> None:
            record.add(claim, verdict)
            _print(claim, verdict, options.evidence)

        run_claims(claims, bench, tell)
        record.about = {**bench.about(), "date": time.strftime("%Y-%m-%d")}
        failed = record.counts()[Status.FAILED]
        if failed and bench.booted:
            bench.lab.mark_failed()
    _print_totals(record, time.monotonic() - started_s)
    if folder is not None:
        if options.update and (stored := load(folder, record.name)) is not None:
            record.outcomes = {**stored.outcomes, **record.outcomes}
            record.about = {**stored.about, **record.about}
        for path in write(record, folder):
            print(f"written: {path}")
    return failed


def _print(claim: Claim, verdict: Verdict, evidence: bool) -> None:
    from vhca.lab.errors import printable

    print(f"{claim.id}  {verdict.status.value:14}  {verdict.seconds:5.1f} s  {claim.text}")
    if verdict.status.value != "confirmed" or evidence:
        print(f"     {printable(verdict.summary)}")
    if evidence:
        for item in verdict.evidence:
            lines = [f"     [{item.where}] {item.command}", *("         " + line for line in item.output.splitlines())]
            print(printable("\n".join(lines)))
    sys.stdout.flush()


def _print_totals(record: Record, seconds: float) -> None:
    counts = ", ".join(f"{count} {name.value}" for name, count in sorted(record.counts().items()))
    many = "" if len(record.outcomes) == 1 else "s"
    print(f"{len(record.outcomes)} claim{many} on {record.kernel} in {seconds:.0f} s: {counts}")
