"""Make a model folder from an original system's checkpoint (config.json and its state dict).

Kinds: deebert (DeeBERT, its Hugging Face port, DeeBERT+SD), romebert, berxit, elasticbert (static,
dynamic, released), pabee (BERT, ALBERT), ebert (BERT, RoBERTa). The kind is told by the keys unless it is named. No
original stores a threshold, so the model never exits until a policy is given.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.streams import say

EXAMPLES = """\
examples:
  offramp convert saved_models/bert-base/SST-2/two_stage --output sst2-deebert --policy entropy:0.1
  offramp convert elasticbert-static --output first-four --layers 4
  offramp convert deebert-checkpoint --output as-published --faithful
  offramp convert ebert-sst-2 --output gated --pad-to 64
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp convert`."""
    parser.add_argument("source", metavar="SRC", help="the original's folder")
    arguments.add_output(parser, required=True, what="the model folder to write")
    parser.add_argument(
        "--kind", metavar="K", help="deebert, romebert, berxit, elasticbert, pabee or ebert (from the keys)"
    )
    arguments.add_policy(parser, "never")
    parser.add_argument("--layers", type=int, metavar="N", help="ElasticBERT: only its first N layers, statically")
    parser.add_argument(
        "--pad-to", type=int, metavar="N", help="EBERT: the length that its training padded rows to, 64 for instance"
    )
    parser.add_argument(
        "--no-answer", action="store_true", help="EBERT on SQuAD 2.0: a context may have no answer to its question"
    )
    parser.add_argument(
        "--faithful",
        action="store_true",
        help="restore what an original did and nobody should want: an untrained last exit that answers, "
        "entropy on a regression",
    )


def run(args: argparse.Namespace) -> int:
    """Convert and say what was noticed."""
    from offramp.api.train import convert

    say(f"Wrote {arguments.call(convert, args)}.", args.output)
    return 0
