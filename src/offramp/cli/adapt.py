"""Make a fine-tuned classifier faster, with a promise about its answers; no labels are needed.

MODEL is a fine-tuned classifier or regression, a folder or a name on the Hub. TEXTS are texts like those that it will
see, a few thousand of them: plain text, TSV, CSV, JSON lines or Parquet, single texts or pairs.

MODEL's encoder and head stay as they are. Exits on the way learn to answer as it does, the quickest of them are kept,
and texts that nothing else used test the promise: with 90 % confidence at most 2 % of the answers differ from MODEL's.
Where no setting saves anything at that promise, it says so, and what would be possible, and ends with 1.
"""

from __future__ import annotations

import argparse

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.streams import say
from offramp.errors import BadValue, missing_library

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
    promise = parser.add_argument_group("the promise")
    promise.add_argument("--risk", type=float, default=0.02, metavar="R", help="at most this share differs (0.02)")
    promise.add_argument("--confidence", type=float, default=0.9, metavar="C", help="how surely (0.9)")
    promise.add_argument("--tolerance", type=float, metavar="T", help="of a regression: what still counts as the same")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--backend", choices=["torch", "onnx", "openvino"], default="torch", help="what shall run it")
    serving.add_argument(
        "--int8", choices=["auto", "static", "token", "dynamic", "none"], default="auto", help="on onnx or openvino"
    )
    serving.add_argument("--batch", type=int, default=32, metavar="N", help="texts that are served together (32)")
    serving.add_argument("--threads", type=int, metavar="N", help="threads of the CPU (as torch finds best)")
    serving.add_argument("--policy", default="auto", metavar="P", help="entropy, confidence, margin or risk (the best)")
    exits = parser.add_argument_group("exits")
    exits.add_argument(
        "--exits", type=arguments.layers, metavar="LAYERS", help="where they may be: all, or 2,4,6 (all)"
    )
    exits.add_argument("--heads", default="attention", metavar="H", help="attention, linear or pooler (attention)")
    exits.add_argument("--queries", type=int, default=4, metavar="N", help="with attention: queries of a head (4)")
    exits.add_argument("--query-width", type=int, default=64, metavar="N", help="numbers that a query reads (64)")
    exits.add_argument("--epochs", type=float, metavar="E", help="over the texts to learn from (3, of few texts more)")
    exits.add_argument("--minutes", type=float, metavar="M", help="at most, for the learning")
    exits.add_argument("--seed", type=int, default=42, metavar="S", help="of everything random (42)")
    data = parser.add_argument_group("texts")
    data.add_argument("--text-column", metavar="NAME", help="the text (a column called text or sentence)")
    data.add_argument("--pair-column", metavar="NAME", help="the text's partner")
    data.add_argument("--max-length", type=int, metavar="N", help="tokens of a text; the rest is cut off")
    add_reading(data)


def run(args: argparse.Namespace) -> int:
    """Adapt, and say what came of it."""
    try:
        from offramp.adaptation.run import AdaptOptions, adapt
        from offramp.calibration.risks import Promise
        from offramp.calibration.tuning.choosing import TuneOptions
        from offramp.data.reading import Source, check_file, format_of
        from offramp.model.attach import ExitOptions
        from offramp.training.imitation.heads import ImitationOptions
    except ImportError as err:
        raise missing_library("Adapting", err) from err
    _check(args)
    if args.backend != "torch":
        _check_runtime(args.backend)
    options = AdaptOptions(
        args.output,
        ExitOptions(args.exits or "all", args.heads, queries=args.queries, query_width=args.query_width),
        ImitationOptions(args.epochs, args.minutes, seed=args.seed),
        TuneOptions(args.backend, args.policy, args.batch, args.threads),
        args.int8,
        args.max_length,
        args.resume,
        args.overwrite,
    )
    kind = args.input_format or format_of(args.texts)
    source = Source(args.texts, kind, args.text_column, args.pair_column, not args.no_header)
    check_file(source)
    promise = Promise("disagreement", args.risk, args.confidence, tolerance=args.tolerance)
    found = adapt(args.model, source, promise, options, say)
    say(found.sentence)
    if not found.layers:
        return 1
    say(found.measured)
    say(f"Wrote {args.output} with exits on {', '.join(map(str, found.layers))}; {args.output}/report.html shows it.")
    return 0


def _check_runtime(backend: str) -> None:
    from offramp.export.folder import runtime_of

    runtime_of(backend)  # says what to install
    try:
        import onnx  # noqa: F401
    except ImportError as err:
        raise BadValue(f"Exporting needs onnx: pip install '.[{backend}]' in a clone of offramp.") from err


def _check(args: argparse.Namespace) -> None:
    arguments.check_threads(args.threads)
    for name in ("batch", "queries", "query_width", "max_length"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise BadValue(f"{name.replace('_', '-')} is {value}; it is at least 1.")
    for name in ("epochs", "minutes"):
        if (value := getattr(args, name)) is not None and not 0 < value < 1e6:
            raise BadValue(f"{name} is {value:g}; it is above 0 and finite.")
    if not 0 <= args.seed < 2**32:
        raise BadValue(f"seed is {args.seed}; it is from 0 to {2**32 - 1:,}.")
    if args.int8 != "auto" and args.backend == "torch":
        raise BadValue("int8 is for --backend onnx or openvino; leave it out.")
