"""Answer every text of a file: its label, its score, and the layer that it left at.

FILE is plain text (one text per line), TSV, CSV, JSON lines or Parquet, told by its ending, packed with gzip or not;
`-` is standard input. Columns that are not named are those that the model was trained on, else text (or sentence) and
pair. Answers come in the file's order, as JSON lines or as TSV. Files of any length run in bounded memory.
"""

from __future__ import annotations

import argparse
import sys

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.streams import say
from offramp.errors import BadValue

EXAMPLES = """\
examples:
  offramp predict MODEL reviews.txt
  offramp predict MODEL questions.csv --output answers.jsonl       (columns question and context)
  cat reviews.txt | offramp predict MODEL - --policy entropy:0.3
  tail -f reviews.log | offramp predict MODEL - --chunk 1
  offramp predict MODEL dev.tsv --text-column sentence1 --pair-column sentence2 --all-scores
  offramp predict MODEL big.jsonl --max-layers 6 --output answers.tsv
  offramp predict MODEL 'data/*.parquet' --engine ray --output answers
  offramp predict MODEL GLUE/SST-2/test.tsv --format glue --task sst-2 --output SUBMISSION
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `offramp predict`."""
    arguments.add_model(parser)
    parser.add_argument(
        "texts", metavar="FILE", nargs="+", help="the texts; - for standard input; on Ray several, or 'data/*.parquet'"
    )
    reading = parser.add_argument_group("reading")
    reading.add_argument("--text-column", metavar="NAME", help="the text (as the model was trained)")
    reading.add_argument("--pair-column", metavar="NAME", help="the text's partner, for models of pairs (likewise)")
    add_reading(reading)
    leaving = parser.add_argument_group("leaving")
    arguments.add_policy(leaving, "the model's own")
    leaving.add_argument(
        "--threshold",
        type=arguments.numbers,
        metavar="T",
        help="another threshold for that policy; or one per exit: 0.1,0.2",
    )
    leaving.add_argument("--max-layers", type=int, metavar="K", help="a budget: nobody runs more layers than that")
    leaving.add_argument("--batch-tokens", type=int, metavar="N", help="padded tokens in a batch")
    leaving.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="texts read before the first of them is answered (4096; 1 for a live pipe)",
    )
    result = parser.add_argument_group("writing")
    arguments.add_output(result, required=False, what="a file for the answers (standard output)")
    result.add_argument(
        "--format",
        choices=["jsonl", "tsv", "glue", "elue", "squad"],
        help="how answers are written (by OUT's ending, else jsonl); glue, elue and squad: FILE is the task's official "
        "file, OUT a folder for the files that the benchmark takes",
    )
    result.add_argument("--task", metavar="T", help="glue and elue: the task, such as mnli or elue-sst-2")
    result.add_argument("--split", metavar="S", help="glue and elue: which test file FILE is (by its name)")
    result.add_argument("--all-scores", action="store_true", help="every label's probability")
    cluster = parser.add_argument_group("many machines")
    cluster.add_argument(
        "--engine",
        choices=["here", "ray"],
        default="here",
        help="ray: files of any size, answers as Parquet in a folder, goes on where it was interrupted (here)",
    )
    cluster.add_argument("--workers", type=int, metavar="N", help="ray: processes with the model (one per --threads)")
    cluster.add_argument("--address", metavar="A", help="ray: a cluster that runs already, such as auto (a local one)")
    cluster.add_argument("--id-column", metavar="NAME", help="ray: what tells rows apart (id, else file and line)")
    arguments.add_machine(parser)


def run(args: argparse.Namespace) -> int:
    """Read, answer, write."""
    from offramp.api.predict import BENCHMARKS, predict

    if args.engine != "ray" and len(args.texts) > 1:
        raise BadValue(f"{len(args.texts)} files are given; name one, or answer all of them with --engine ray.")
    files = args.texts if args.engine == "ray" else args.texts[0]
    to_folder = args.engine == "ray" or args.format in BENCHMARKS
    output = args.output if to_folder or args.output not in (None, "-") else sys.stdout
    result = arguments.call(predict, args, texts=files, output=output)
    if to_folder:
        say(str(result), args.output)
    return 0
