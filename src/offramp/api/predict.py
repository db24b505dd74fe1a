"""`offramp.predict`: answers to any number of texts, here or on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.answers.answer import Answer
    from offramp.core.runner import Runner

__all__ = ["BENCHMARKS", "JobResult", "predict"]

BENCHMARKS = ("glue", "elue", "squad")  # whose files can be written


@dataclass(frozen=True)
class JobResult:
    """What was written."""

    output: Path
    rows: int | None = None  # that were answered now
    parts: int = 0  # of a job on Ray
    resumed: int = 0  # parts that were there already
    files: tuple[Path, ...] = ()  # of a submission

    def __str__(self) -> str:
        if self.files:
            return "\n".join(map(str, self.files))
        if not self.parts:
            return f"{self.output}: {self.rows:,} rows answered."
        before = f"; {self.resumed} of {self.parts} parts were there already" if self.resumed else ""
        return f"{self.output}: {self.rows:,} rows answered in {self.parts - self.resumed} parts{before}."


def predict(
    model: str | os.PathLike[str],
    texts: Any,
    *,
    output: str | os.PathLike[str] | TextIO | None = None,
    overwrite: bool = False,
    format: str | None = None,
    all_scores: bool = False,
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
    id_column: str | None = None,
    backend: str = "torch",
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    max_length: int | None = None,
) -> Iterator[Answer] | JobResult:
    """Answer texts: their label, their score, and the layer that they exited at.

    Without `output`, an iterator of answers in the texts' order; with it they are written there. To answer more than
    once, load the model: `offramp.load(model).predict(texts)`.

    Args:
        model: a model folder, or a name on the Hub.
        texts: a list or an iterator of texts (pairs are tuples), a column, a table, or a file; on Ray files alone.
        output: a file for the answers, or an open one; on Ray, and for a benchmark's files, a folder.
        format: jsonl or tsv; glue, elue or squad: `texts` is the task's official file.
        overwrite: replace what `output` holds.
        all_scores: every label's probability, too.
        task: for glue and elue, the task.
        split: for glue and elue, which test file it is; None: by its name.
        policy: instead of the model's own.
        threshold: another threshold for that policy, or one per exit.
        max_layers: no row runs more layers than that.
        batch_tokens: padded tokens in a batch.
        chunk: texts that are read before the first of them is answered.
        text_column: the column of the text.
        pair_column: the column of the second text of each pair.
        input_format: how a file is read; None: by its ending.
        header: whether TSV and CSV have a header; without one columns are "1", "2", ….
        engine: "ray": files of any size, answers as Parquet, goes on where it was interrupted.
        workers: on Ray, processes with the model.
        address: of a Ray cluster that runs already.
        id_column: on Ray, what tells rows apart.
        backend: what runs it: torch, or what it was exported for.
        device: cpu, cuda, mps …; None: an accelerator if available.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads.
        max_length: maximum tokens of a text; the rest is cut.

    >>> for answer in offramp.predict("my-model", ["a lovely film"]): ...             # doctest: +SKIP
    """
    machine: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads, "max_length": max_length}
    columns: dict[str, Any] = {
        "text_column": text_column,
        "pair_column": pair_column,
        "input_format": input_format,
        "header": header,
    }
    options = {"policy": policy, "threshold": threshold, "max_layers": max_layers, "batch_tokens": batch_tokens}
    target: Any = output if output is None or hasattr(output, "write") else Path(output)
    if engine == "ray":
        job: dict[str, Any] = {"id_column": id_column, "workers": workers, "address": address, "overwrite": overwrite}
        job |= {"all_scores": all_scores, "rows": chunk}
        _refuse("A job on Ray writes Parquet", format=format, task=task, split=split)
        return _on_ray(str(model), texts, target, columns, machine | {"backend": backend}, options, job)
    if engine != "here":
        raise BadValue(f"`engine` is {engine!r}; say here or ray.")
    _refuse("These go with `engine='ray'`", workers=workers, address=address, id_column=id_column)

    def load() -> Runner:
        from offramp.runtimes.loading import load as load_model

        return load_model(model, backend, **machine)

    if format in BENCHMARKS:
        unused: dict[str, Any] = {name: value for name, value in columns.items() if name != "header"}
        unused |= {"all_scores": all_scores or None, "chunk": chunk, "header": None if header else False}
        _refuse(f"A file for {format} has the official file's form and its own", **unused)
        return _submit(load, texts, format, task, split, target, overwrite, options)
    _refuse("These go with `format='glue'` or elue", task=task, split=split)
    return _here(load, texts, target, overwrite, format, all_scores, columns, options | {"chunk": chunk})


def _refuse(why: str, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise BadValue(f"{why}; leave `{name}=` out.")


def _here(
    load: Any,
    texts: Any,
    target: Path | TextIO | None,
    overwrite: bool,
    form: str | None,
    all_scores: bool,
    columns: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[Answer] | JobResult:
    from offramp.data.given import check, given
    from offramp.files.writing import check_free
    from offramp.report.answers import check_format, format_of_answers, lines_of, write_answers, write_lines

    streamed = isinstance(texts, Iterator)
    rows = None if streamed else given(texts, **columns)
    if rows is not None:
        check(rows)
    check_format(form)
    if isinstance(target, Path):
        check_free(target, overwrite)
    runner = load()
    runner.config.answer_type.check_scores(all_scores)
    if rows is not None and not rows.in_memory:
        _check_not_official(runner, rows.source.file)
    examples = texts if rows is None else rows.read(runner.config.inputs)
    if target is None:
        answers: Iterator[Answer] = runner.predict(examples, **options)
        return answers
    stream = runner.stream(examples, **options)
    if isinstance(target, Path):
        form = form or format_of_answers(target)
        return JobResult(target, write_answers(stream, runner.config, target, form, all_scores, overwrite))
    name = "standard output" if target is sys.stdout else str(getattr(target, "name", "the output"))
    return JobResult(
        Path(name), write_lines(lines_of(stream, runner.config, form or "jsonl", all_scores), target, name)
    )


def _check_not_official(runner: Runner, file: str) -> None:
    """A benchmark's own file is answered in the benchmark's way."""
    kinds = runner.config.answer_type.submissions
    if "squad" in kinds and file.removesuffix(".gz").endswith(".json"):
        raise BadValue(f"{file}: SQuAD's own files are answered with `format='squad'` and `output=`, a folder.")


def _on_ray(
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
    from offramp.cluster.run import PART, JobOptions, answer_files
    from offramp.data.source import Source

    if target is None:
        raise BadValue("A job on Ray writes a folder of Parquet files; name it with `output=`.")
    files = [texts] if isinstance(texts, str | os.PathLike) else list(texts)
    if not all(isinstance(file, str | os.PathLike) for file in files):
        raise BadValue("A job on Ray reads files: `texts` are their names, or patterns such as 'data/*.parquet'.")
    source = Source(
        "", columns["input_format"] or "", columns["text_column"], columns["pair_column"], columns["header"]
    )
    threads = machine["threads"]
    if threads is not None and threads < 1:
        raise BadValue(f"`threads` is {threads}; it is at least 1.")
    job["rows"] = PART if job["rows"] is None else job["rows"]
    asked = JobOptions(
        [os.fspath(file) for file in files], target, source, machine | {"threads": threads or 1}, options, **job
    )
    made = answer_files(model, asked)
    return JobResult(target, made.rows, made.parts, made.found)


def _submit(
    load: Any,
    texts: Any,
    form: str,
    task: str | None,
    split: str | None,
    target: Any,
    overwrite: bool,
    options: dict[str, Any],
) -> JobResult:
    """The files of a benchmark."""
    squad = form == "squad"
    if squad:
        _refuse("These go with `format='glue'` or elue", task=task, split=split)
    if target is None or (task is None and not squad):
        needs = "`output=`, a folder for its files"
        raise BadValue(f"`format='{form}'` needs {needs if squad else f'`task=`, and {needs}'}.")
    if not isinstance(texts, str | os.PathLike) or os.fspath(texts) == "-":
        raise BadValue(f"`format='{form}'` reads the official file; name it.")
    runner, file = load(), Path(texts)
    if form not in runner.config.answer_type.submissions:
        raise BadValue(f"{runner.name} does {runner.config.answer_type.title}; `format='{form}'` is for others.")
    if squad:
        from offramp.originals.squad.submission import write_squad

        files: Sequence[Path] = write_squad(runner, file, target, overwrite=overwrite, **options)
    else:
        from offramp.originals.submissions.submit import submit

        files = submit(runner, form, str(task), file, target, split=split, overwrite=overwrite, **options)
    return JobResult(target, files=tuple(files))
