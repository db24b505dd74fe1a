"""Answer every text of a file: its label, its score, and the layer that it left at.

FILE is plain text (one text per line), TSV, CSV, JSON lines or Parquet, told by its ending, packed with gzip or not;
`-` is standard input. Columns that are not named are those that the model was trained on, else text (or sentence) and
pair. Answers come in the file's order, as JSON lines or as TSV. Files of any length run in bounded memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from offramp.cli import arguments
from offramp.cli.data import add_reading
from offramp.cli.streams import say
from offramp.data.reading import Source, check_file, format_of, read_texts
from offramp.errors import BadValue
from offramp.files.writing import check_free, staged_file, writing

if TYPE_CHECKING:
    from offramp.answers.answer import Answer

COLUMNS = ("label", "score", "exit_layer")  # as `Answer.told` has them
SPAN_COLUMNS = ("answer", "score", "start", "end", "exit_layer")

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
        "file", metavar="FILE", nargs="+", help="the texts; - for standard input; on Ray several, or 'data/*.parquet'"
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
    if args.engine == "ray":
        return _on_ray(args)
    for name in ("workers", "address", "id_column"):
        if getattr(args, name) is not None:
            raise BadValue(f"--{name.replace('_', '-')} goes with --engine ray; leave it out.")
    if len(args.file) > 1:
        raise BadValue(f"{len(args.file)} files are given; name one, or answer all of them with --engine ray.")
    (args.file,) = args.file
    if args.format in ("glue", "elue", "squad"):
        return _submit(args)
    if args.task is not None or args.split is not None:
        raise BadValue("--task and --split go with --format glue or elue; leave them out.")
    kind = args.input_format or format_of(args.file)
    source = Source(args.file, kind, args.text_column, args.pair_column, has_header=not args.no_header)
    check_file(source)
    output: Path | None = None if str(args.output) == "-" else args.output
    if output is not None:
        check_free(output, args.overwrite)
    runner = arguments.load(args)
    config = runner.config
    if config.answer_type.is_span and args.file.removesuffix(".gz").endswith(".json"):
        raise BadValue(f"{args.file}: SQuAD's own files are answered with --format squad and --output, a folder.")
    inputs = None if config.inputs is None else tuple(config.inputs)
    answers = runner.stream(
        read_texts(replace(source, inputs=inputs)),
        policy=args.policy,
        threshold=args.threshold,
        max_layers=args.max_layers,
        batch_tokens=args.batch_tokens,
        chunk=args.chunk,
    )
    chosen = args.format or ("tsv" if output is not None and output.suffix == ".tsv" else "jsonl")
    if args.all_scores and config.answer_type.is_span:
        raise BadValue("A span has no labels whose probabilities could be told; leave --all-scores out.")
    labels = config.labels if args.all_scores else ()
    written = (chunk.written(config.answer_type, config.labels) for chunk in answers)
    columns = SPAN_COLUMNS if config.answer_type.is_span else COLUMNS
    lines = _as_tsv(written, columns, labels) if chosen == "tsv" else _as_json(written, args.all_scores)
    with nullcontext(sys.stdout) if output is None else staged_file(output, args.overwrite) as file:
        _write(lines, file, "standard output" if output is None else str(output))
    return 0


def _on_ray(args: argparse.Namespace) -> int:
    """Any number of files, on any number of machines."""
    for name in ("format", "task", "split"):
        if getattr(args, name) is not None:
            raise BadValue(f"A job on Ray writes Parquet; leave --{name} out.")
    if args.output is None:
        raise BadValue("A job on Ray writes a folder of Parquet files; name it with --output.")
    from offramp.cluster.run import PART, JobOptions, answer_files

    arguments.check_threads(args.threads)
    machine = {name: getattr(args, name) for name in ("backend", "device", "dtype", "threads", "max_length")}
    machine["threads"] = args.threads or 1
    source = Source("", args.input_format or "", args.text_column, args.pair_column, has_header=not args.no_header)
    options = {name: getattr(args, name) for name in ("policy", "threshold", "max_layers", "batch_tokens")}
    job = JobOptions(
        args.file,
        args.output,
        source,
        machine,
        options,
        rows=PART if args.chunk is None else args.chunk,
        id_column=args.id_column,
        all_scores=args.all_scores,
        workers=args.workers,
        address=args.address,
        overwrite=args.overwrite,
    )
    found = answer_files(args.model, job)
    before = f"; {found.found} of {found.parts} parts were there already" if found.found else ""
    say(f"{args.output}: {found.rows:,} rows answered in {found.parts - found.found} parts{before}.", args.output)
    return 0


def _submit(args: argparse.Namespace) -> int:
    """The files of a benchmark."""
    squad = args.format == "squad"
    if squad and (args.task is not None or args.split is not None):
        raise BadValue("--task and --split go with --format glue or elue; leave them out.")
    if args.output is None or (args.task is None and not squad):
        raise BadValue(
            f"--format {args.format} needs {'' if squad else '--task, and '}--output, a folder for its files."
        )
    for name in ("text_column", "pair_column", "input_format", "no_header", "all_scores", "chunk"):
        if getattr(args, name):
            raise BadValue(
                f"--format {args.format} knows the official file's form and its own; "
                f"leave --{name.replace('_', '-')} out."
            )
    if args.file == "-":
        raise BadValue(f"--format {args.format} reads the official file; name it instead of -.")
    runner = arguments.load(args)
    if squad is not runner.config.answer_type.is_span:
        raise BadValue(
            f"{runner.name} answers with {runner.config.answer_type.title}; --format {args.format} is for others."
        )
    options = {"policy": args.policy, "threshold": args.threshold, "max_layers": args.max_layers}
    options["batch_tokens"] = args.batch_tokens
    if squad:
        from offramp.originals.squad.submission import write_squad

        files = write_squad(runner, Path(args.file), args.output, overwrite=args.overwrite, **options)
    else:
        from offramp.originals.submissions.submit import submit

        place = {"split": args.split, "overwrite": args.overwrite}
        files = submit(runner, args.format, args.task, Path(args.file), args.output, **place, **options)
    say("\n".join(map(str, files)), args.output)
    return 0


def _as_json(chunks: Iterable[Iterable[Answer]], all_scores: bool) -> Iterator[list[str]]:
    for answers in chunks:
        yield [_json_line(answer, all_scores) for answer in answers]


def _json_line(answer: Answer, all_scores: bool) -> str:
    row = answer.told()
    if all_scores:
        row["scores"] = {label: round(score, 6) for label, score in answer.scores.items()}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _as_tsv(
    chunks: Iterable[Iterable[Answer]], columns: tuple[str, ...], labels: tuple[str, ...]
) -> Iterator[list[str]]:
    yield ["\t".join([*columns, *labels]) + "\n"]
    for answers in chunks:
        yield [_tsv_line(answer, labels) for answer in answers]


def _tsv_line(answer: Answer, labels: tuple[str, ...]) -> str:
    scores = [f"{answer.scores[name]:.6f}" for name in labels]
    return "\t".join([*map(_cell, answer.told().values()), *scores]) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else " ".join(str(value).split())  # a tab or a new line would end it


def _write(chunks: Iterator[list[str]], file: TextIO, name: str) -> None:
    """A chunk's answers are out before the next one's texts are asked for."""
    for lines in chunks:
        with writing(name):
            file.write("".join(lines))
            file.flush()
