"""`offramp.predict`: predict any number of texts, in this process or on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from offramp.api.options import check_counts
from offramp.errors import BadValue
from offramp.files.storage import check_local, is_url

if TYPE_CHECKING:
    from offramp.answers.answer import Answer
    from offramp.core.runner import Runner
    from offramp.data.input_data import InputData
    from offramp.data.row_fields import RowFields

__all__ = ["BENCHMARKS", "JobResult", "predict"]

BENCHMARKS = ("glue", "elue", "squad")  # formats of submission files


@dataclass(frozen=True)
class JobResult:
    """Result of `offramp.predict` with `output=`.

    Attributes:
        output: file or folder with the predictions; a URL is a string.
        rows: number of rows predicted in this call, or None.
        parts: Ray: number of output files.
        resumed: Ray: output files that already existed from an interrupted run.
        files: files of a benchmark submission.
    """

    output: Path | str
    rows: int | None = None
    parts: int = 0
    resumed: int = 0
    files: tuple[Path, ...] = ()

    def __str__(self) -> str:
        if self.files:
            return "\n".join(map(str, self.files))
        if not self.parts:
            return f"Wrote {self.output}: {self.rows:,} rows."
        existing = f"; {self.resumed} of {self.parts} parts already existed" if self.resumed else ""
        return f"Wrote {self.output}: {self.rows:,} rows in {self.parts - self.resumed} parts{existing}."


def predict(
    model: str | os.PathLike[str],
    texts: Any,
    *,
    output: str | os.PathLike[str] | TextIO | None = None,
    overwrite: bool = False,
    format: str | None = None,
    all_scores: bool = False,
    with_text: bool = False,
    id_column: str | None = None,
    task: str | None = None,
    split: str | None = None,
    policy: str | None = None,
    threshold: Any = None,
    max_layers: int | None = None,
    batch_tokens: int | None = None,
    chunk: int | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    input_format: str | None = None,
    header: bool = True,
    engine: str = "here",
    workers: int | None = None,
    address: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
) -> Iterator[Answer] | JobResult:
    """Predict the label, score and exit layer of every text.

    To predict more than once, load the model once: `offramp.load(model).predict(texts)`.

    Args:
        model: a model folder, or a name on the Hugging Face Hub; with Ray also a URL such as s3://bucket/model.
        texts: a list or an iterator of texts (pairs are tuples), a column, a table, or a file (path or URL); with Ray
            files only.
        output: file (path or open) for the predictions; with Ray (path or URL) and for benchmark submissions a folder.
        overwrite: replace `output` if it exists.
        format: "jsonl", "csv", "tsv" or "parquet"; None for the extension of `output` (also with .gz). For "glue",
            "elue" and "squad", `texts` is the official file of a task.
        all_scores: include the probability of every label.
        with_text: write the text beside its prediction.
        id_column: column that identifies a row, written as `id`; None for a column `id` if there is one (Ray: else the
            file and line).
        task: for glue and elue, the task.
        split: for glue and elue, the split of the file; None to infer it from the file name.
        policy: exit policy, instead of the model's.
        threshold: threshold of the policy, or one per exit.
        max_layers: maximum number of layers per text.
        batch_tokens: maximum padded tokens per batch.
        chunk: texts to read before predicting.
        text_column: column with the text.
        pair_column: column with the second text of each pair.
        input_format: format of a file; None to infer it from the extension.
        header: whether TSV and CSV files have a header line; otherwise columns are called "1", "2", ….
        engine: "here" for this process; "ray" for files of any size in parallel, with predictions as Parquet;
            interrupted runs continue.
        workers: Ray: number of worker processes.
        address: Ray: address of a running cluster.
        backend: runtime for inference: "torch", or one that the model was exported for; None for the one that it was
            adapted for, else "torch".
        device: "cpu", "cuda", "mps", …; None for an accelerator if available.
        dtype: "float32" (default), "bfloat16" or "float16".
        threads: number of CPU threads; None for torch's choice.
        max_length: maximum tokens per text; longer texts are truncated.

    Returns:
        Without `output`, an iterator of predictions in the order of the texts; with it, a `JobResult`.

    Examples:
        >>> for prediction in offramp.predict("my-model", ["a lovely film"]):
        ...     print(prediction.label, prediction.score, prediction.exit_layer)
    """
    machine: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads, "max_length": max_length}
    columns: dict[str, Any] = {
        "text_column": text_column,
        "pair_column": pair_column,
        "input_format": input_format,
        "header": header,
    }
    options = {"policy": policy, "threshold": threshold, "max_layers": max_layers, "batch_tokens": batch_tokens}
    target: Any = output if output is None or hasattr(output, "write") or is_url(output) else Path(output)
    if engine == "ray":
        job: dict[str, Any] = {"id_column": id_column, "workers": workers, "address": address, "overwrite": overwrite}
        job |= {"all_scores": all_scores, "rows": chunk}
        unused_here = {"format": format, "task": task, "split": split, "with_text": with_text or None}
        _reject("`engine='ray'` always writes ids and predictions as Parquet", **unused_here)
        return _predict_on_ray(str(model), texts, target, columns, machine | {"backend": backend}, options, job)
    if engine != "here":
        raise BadValue(f"`engine` must be 'here' or 'ray', got {engine!r}.")
    if is_url(output):
        check_local(Path(target))
    _require("`engine='ray'`", workers=workers, address=address)

    def load() -> Runner:
        from offramp.runtimes.loading import load as load_model

        return load_model(model, backend, **machine)

    if format in BENCHMARKS:
        unused: dict[str, Any] = {name: value for name, value in columns.items() if name != "header"}
        unused |= {"all_scores": all_scores or None, "with_text": with_text or None, "id_column": id_column}
        unused |= {"chunk": chunk, "header": None if header else False}
        _reject(f"`format='{format}'` has fixed input and output formats", **unused)
        return _submit(load, texts, format, task, split, target, overwrite, options)
    _require("`format='glue'` or `format='elue'`", task=task, split=split)
    if target is None:
        _require("`output=`", with_text=with_text or None, id_column=id_column)
    written = {"format": format, "all_scores": all_scores, "with_text": with_text, "id_column": id_column}
    return _predict_here(load, texts, target, overwrite, written, columns, options | {"chunk": chunk})


def _reject(reason: str, **values: Any) -> None:
    """Raise if an argument is set that does not apply."""
    for name, value in values.items():
        if value is not None:
            raise BadValue(f"{reason}; remove `{name}=`.")


def _require(setting: str, **values: Any) -> None:
    """Raise if an argument is set that needs another setting."""
    for name, value in values.items():
        if value is not None:
            raise BadValue(f"`{name}=` needs {setting}.")


def _predict_here(
    load: Any,
    texts: Any,
    target: Path | TextIO | None,
    overwrite: bool,
    written: dict[str, Any],
    columns: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[Answer] | JobResult:
    from offramp.data.input_data import check_exists, resolve_input
    from offramp.files.writing import check_output_path
    from offramp.report.answers import PredictionTable, check_format, output_format, write_file, write_stream

    streamed = isinstance(texts, Iterator)
    rows = None if streamed else resolve_input(texts, **columns)
    if rows is not None:
        check_exists(rows)
    check_format(written["format"])
    if isinstance(target, Path):
        check_output_path(target, overwrite)
        if rows is not None and not rows.in_memory and _is_inside(target, Path(rows.source.file)):
            raise BadValue(f"{target} lies in the folder that is read; choose another place with `output=`.")
        written = written | {"format": output_format(target, written["format"])}
    runner = load()
    runner.config.answer_type.check_scores(written["all_scores"])
    _remind(runner, options)
    if rows is not None and not rows.in_memory:
        _check_not_official(runner, rows.source.file)
    if target is None:
        examples = texts if rows is None else rows.read(runner.config.inputs)
        predictions: Iterator[Answer] = runner.predict(examples, **options)
        return predictions
    fields = _row_fields(runner, texts, rows, written["id_column"], written["with_text"])
    table = PredictionTable(runner.stream(fields.texts(), **options), runner.config, written["all_scores"], fields)
    if isinstance(target, Path):
        return JobResult(target, write_file(table, target, written["format"], overwrite))
    name = "standard output" if target is sys.stdout else str(getattr(target, "name", "the output"))
    return JobResult(Path(name), write_stream(table, target, written["format"] or "jsonl", name))


def _remind(runner: Runner, options: dict[str, Any]) -> None:
    """Log a reminder if the options are outside the model's guarantee."""
    from offramp.model.guarantee import remind_if_outside

    policy = runner.config.resolve_policy(options["policy"], options["threshold"])
    remind_if_outside(runner.config, policy, options["max_layers"])


