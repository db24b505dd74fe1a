"""Add up the audits of several servers of the same model, and test whether the guarantee holds for all of them.

STATE is a file of `offramp serve --state`; the servers may be running. The violation tests use the added counts. Drift
is tested by every server on its own predictions and reported here. The exit code is 1 if there is an alarm.
"""

from __future__ import annotations

import argparse
import json

from offramp.cli import arguments
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp audit replica-1.json replica-2.json
  offramp audit replica-1.json replica-2.json --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp audit`."""
    parser.add_argument("states", nargs="+", metavar="STATE", help="state file of a server")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the added audit; the exit code is 1 if there is an alarm."""
    from offramp.api.audit import audit

    result = arguments.call(audit, args)
    echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if args.json else str(result))
    return 1 if result.alarm else 0
