"""A batch job on Ray Data: a pool of workers writes one file per part of the input, and skips finished parts.

Ray Data's own checkpoints are not used: they need unique ids in the input, hold all of them in memory, lose rows with
duplicate ids, and are deleted once a job has finished. One file per part avoids all of that.
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

from offramp.cluster.input_files import UnchangedFiles, checksum, common_folder, expand_patterns, version
from offramp.cluster.job import Job, check_complete, finished_parts, start_job
from offramp.cluster.output_folder import OutputFolder, open_folder
from offramp.cluster.parts import Part, split
from offramp.cluster.shipping import local_model, remove_copy, remove_unused_copies, ship
from offramp.cluster.worker import Worker, WorkerSettings
from offramp.core.loop import exits_within
from offramp.core.progress import Progress
from offramp.data.rankings import RANKING_INPUTS
from offramp.data.reading import check_unique, read_column_names, read_records
from offramp.data.source import Source, infer_format, missing_pair_message, text_columns
from offramp.errors import BadInput, BadValue, UnknownName
from offramp.files.error_lines import first_line, last_line
from offramp.files.storage import is_url
from offramp.runtimes.loading import load

if TYPE_CHECKING:
    from offramp.core.runner import Runner

__all__ = ["ROWS_PER_PART", "JobOptions", "JobSummary", "plan_job", "predict_files"]

ROWS_PER_PART = 16384  # texts of a part are sorted by length together
DEFAULT_ID_COLUMN = "id"
FIELD_TYPES = {"string", "strings", "float", "int", "json"}  # of predictions, that output files can hold


@dataclass(frozen=True)
class JobOptions:
    """The options of a batch job; see `offramp.predict`."""

    files: Sequence[str]  # names and patterns
    output: str  # path or URL of a folder
    source: Source  # format and columns of all files
    machine: dict[str, Any]
    options: dict[str, Any]  # policy, threshold, max_layers, batch_tokens
    rows: int = ROWS_PER_PART
    id_column: str | None = None
    all_scores: bool = False
    workers: int | None = None
    address: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class JobSummary:
    """What a job has done."""

    parts: int
    finished_before: int  # parts that an earlier run had finished
    rows: int  # predicted in this run


def predict_files(model: str, options: JobOptions) -> JobSummary:
    """Predict every row of every file; an interrupted job continues with its unfinished parts."""
    ray = _import_ray()
    folder = open_folder(options.output)
    sources = _sources(options, folder)
    versions = {source.file: version(source.file) for source in sources}  # before the files are read
    try:
        with local_model(model) as model_folder:
            return _predict(ray, model, model_folder, folder, options, sources, versions)
    finally:
        remove_unused_copies()


def _predict(
    ray: Any,
    model: str,
    model_folder: str,
    folder: OutputFolder,
    options: JobOptions,
    sources: list[Source],
    versions: dict[str, str],
) -> JobSummary:
    runner = load(model_folder, **options.machine)
    options = replace(options, machine=options.machine | {"backend": runner.backend})  # the same on every machine
    parts = split(sources, options.rows)
    non_empty = {part.file for part in parts}
    sources = [source for source in sources if source.file in non_empty]  # an empty file may lack columns
    if not parts:
        raise BadInput(f"The input is empty: {', '.join(options.files)}.")
    if runner.config.answer_type.compares_rows:
        _check_rankings(sources)
    settings, job = plan_job(model_folder, runner, options, sources)
    for source in sources:  # otherwise the checksums are not those of the files that were split
        UnchangedFiles(versions, {}).check(source.file)
    settings = replace(settings, versions=versions, token=start_job(folder, job, options.overwrite))
    finished = finished_parts(folder, settings.token)
    todo = [part for part in parts if part.number not in finished]
    del runner  # each worker loads its own
    try:
        rows = sum(_run_on_ray(ray, model, settings, todo, options)) if todo else 0
    finally:
        folder.remove_incomplete()
    check_complete(folder, settings.token, {part.number for part in parts})
    return JobSummary(len(parts), len(parts) - len(todo), rows)


def _check_rankings(sources: list[Source]) -> None:
    """Raise if a file has a row per document: the parts of a job would divide the documents of a query."""
    for source in sources:
        if RANKING_INPUTS[1] not in (read_column_names(source) or ()):
            raise BadInput(
                f"{source.file} has no column {RANKING_INPUTS[1]!r}; a Ray job needs one row per query, with the "
                "columns `query` and `documents`."
            )


def _import_ray() -> Any:
    """Import Ray with its log output turned off."""
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


def _sources(options: JobOptions, folder: OutputFolder) -> list[Source]:
    if options.rows < 1:
        raise BadValue(f"`chunk` must be at least 1, got {options.rows}.")
    if options.workers is not None and options.workers < 1:
        raise BadValue(f"`workers` must be at least 1, got {options.workers}.")
    files = [file for file in expand_patterns(options.files) if not _is_inside(file, folder)]
    if not files:
        raise BadInput(f"All input files are in the output folder {options.output}; choose another folder.")
    formats = {options.source.format or infer_format(file) for file in files}
    if len(formats) > 1:
        raise BadInput(f"The files have different formats ({', '.join(sorted(formats))}); run one job per format.")
    return [replace(options.source, file=file, format=next(iter(formats))) for file in files]


def _is_inside(file: str, folder: OutputFolder) -> bool:
    return file.startswith(f"{folder}/") if is_url(file) else Path(file).resolve().is_relative_to(str(folder))


def plan_job(
    model_folder: str, runner: Runner, options: JobOptions, sources: list[Source]
) -> tuple[WorkerSettings, Job]:
    """Return the workers' settings and the job; raise for invalid options before any worker starts."""
    config, predict_options = runner.config, options.options
    config.answer_type.check_scores(options.all_scores)
    if not set(config.answer_type.fields.values()) <= FIELD_TYPES:
        raise BadValue(f"`engine='ray'` does not support {config.answer_type.title}; remove it.")
    policy = config.resolve_policy(predict_options.get("policy"), predict_options.get("threshold"))
    exits_within(runner.stepper.exits, predict_options.get("max_layers"))
    inputs = None if config.inputs is None else tuple(config.inputs)
    sources = [replace(source, inputs=inputs) for source in sources]
    columns = [_check_columns(source, options.id_column) for source in sources]
    id_column = _id_column(options, sources, columns)
    id_is_number = id_column is not None and _first_is_number(sources[0], id_column)
    checksums = {source.file: checksum(source.file) for source in sources}
    settings = WorkerSettings(
        model_folder,
        runner.fingerprint,
        options.machine,
        predict_options | {"chunk": options.rows},
        sources[0],
        str(open_folder(options.output)),
        common_folder([source.file for source in sources]),
        id_column,
        id_is_number,
        options.all_scores,
        {},
        checksums,
    )
    names = (None, None) if columns[0] is None else text_columns(sources[0], columns[0])
    job = Job(
        runner.fingerprint,
        str(policy),
        predict_options.get("max_layers"),
        id_column,
        names,
        options.all_scores,
        sources[0].format,
        sources[0].has_header,
        options.rows,
        tuple((file, size, digest) for file, (size, digest) in checksums.items()),
    )
    return settings, job


