"""Make a fine-tuned classifier faster, with a guarantee about its answers; no labels are needed.

MODEL is a fine-tuned classifier or regression, a folder or a name on the Hub. TEXTS are texts like those that it will
see, a few thousand of them: plain text, TSV, CSV, JSON lines or Parquet, single texts or pairs.

MODEL's encoder and head stay as they are. Early exits learn to answer as it does, the quickest of them are kept, and
texts that nothing else used test the guarantee: with 90 % confidence at most 2 % of the answers differ from MODEL's.
Where no setting saves anything within that risk, it says so, and what would be possible, and exits with code 1.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.streams import say
from offramp.runtimes import RUNTIMES

EXAMPLES = """\
examples:
  offramp adapt my-classifier texts.txt --risk 0.02 --confidence 0.9 --output FAST
  offramp adapt my-classifier pairs.csv --text-column question --pair-column answer --output FAST
  offramp adapt my-regression texts.jsonl --tolerance 0.25 --risk 0.05 --output FAST
  offramp adapt my-classifier texts.txt --backend onnx --threads 2 --output FAST    (int8 where it keeps the answers)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp adapt`."""
    parser.add_argument("model", metavar="MODEL", help="the fine-tuned model: a folder, or a name on the Hub")
    parser.add_argument("texts", metavar="TEXTS", help="a file of texts like those that it will see")
    parser.add_argument("--output", "-o", metavar="FAST", required=True, help="the model folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the model in FAST")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    guarantee = parser.add_argument_group("guarantee")
    guarantee.add_argument(
        "--risk", type=float, default=0.02, metavar="R", help="maximum fraction of changed answers (default: 0.02)"
    )
    guarantee.add_argument("--confidence", type=float, default=0.9, metavar="C", help="confidence level (default: 0.9)")
    guarantee.add_argument(
        "--tolerance", type=float, metavar="T", help="regression: how far apart two values still agree"
    )
    serving = parser.add_argument_group("serving")
    serving.add_argument(
        "--backend", choices=list(RUNTIMES), default="torch", help="what shall run it (default: torch)"
    )
    serving.add_argument(
        "--int8",
        choices=["auto", "static", "token", "dynamic", "none"],
        default="auto",
        help="on onnx or openvino (default: auto)",
    )
    serving.add_argument("--batch", type=int, default=32, metavar="N", help="texts served together (default: 32)")
    serving.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as torch chooses)")
    serving.add_argument(
        "--policy", default="auto", metavar="P", help="entropy, confidence, margin or risk (default: the best)"
    )
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--exits",
        type=arguments.layers,
        default="all",
        metavar="LAYERS",
        help="where they may be: all, or 2,4,6 (default: all)",
    )
    exits.add_argument(
        "--heads", default="attention", metavar="H", help="attention, linear or pooler (default: attention)"
    )
    exits.add_argument("--queries", type=int, default=4, metavar="N", help="attention: queries per head (default: 4)")
    exits.add_argument(
        "--query-width", type=int, default=64, metavar="N", help="attention: width of a query (default: 64)"
    )
    exits.add_argument("--epochs", type=float, metavar="E", help="over the texts to learn from (default: 3 to 10)")
    exits.add_argument("--minutes", type=float, metavar="M", help="at most, for the learning")
    exits.add_argument("--seed", type=int, default=42, metavar="S", help="random seed (default: 42)")
    data = parser.add_argument_group("texts")
    data.add_argument("--text-column", metavar="NAME", help="the text (default: a column called text or sentence)")
    data.add_argument("--pair-column", metavar="NAME", help="the second text of each pair")
    data.add_argument("--max-length", type=int, metavar="N", help="maximum tokens of a text; the rest is cut")
    add_reading(data)


def run(args: argparse.Namespace) -> int:
    """Adapt, and say what came of it."""
    from offramp.api.adapt import adapt

    result = arguments.call(adapt, args)
    if not result:
        say(str(result.reason))
        return 1
    say(f"{result.guarantee}\n{result.measured}")
    say(f"Wrote {args.output} with exits on {', '.join(map(str, result.layers))}; {result.report} shows it.")
    return 0