def _is_inside(path: Path, folder: Path) -> bool:
    return folder.is_dir() and path.resolve().is_relative_to(folder.resolve())


def _row_fields(
    runner: Runner, texts: Any, rows: InputData | None, id_column: str | None, with_text: bool
) -> RowFields:
    """Return the rows' texts together with the ids and texts to write."""
    from offramp.data.row_fields import ID, RowFields

    config = runner.config
    if rows is None and id_column is not None:
        raise BadValue("`id_column=` is only for files and tables, not for an iterator of texts.")
    required = id_column is not None
    if rows is not None and id_column is None and rows.has_ids(ID):
        id_column = ID
    examples: Iterator[tuple[Any, Any]]
    if has_ids := id_column is not None and rows is not None:
        examples = rows.read_with_ids(config.inputs, id_column, required)
    else:
        examples = ((None, text) for text in (texts if rows is None else rows.read(config.inputs)))
    names: tuple[str, ...] = ()
    if with_text:
        is_pair = config.reads_pairs
        if is_pair is None and rows is not None and not rows.in_memory:  # all rows of a file are like the first
            first = list(islice(examples, 1))
            examples = chain(first, examples)
            is_pair = any(not isinstance(text, str) for _, text in first)
        single = config.answer_type.reads_words or is_pair is False
        names = config.answer_type.inputs or (("text",) if single else ("text", "pair"))
    return RowFields(examples, has_ids, names)