def _check_columns(source: Source, id_column: str | None) -> list[str] | None:
    """Return a file's columns; raise if the text columns are not among them, or not unique."""
    columns = read_column_names(source)
    if columns is None:
        if source.text_column or source.pair_column:
            raise BadInput(f"{source.name} has no columns; remove `text_column=` and `pair_column=`.")
        if len(source.inputs or ()) == 2:
            raise BadInput(f"{source.name} has no columns; {missing_pair_message(source)}")
        return None
    text, pair = text_columns(source, columns)
    if text is None:
        names = ", ".join(columns[:20])
        raise BadInput(f"{source.name} has the columns {names}; set `text_column=` to the one that contains the text.")
    for name in (text, pair):
        if name is not None and name not in columns:
            raise BadInput(f"{source.name}: {UnknownName('column', name, columns)}")
    if pair is None and len(source.inputs or ()) == 2:
        raise BadInput(f"{source.name} has the columns {', '.join(columns[:20])}; {missing_pair_message(source)}")
    check_unique(source, columns, [id_column] if id_column else [])
    return columns


def _id_column(options: JobOptions, sources: list[Source], columns: list[list[str] | None]) -> str | None:
    if options.id_column == "":
        return None
    if options.id_column is None:
        have_ids = all(
            DEFAULT_ID_COLUMN in (names or ()) and len(set(names or ())) == len(names or ()) for names in columns
        )
        return DEFAULT_ID_COLUMN if have_ids else None  # as in a single process
    for source, names in zip(sources, columns, strict=True):
        if options.id_column not in (names or ()):
            raise BadInput(f"{source.name}: {UnknownName('column', options.id_column, names or ())}")
    return options.id_column


