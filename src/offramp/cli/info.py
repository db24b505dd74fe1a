"""Say what a model folder holds: backbone, exits, labels, policy, size."""

from __future__ import annotations

import argparse
import json

from offramp.cli import arguments
from offramp.cli.streams import say

EXAMPLES = """\
examples:
  offramp info MODEL
  offramp info MODEL --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp info`."""
    arguments.add_model(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Load the model, which checks every weight, and describe it."""
    from offramp.api.info import info

    result = info(args.model)
    say(json.dumps(result.facts, indent=2, ensure_ascii=False) if args.json else str(result))
    return 0
