"""The entries of a benchmark: how each one is loaded, run and timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offramp.core.batch import Batch
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint
from offramp.data.reading import Text
from offramp.encoders import EncoderState
from offramp.evaluation.benchmark.engines import ENGINES, FullModel
from offramp.evaluation.benchmark.entry import Entry
from offramp.evaluation.benchmark.rankings import RankingOutput, rank_in_batches, rank_with
from offramp.exports.folder import resolve_runtime
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Never, Policy
from offramp.runtimes.loading import load
from offramp.runtimes.segments import SegmentStepper
from offramp.runtimes.torch import TorchStepper

__all__ = ["EntryOutput", "open_entry"]

PADDED_LENGTH = 128  # tokens that the original implementations pad every row to


@dataclass(frozen=True)
class EntryOutput:
    """Predictions, logits and layers of all texts in their order, and the seconds of every call."""

    answers: NDArray[Any]
    logits: NDArray[Any]
    layers: NDArray[np.int64]
    seconds: list[float]


class Predictor(Protocol):
    """Runs an entry on texts with a batch size."""

    def __call__(self, texts: Sequence[Text], size: int) -> EntryOutput | RankingOutput:
        """Predict, and time every call."""
        ...


def open_entry(entry: Entry, model: str, threads: int | None) -> Predictor:
    """Load an entry."""
    if entry.mode == "full" and entry.graph is not None and entry.backend not in ENGINES:
        runner = _graph_runner(entry, model, threads)
        if runner.config.answer_type.compares_rows:
            return partial(rank_with, runner, Never(), entry.documents)
        return partial(_run_sorted, runner, Never())
    if entry.backend in ENGINES:
        dtype = "bfloat16" if entry.dtype == "bfloat16" else "float32"
        runner = load(model, "torch", threads=threads, dtype=dtype, device="cpu")
        return partial(_run_engine, runner, ENGINES[entry.backend].open_model(entry, runner, threads))
    options: dict[str, Any] = {"dtype": entry.dtype, "device": "cpu"} if entry.backend == "torch" else {}
    runner = load(model, entry.backend, threads=threads, **options)
    if runner.config.answer_type.compares_rows:
        if entry.mode == "plain":
            return partial(rank_in_batches, runner, entry.documents)
        policy = runner.config.resolve_policy("never" if entry.mode == "full" else None)
        return partial(rank_with, runner, policy, entry.documents)
    if entry.mode == "pipeline":
        return partial(_run_pipeline, runner, _build_pipeline(runner))
    if entry.mode == "plain":
        return partial(_run_unsorted, runner)
    policy = runner.config.resolve_policy()
    if entry.mode == "originals":
        return partial(_run_padded, runner, policy)
    if entry.mode == "full":
        return partial(_run_full_sorted, runner)
    return partial(_run_sorted, runner, policy)


def _graph_runner(entry: Entry, model: str, threads: int | None) -> Runner:
    """Load a full-depth graph with the model's tokenizer."""
    from offramp.model.config import AdaptiveConfig
    from offramp.model.tokenizer import load_tokenizer

    config = AdaptiveConfig.from_pretrained(model)
    config.exits = config.exits[-1:]
    config.policy = {"name": "never"}
    open_graph, _ = resolve_runtime(entry.backend)
    options = {"precision": "bf16"} if entry.dtype == "bfloat16" else {}
    graph = open_graph(Path(str(entry.graph)), threads, **options)
    points = (ExitPoint(1, config.num_layers if entry.layers is None else entry.layers),)
    stepper = SegmentStepper(entry.backend, entry.dtype, points, (graph,), config.answer_type)
    return Runner(model, config, load_tokenizer(model, config, {}), stepper)