def _check_not_official(runner: Runner, file: str) -> None:
    """Raise for an official SQuAD file: its predictions have a separate format."""
    if "squad" in runner.config.answer_type.submission_formats and file.removesuffix(".gz").endswith(".json"):
        raise BadValue(f"{file} is an official SQuAD file: set `format='squad'` and `output=` to a folder.")


def _predict_on_ray(
    model: str,
    texts: Any,
    target: Any,
    columns: dict[str, Any],
    machine: dict[str, Any],
    options: dict[str, Any],
    job: dict[str, Any],
) -> JobResult:
    from offramp.extras import require

    require("ray", "`engine='ray'`")
    from offramp.cluster.run import ROWS_PER_PART, JobOptions, predict_files
    from offramp.data.source import Source

    if target is None:
        raise BadValue("`engine='ray'` writes Parquet files; set `output=` to a folder.")
    files = [texts] if isinstance(texts, str | os.PathLike) else list(texts)
    if not all(isinstance(file, str | os.PathLike) for file in files):
        raise BadValue("`engine='ray'` reads files: pass file names as `texts`, or patterns such as 'data/*.parquet'.")
    source = Source(
        "", columns["input_format"] or "", columns["text_column"], columns["pair_column"], columns["header"]
    )
    threads = machine["threads"]
    check_counts(threads=threads)
    job["rows"] = ROWS_PER_PART if job["rows"] is None else job["rows"]
    job_options = JobOptions(
        [os.fspath(file) for file in files], str(target), source, machine | {"threads": threads or 1}, options, **job
    )
    summary = predict_files(model, job_options)
    return JobResult(target, summary.rows, summary.parts, summary.finished_before)


def _submit(
    load: Any,
    texts: Any,
    benchmark: str,
    task: str | None,
    split: str | None,
    target: Any,
    overwrite: bool,
    options: dict[str, Any],
) -> JobResult:
    """Write the submission files of a benchmark."""
    squad = benchmark == "squad"
    if squad:
        _require("`format='glue'` or `format='elue'`", task=task, split=split)
    if target is None or (task is None and not squad):
        raise BadValue(f"`format='{benchmark}'` needs {'' if squad else '`task=` and '}`output=` (a folder).")
    if not isinstance(texts, str | os.PathLike) or os.fspath(texts) == "-":
        raise BadValue(f"`format='{benchmark}'` needs the path of the official file.")
    runner, file = load(), Path(texts)
    if benchmark not in runner.config.answer_type.submission_formats:
        raise BadValue(f"`format='{benchmark}'` does not support {runner.config.answer_type.title} ({runner.name}).")
    if squad:
        from offramp.originals.squad.submission import write_squad

        files: Sequence[Path] = write_squad(runner, file, target, overwrite=overwrite, **options)
    else:
        from offramp.originals.submissions.submit import submit

        files = submit(runner, benchmark, str(task), file, target, split=split, overwrite=overwrite, **options)
    return JobResult(target, files=tuple(files))
