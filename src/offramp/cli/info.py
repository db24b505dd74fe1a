"""Show what a model folder contains: encoder, exits, labels, exit policy, size, exports."""

from __future__ import annotations

import argparse
import json

from offramp.cli import arguments
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp info my-model
  offramp info my-model --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp info`."""
    arguments.add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Load the model, which checks every weight, and describe it."""
    from offramp.api.info import info

    result = info(args.model)
    echo(json.dumps(result.facts, indent=2, ensure_ascii=False) if args.json else str(result))
    return 0