def _batches(runner: Runner, texts: Sequence[Text], size: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """Yield row indices and batches: texts in order for batch size 1, else of similar lengths."""
    for chunk in runner.chunks(texts, progress=False, quiet=True, chunk=1 if size == 1 else len(texts)):
        for rows, batch in chunk.batches_of(size):
            yield rows + chunk.offset, batch


def _run_sorted(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run the early-exit loop on batches of similar lengths."""

    def predict(batch: Batch) -> tuple[Any, Any]:
        output = run(runner.stepper, batch, policy)
        return output.logits.float().numpy(), output.layer

    return _time_batches(runner, _batches(runner, texts, size), predict, len(texts))


def _run_full_sorted(runner: Runner, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run the full model on batches of similar lengths."""

    def predict(batch: Batch) -> tuple[Any, Any]:
        return runner.stepper.full_model(batch).float().numpy(), runner.config.num_layers

    return _time_batches(runner, _batches(runner, texts, size), predict, len(texts))


def _run_engine(runner: Runner, full_model: FullModel, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run the full model of another library on batches of similar lengths."""

    def predict(batch: Batch) -> tuple[Any, Any]:
        return full_model(batch).float().numpy(), runner.config.num_layers

    return _time_batches(runner, _batches(runner, texts, size), predict, len(texts))


def _run_unsorted(runner: Runner, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run the full model as in the transformers documentation: texts in order, padded to the longest of the batch."""

    def batches() -> Iterator[tuple[NDArray[np.int64], Batch]]:
        for start in range(0, len(texts), size):
            rows = np.arange(start, min(start + size, len(texts)))
            yield rows, _tokenize(runner, list(texts[start : start + size]), padding=True, max_length=runner.limit)

    def predict(batch: Batch) -> tuple[Any, Any]:
        return runner.stepper.full_model(batch).float().numpy(), runner.config.num_layers

    return _time_batches(runner, batches(), predict, len(texts))


def _run_padded(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run as the original implementations do: one row at a time, padded to 128 tokens."""
    stepper = _PaddedStepper(*(getattr(runner.stepper, name) for name in ("family", "encoder", "heads", "answer_type")))

    def batches() -> Iterator[tuple[NDArray[np.int64], Batch]]:
        for row, text in enumerate(texts):
            yield (
                np.array([row]),
                _tokenize(runner, [text], padding="max_length", max_length=min(PADDED_LENGTH, runner.limit)),
            )

    def predict(batch: Batch) -> tuple[Any, Any]:
        output = run(stepper, batch, policy)
        return output.logits.float().numpy(), output.layer

    return _time_batches(runner, batches(), predict, len(texts))


class _PaddedStepper(TorchStepper):
    def embed(self, batch: Batch) -> EncoderState:
        return self.family.start(self.encoder, batch, trim=False)


def _tokenize(runner: Runner, texts: list[Text], **options: Any) -> Batch:
    firsts, seconds = ([text if isinstance(text, str) else text[0] for text in texts], None)
    if not isinstance(texts[0], str):
        seconds = [text[1] for text in texts]
    return Batch.from_tensors(**runner.tokenizer(firsts, seconds, truncation=True, return_tensors="pt", **options))


def _time_batches(
    runner: Runner, batches: Iterator[tuple[NDArray[np.int64], Batch]], predict: Any, count: int
) -> EntryOutput:
    """Run all batches; the seconds of a batch include its tokenization."""
    outputs: list[tuple[Any, Any, Any]] = []
    seconds = []
    start = perf_counter()
    with runner.stepper.inference_mode():
        for rows, batch in batches:
            logits, layers = predict(batch)
            outputs.append((rows, logits, layers))
            now = perf_counter()
            seconds.append(now - start)
            start = now
    logits = np.empty((count, outputs[0][1].shape[-1]), np.float32)
    layers = np.empty(count, np.int64)
    for rows, batch_logits, batch_layers in outputs:
        logits[rows], layers[rows] = batch_logits, batch_layers
    return EntryOutput(runner.config.answer_type.answers(logits), logits, layers, seconds)


def _build_pipeline(runner: Runner) -> Any:
    """Return a transformers pipeline with the full model."""
    from transformers import TextClassificationPipeline

    model = AdaptiveModel.from_pretrained(runner.name).eval()
    model.config.policy, model.config.calibrated = {"name": "never"}, None
    return TextClassificationPipeline(model=model, tokenizer=runner.tokenizer, top_k=None, function_to_apply="none")


def _run_pipeline(runner: Runner, pipe: Any, texts: Sequence[Text], size: int) -> EntryOutput:
    """Run the pipeline and time every text."""
    inputs = [text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]} for text in texts]
    stream = (text for text in inputs)  # the pipeline batches generators only
    classes = {label: index for index, label in enumerate(runner.config.labels)}
    logits = np.empty((len(texts), len(classes)), np.float32)
    start, seconds = perf_counter(), []
    for row, scores in enumerate(pipe(stream, batch_size=size, truncation=True, max_length=runner.limit)):
        for item in scores:
            logits[row, classes[item["label"]]] = item["score"]
        now = perf_counter()
        seconds.append(now - start)
        start = now
    answers = runner.config.answer_type.answers(logits)
    return EntryOutput(answers, logits, np.full(len(texts), runner.config.num_layers), seconds)
