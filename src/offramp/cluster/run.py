"""A batch job on Ray Data: parts go to a pool of workers, each of which writes its part's file; what is there is left.

Ray Data's own checkpoints are not used: they need unique ids in the input, hold all of them in memory, lose rows whose
ids are not unique, and forget everything once a job has ended. A part's file under its own name needs none of that.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from offramp.cluster.job import Job, answered, begin, files_of, part_file, stamped, tidy
from offramp.cluster.parts import Part, split
from offramp.cluster.worker import Work, Worker
from offramp.core.loop import within_budget
from offramp.data.reading import columns_of, read_records
from offramp.data.source import Source, check_file, format_of, no_partner, text_columns
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.runtimes.loading import load

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["JobOptions", "Outcome", "answer_files", "plan"]

PART = 16384  # rows of a part: its texts are sorted together
USUAL_ID = "id"


@dataclass(frozen=True)
class JobOptions:
    """What a job does with which files; the model's options are `predict`'s."""

    files: Sequence[str]  # names and patterns
    output: Path
    source: Source  # format and columns, for every file
    machine: dict[str, Any]
    options: dict[str, Any]  # policy, threshold, max_layers, batch_tokens
    rows: int = PART
    id_column: str | None = None
    all_scores: bool = False
    workers: int | None = None
    address: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    parts: int
    found: int  # parts that were there already
    rows: int  # that were answered now


def answer_files(model: str, options: JobOptions) -> Outcome:
    """Answer every row of every file; a job that was interrupted goes on where it stood."""
    ray = _library()
    sources = _sources(options)
    runner = load(model, **options.machine)
    parts = split(sources, options.rows)
    filled = {part.file for part in parts}
    sources = [source for source in sources if source.file in filled]  # an empty shard says nothing about columns
    if not parts:
        raise BadInput(f"{', '.join(options.files)}: there is nothing to answer.")
    work, job = plan(model, runner, options, sources)
    work = replace(work, token=begin(options.output, job, options.overwrite))
    there = set(answered(options.output))
    todo = [part for part in parts if part.number not in there]
    del runner  # the workers have their own
    rows = sum(_answered(ray, work, todo, options)) if todo else 0
    tidy(options.output)
    return Outcome(len(parts), len(parts) - len(todo), rows)


def _library() -> Any:
    """Ray, as silent as we are."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import pyarrow  # noqa: F401
        import ray
        import ray.data
    except ImportError as err:
        raise BadValue(f"`engine='ray'` needs {err.name}: pip install '.[ray]' in a clone of offramp.") from err
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


def _sources(options: JobOptions) -> list[Source]:
    if options.rows < 1:
        raise BadValue(f"`chunk` is {options.rows}; it is at least 1.")
    if options.workers is not None and options.workers < 1:
        raise BadValue(f"`workers` is {options.workers}; it is at least 1.")
    output = options.output.resolve()
    files = [file for file in files_of(options.files) if not Path(file).is_relative_to(output)]  # answers of before
    if not files:
        raise BadInput(f"All files lie in {options.output}, where the answers go; name another folder.")
    given = options.source
    kinds = {given.format or format_of(file) for file in files}
    if len(kinds) > 1:
        raise BadInput(f"The files are of several formats ({', '.join(sorted(kinds))}); run one job for each.")
    sources = [replace(given, file=file, format=next(iter(kinds))) for file in files]
    for source in sources:
        check_file(source)
    return sources


def plan(model: str, runner: Runner, options: JobOptions, sources: list[Source]) -> tuple[Work, Job]:
    """What the workers need; mistakes are found before any of them is started."""
    config, given = runner.config, options.options
    config.answer_type.check_scores(options.all_scores)
    policy = config.choose(given.get("policy"), given.get("threshold"))
    within_budget(runner.stepper.exits, given.get("max_layers"))
    inputs = None if config.inputs is None else tuple(config.inputs)
    known = [replace(source, inputs=inputs) for source in sources]
    columns = [_checked(source) for source in known]
    id_column = _id_column(options, known, columns)
    is_number = id_column is not None and _first_is_number(known[0], id_column)
    where = str(Path(model).resolve()) if Path(model).is_dir() else model
    root = os.path.commonpath([str(Path(source.file).parent) for source in known])
    work = Work(
        where,
        runner.fingerprint,
        options.machine,
        given | {"chunk": options.rows},
        known[0],
        str(options.output.resolve()),
        root,
        id_column,
        is_number,
        options.all_scores,
        {file: (size, date) for file, size, date in stamped([source.file for source in known])},
    )
    first = (None, None) if columns[0] is None else text_columns(known[0], columns[0])
    files = stamped([source.file for source in known])
    job = Job(
        runner.fingerprint,
        str(policy),
        given.get("max_layers"),
        id_column,
        first,
        options.all_scores,
        known[0].format,
        known[0].has_header,
        options.rows,
        files,
    )
    return work, job


