"""`vhca adversary`: a card that answers its driver badly, by a seed, and what the kernel makes of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from vhca.cli import status
from vhca.cli.options import add_kernel_options, existing_folder, whole

NAME: Final = "adversary"
SUMMARY: Final = "put a driver before a card that answers badly, and say which answer its kernel cannot take"
DESCRIPTION: Final = """\
Boot a guest, and let its driver find, use and leave a card in which something goes wrong: commands that fail, come
late or twice, or answer something else; events and completions that are lost or wrong; a card that is ill or gone.
What goes wrong is a few rules of docs/faults.md each time, made from a seed, so many as the budget says.  When the
kernel complains (an oops, a WARNING, a hung task, a report of a sanitizer), the rules are made few, one if possible,
and printed.

CMD is what runs over the card each time: it loads the driver and unloads it.  Without it, a script of vhca's own does
(guest-tests/adversary.sh).  docs/adversary.md has what was found so."""
EPILOG: Final = f"""\
examples:
  vhca adversary --seed 1 --budget 60
  vhca adversary --seed 7 --budget 300 --kernel 7.2
  vhca adversary --seed 7 --budget 300 --kernel ~/linux-with-kasan
  vhca adversary --fault 'command CREATE_RMP nth=1 status=NO_RES_ERR'
  vhca adversary --sweep --together 1
  vhca adversary --seed 1 --budget 60 --list
  vhca adversary --seed 1 --share . -- /mnt/share/probe-and-remove.sh

exit codes:
  0    the kernel complained of nothing
  1    it complained; what of, and after which rule, is printed
{status.EPILOG_COMMON}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.usage = "vhca adversary [options] [-- CMD ARG...]"
    parser.add_argument(
        "--seed", type=whole(0, 1 << 48), default=1, metavar="S", help="of the rules (default: %(default)s)"
    )
    parser.add_argument(
        "--budget",
        type=whole(1, 100_000),
        default=60,
        metavar="N",
        help="how many rules are tried (default: %(default)s)",
    )
    parser.add_argument(
        "--together", type=whole(1, 32), default=3, metavar="N", help="rules at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="RULE",
        help="no seed: one round with this rule (docs/faults.md); may be given again",
    )
    parser.add_argument(
        "--sweep", action="store_true", help="no seed: each command refused once and twice, and its answer wrong once"
    )
    parser.add_argument("--list", action="store_true", help="print the rules of the seed and do nothing")
    parser.add_argument("--text", action="store_true", help="print the kernel's reports in full")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="keep the guest's console and logs in this folder")
    parser.add_argument(
        "--share", type=existing_folder, metavar="DIR", help="a host folder that CMD sees at /mnt/share"
    )
    add_kernel_options(parser.add_argument_group("guest"))


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    from vhca.chip.fault_rules import FaultRuleError, parse_rule

    try:
        for rule in options.fault:
            parse_rule(rule)
    except FaultRuleError as error:
        print(f"vhca adversary: --fault: {error}", file=sys.stderr)
        return status.USAGE
    if options.list:
        print("\n".join(_rules(options)))
        return status.OK
    return _run(options)


def _rules(options: argparse.Namespace) -> list[str]:
    from acceptance.adversary.generator import rules, sweep

    return sweep() if options.sweep else rules(options.seed, options.budget)


def _run(options: argparse.Namespace) -> int:
    from acceptance.adversary.bench import WORK, Bench
    from acceptance.adversary.search import Finding, search, told
    from vhca.lab import Progress
    from vhca.lab.errors import printable

    def tell(line: str) -> None:
        print(printable(line), flush=True)

    bench = Bench(
        options.kernel,
        options.guest_command or WORK,
        options.modules,
        Progress(sys.stderr),
        options.log_dir,
        options.share,
    )
    with bench:
        if options.fault:
            sight = bench.round(options.fault)
            rules = tuple(options.fault)
            findings = [Finding(rules, line, sight.text) for line in sight.headlines[:1]]
            tell("\n".join(sight.headlines) or "the kernel complained of nothing")
        else:
            chosen = _rules(options)
            findings = search(chosen, bench, tell, options.together)
            tell(f"{bench.release}: {len(chosen)} rules, {bench.rounds} rounds, {bench.resets} resets,"
                 f" {len(findings)} findings")  # fmt: skip
            for finding in findings:
                tell(told(finding))
    if options.text:
        for finding in findings:
            tell(finding.text)
    return status.FAILED if findings else status.OK