def _first_is_number(source: Source, column: str) -> bool:
    _, row = next(read_records(source, used=[column]), (0, {}))
    value = row.get(column)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _run_on_ray(
    ray: Any, model: str, settings: WorkerSettings, parts: list[Part], options: JobOptions
) -> Iterator[int]:
    """Connect to Ray or start it; yield the number of rows of each part as it finishes."""
    threads, shipped = options.machine.get("threads") or 1, None
    is_started_here = not ray.is_initialized()
    if is_started_here:
        target = {"include_dashboard": False} if options.address is None else {"address": options.address}
        try:
            with _silent_stderr():
                ray.init(log_to_driver=False, logging_level="ERROR", **target)
        except (ConnectionError, ValueError, RuntimeError) as err:
            action = "start Ray here" if options.address is None else f"connect to Ray at {options.address}"
            raise BadValue(f"Cannot {action}: {first_line(err)}.") from err
    try:
        folder = str(settings.model)
        shipped = ship(ray, folder, model) if Path(folder).is_dir() else None
        yield from _run_pool(ray, replace(settings, model=shipped or folder), parts, options, threads)
    finally:
        if is_started_here:
            ray.shutdown()
        if shipped is not None:
            remove_copy(shipped)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard standard error, to which Ray's C++ code writes noise; errors are still raised as exceptions."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with Path(os.devnull).open("w") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def _run_pool(
    ray: Any, settings: WorkerSettings, parts: list[Part], options: JobOptions, threads: int
) -> Iterator[int]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if threads > largest:
        raise BadValue(f"`threads` is {threads}, but no machine in the cluster has more than {largest} cores.")
    workers = options.workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
    workers = min(workers, len(parts))
    on_gpu = str(options.machine.get("device") or "").startswith("cuda")
    items = [{"part": json.dumps(asdict(part))} for part in parts]  # as JSON, because a table would turn None into NaN
    dataset = ray.data.from_items(items, override_num_blocks=len(parts))
    results = dataset.map_batches(
        Worker,
        fn_constructor_args=(settings,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=threads,
        num_gpus=1 if on_gpu else None,
    )
    outcomes, error = iter(results.iter_rows()), ""
    del results
    with Progress("Predicting", len(parts), "parts") as progress:
        try:
            for row in outcomes:
                if error := row["error"]:
                    break
                progress.update()
                yield int(row["rows"])
        except ray.exceptions.RayError as err:
            raise BadInput(
                f"The Ray job failed: {last_line(err)}. Run it again to continue with the unfinished parts."
            ) from err
    del outcomes  # Ray ends the workers when nothing refers to the results
    if error:
        raise BadInput(error)
