"""Predict the label, score and exit layer of every text in a file.

FILE is plain text (one text per line), TSV, CSV, JSON (lines or an array) or Parquet, recognized by its extension,
optionally gzipped, or a folder of such files; `-` is standard input. By default columns are those of the training run,
else text (or sentence) and pair. Predictions keep the order of the file. The extension of OUT sets the output format:
.jsonl, .csv, .tsv or .parquet, the first three also with .gz. Memory use does not depend on the size of the file.
"""

from __future__ import annotations

import argparse
import sys

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.streams import echo
from offramp.errors import BadValue

EXAMPLES = """\
examples:
  offramp predict my-model texts.txt
  cat texts.txt | offramp predict my-model - --policy entropy:0.3
  offramp predict my-model reviews.csv --text-column review --id-column number --output predictions.csv
  offramp predict my-model 'data/*.parquet' --engine ray --output predictions  # on a Ray cluster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `offramp predict`."""
    arguments.add_model(parser)
    parser.add_argument(
        "texts",
        metavar="FILE",
        nargs="+",
        help="file or folder of texts, or a URL such as s3://bucket/texts.csv; - is standard input; with --engine ray "
        "also several, or patterns",
    )
    data = parser.add_argument_group("data")
    data.add_argument("--text-column", metavar="NAME", help="column with the text (default: as in training)")
    data.add_argument(
        "--pair-column", metavar="NAME", help="column with the second text of each pair (default: as in training)"
    )
    add_reading(data)
    exits = parser.add_argument_group("exits")
    arguments.add_policy(exits, "the model's")
    exits.add_argument(
        "--threshold",
        type=arguments.threshold,
        metavar="T",
        help="threshold of --policy, or one per exit such as 0.1,0.2 (default: the number in --policy)",
    )
    exits.add_argument("--max-layers", type=int, metavar="K", help="maximum number of layers per text")
    output = parser.add_argument_group("output")
    arguments.add_output(output, required=False, help="file for the predictions (default: standard output)")
    output.add_argument(
        "--format",
        choices=["jsonl", "csv", "tsv", "parquet", "glue", "elue", "squad"],
        help="output format; glue, elue and squad read the official file of a task and write the submission files to "
        "the folder OUT (default: from the extension of OUT, else jsonl)",
    )
    output.add_argument("--task", metavar="T", help="glue, elue: task, such as mnli or elue-sst-2")
    output.add_argument("--split", metavar="S", help="glue, elue: split of FILE (default: from its name)")
    output.add_argument("--all-scores", action="store_true", help="include the probability of every label")
    output.add_argument("--with-text", action="store_true", help="write the text beside its prediction")
    output.add_argument(
        "--id-column",
        metavar="NAME",
        help="column that identifies a row, written as id (default: id if FILE has it; ray: else file and line)",
    )
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument(
        "--engine",
        choices=["here", "ray"],
        default="here",
        help="here: this process; ray: files of any size in parallel, predictions as Parquet in the folder OUT, "
        "interrupted runs continue; MODEL and OUT may be URLs such as s3://bucket/predictions (default: here)",
    )
    cluster.add_argument(
        "--workers", type=int, metavar="N", help="ray: worker processes (default: CPUs divided by --threads)"
    )
    cluster.add_argument("--address", metavar="A", help="ray: address of a running cluster (default: a local one)")
    inference = arguments.add_inference(parser)
    inference.add_argument("--batch-tokens", type=int, metavar="N", help="maximum padded tokens per batch")
    inference.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="number of texts to read at a time; 1 for a live pipe (default: 4096)",
    )


def run(args: argparse.Namespace) -> int:
    """Predict and write the predictions."""
    from offramp.api.predict import BENCHMARKS, predict

    if args.engine != "ray" and len(args.texts) > 1:
        raise BadValue(f"Got {len(args.texts)} files; pass one, or use --engine ray for several.")
    files = args.texts if args.engine == "ray" else args.texts[0]
    to_folder = args.engine == "ray" or args.format in BENCHMARKS
    output = args.output if to_folder or args.output not in (None, "-") else sys.stdout
    result = arguments.call(predict, args, texts=files, output=output)
    if output is not sys.stdout:
        echo(str(result), args.output)
    return 0
