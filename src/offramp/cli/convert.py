"""Convert a published system's checkpoint (config.json and state dict) to an offramp model folder.

Supported: deebert (DeeBERT, its Hugging Face port, DeeBERT+SD), romebert, berxit, elasticbert (static, dynamic,
released), pabee (BERT, ALBERT), ebert (BERT, RoBERTa). The system is detected from the parameter names unless --kind is
set. These checkpoints store no threshold: without --policy the converted model never exits early.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.streams import echo

EXAMPLES = """\
examples:
  offramp convert deebert-checkpoint --output my-model --policy entropy:0.1
  offramp convert elasticbert-static --output first-four --layers 4
  offramp convert deebert-checkpoint --output as-published --faithful
  offramp convert ebert-sst-2 --output gated --pad-to 64
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp convert`."""
    parser.add_argument("source", metavar="CHECKPOINT", help="folder of the published system's checkpoint")
    arguments.add_output(parser, required=True, help="model folder to write")
    parser.add_argument(
        "--kind",
        metavar="K",
        help="deebert, romebert, berxit, elasticbert, pabee or ebert (default: detected from the parameter names)",
    )
    arguments.add_policy(parser, "never")
    parser.add_argument("--layers", type=int, metavar="N", help="ElasticBERT: keep only the first N layers, one exit")
    parser.add_argument(
        "--pad-to", type=int, metavar="N", help="EBERT: length that training padded rows to, for example 64"
    )
    parser.add_argument(
        "--no-answer", action="store_true", help="EBERT on SQuAD 2.0: questions may have no answer in the context"
    )
    parser.add_argument(
        "--faithful",
        action="store_true",
        help="reproduce known flaws of the original: an untrained last exit, entropy on a regression",
    )


def run(args: argparse.Namespace) -> int:
    """Convert the checkpoint."""
    from offramp.api.train import convert

    echo(f"Wrote {arguments.call(convert, args)}.", args.output)
    return 0