def _checked(source: Source) -> list[str] | None:
    """A file's columns, once the text is among them."""
    columns = columns_of(source)
    if columns is None:
        if source.text_column or source.pair_column:
            raise BadInput(f"{source.name} has no columns; leave `text_column=` and `pair_column=` out.")
        if len(source.inputs or ()) == 2:
            raise BadInput(f"{source.name} has no columns; {no_partner(source)}")
        return None
    text, pair = text_columns(source, columns)
    if text is None:
        shown = ", ".join(columns[:20])
        raise BadInput(f"{source.name} has the columns {shown}; say with `text_column=` which one holds the text.")
    for name in (text, pair):
        if name is not None and name not in columns:
            raise BadInput(f"{source.name}: {UnknownName('column', name, columns)}")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} has the columns {', '.join(columns[:20])}; {no_partner(source)}")
    return columns


def _id_column(options: JobOptions, sources: list[Source], columns: list[list[str] | None]) -> str | None:
    if options.id_column == "":
        return None
    if options.id_column is None:
        return USUAL_ID if all(USUAL_ID in (names or ()) for names in columns) else None
    for source, names in zip(sources, columns, strict=True):
        if options.id_column not in (names or ()):
            raise BadInput(f"{source.name}: {UnknownName('column', options.id_column, names or ())}")
    return options.id_column


def _first_is_number(source: Source, column: str) -> bool:
    _, row = next(read_records(source), (0, {}))
    value = row.get(column)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _answered(ray: Any, work: Work, parts: list[Part], options: JobOptions) -> Iterator[int]:
    """Rows of each part as it is done."""
    threads = options.machine.get("threads") or 1
    begun = not ray.is_initialized()
    if begun:
        where = {"include_dashboard": False} if options.address is None else {"address": options.address}
        try:
            with _silence():
                ray.init(log_to_driver=False, logging_level="ERROR", **where)
        except (ConnectionError, ValueError, RuntimeError) as err:
            place = "can be started here" if options.address is None else f"at {options.address}"
            raise BadValue(f"No Ray cluster {place}: {str(err).splitlines()[0]}") from err
    try:
        yield from _pooled(ray, work, parts, options, threads)
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _silence() -> Iterator[None]:
    """Ray's C++ part writes a line to standard error that tells nobody anything; errors still come as exceptions."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _pooled(ray: Any, work: Work, parts: list[Part], options: JobOptions, threads: int) -> Iterator[int]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if threads > largest:
        raise BadValue(f"`threads` is {threads}, and no machine of the cluster has more than {largest} cores.")
    workers = options.workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
    workers = min(workers, len(parts))
    on_gpu = str(options.machine.get("device") or "").startswith("cuda")
    written = [{"part": json.dumps(asdict(part))} for part in parts]  # as text: of nothing a table would make a NaN
    rows = ray.data.from_items(written, override_num_blocks=len(parts))
    answered = rows.map_batches(
        Worker,
        fn_constructor_args=(work,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=threads,
        num_gpus=1 if on_gpu else None,
    )
    with tqdm(total=len(parts), unit=" parts", disable=None, leave=False) as bar:
        try:
            for row in answered.iter_rows():
                if row["error"]:
                    raise BadInput(row["error"])
                bar.update()
                yield int(row["rows"])
        except ray.exceptions.RayError as err:
            cause = str(err).strip().splitlines()[-1]
            raise BadInput(f"The job ended on Ray: {cause} Parts that were answered are kept; run it again.") from err
    missing = [part.number for part in parts if not part_file(options.output, part.number).is_file()]
    if missing:
        raise BadInput(f"{options.output} lacks part {missing[0]}: do all machines see this folder?")
