"""Who runs: what each contestant is, told so that another process can open it too."""

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
from offramp.exports.folder import runtime_of
from offramp.model.adaptive import AdaptiveModel
from offramp.policies import Never, Policy
from offramp.runtimes.loading import load
from offramp.runtimes.segments import SegmentStepper
from offramp.runtimes.torch import TorchStepper

__all__ = ["Entry", "Ran", "open_entry"]

PADDED = 128  # tokens that the originals padded every row to


@dataclass(frozen=True)
class Entry:
    """One contestant."""

    name: str
    way: str  # plain, pipeline, originals, full, leaving
    backend: str = "torch"
    dtype: str = "float32"
    graph: str | None = None  # of a peer: the file with its full depth
    layers: int | None = None  # of the graph, where it has not all of them
    batches: tuple[int, ...] | None = None  # None: every size that is asked for

    @property
    def adaptive(self) -> bool:
        """Whether rows may leave early."""
        return self.way in ("leaving", "originals")


@dataclass(frozen=True)
class Ran:
    """Answers to all texts in their order, the layers that they took, and each call's seconds."""

    logits: NDArray[Any]
    layers: NDArray[np.int64]
    seconds: list[float]


class Way(Protocol):
    """Texts and a batch size in, answers out."""

    def __call__(self, texts: Sequence[Text], size: int) -> Ran:
        """Answer, and time every call."""
        ...


def open_entry(entry: Entry, model: str, threads: int | None) -> Way:
    """Load a contestant."""
    if entry.way == "full" and entry.graph is not None:
        return partial(_sorted, _peer(entry, model, threads), Never())
    options: dict[str, Any] = {"dtype": entry.dtype, "device": "cpu"} if entry.backend == "torch" else {}
    runner = load(model, entry.backend, threads=threads, **options)
    if entry.way == "pipeline":
        return partial(_pipeline, runner, _made_pipeline(runner))
    if entry.way == "plain":
        return partial(_unsorted, runner)
    policy = runner.config.choose()
    if entry.way == "originals":
        return partial(_padded, runner, policy)
    if entry.way == "full":
        return partial(_plain_sorted, runner)
    return partial(_sorted, runner, policy)


def _peer(entry: Entry, model: str, threads: int | None) -> Runner:
    """A full-depth graph with the model's tokenizer."""
    from offramp.model.config import AdaptiveConfig
    from offramp.model.tokenizer import load_tokenizer

    config = AdaptiveConfig.from_pretrained(model)
    config.exits = config.exits[-1:]
    config.policy = {"name": "never"}
    open_graph, _ = runtime_of(entry.backend)
    options = {"precision": "bf16"} if entry.dtype == "bfloat16" else {}
    graph = open_graph(Path(str(entry.graph)), threads, **options)
    points = (ExitPoint(1, entry.layers or config.num_layers),)
    stepper = SegmentStepper(entry.backend, entry.dtype, points, (graph,), config.answer_type)
    return Runner(model, config, load_tokenizer(model, config, {}), stepper)


def _batches(runner: Runner, texts: Sequence[Text], size: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """The rows of each batch and the batch: of one text as it comes, else of like lengths."""
    for chunk in runner.chunks(texts, progress=False, quiet=True, chunk=1 if size == 1 else len(texts)):
        for rows, batch in chunk.of_rows(size):
            yield rows + chunk.first, batch


def _sorted(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> Ran:
    """By the loop, as everything of ours answers."""

    def answer(batch: Batch) -> tuple[Any, Any]:
        found = run(runner.stepper, batch, policy)
        return found.logits.float().numpy(), found.layer.numpy()

    return _through(runner, _batches(runner, texts, size), answer, len(texts))


def _plain_sorted(runner: Runner, texts: Sequence[Text], size: int) -> Ran:
    """The family's own forward pass."""

    def answer(batch: Batch) -> tuple[Any, Any]:
        return runner.stepper.plain(batch).float().numpy(), runner.config.num_layers

    return _through(runner, _batches(runner, texts, size), answer, len(texts))


def _unsorted(runner: Runner, texts: Sequence[Text], size: int) -> Ran:
    """As the library's documentation shows it: texts as they come, padded to the longest of the batch."""

    def batches() -> Iterator[tuple[NDArray[np.int64], Batch]]:
        for start in range(0, len(texts), size):
            rows = np.arange(start, min(start + size, len(texts)))
            yield rows, _encoded(runner, list(texts[start : start + size]), padding=True, max_length=runner.limit)

    def answer(batch: Batch) -> tuple[Any, Any]:
        return runner.stepper.plain(batch).float().numpy(), runner.config.num_layers

    return _through(runner, batches(), answer, len(texts))


def _padded(runner: Runner, policy: Policy, texts: Sequence[Text], size: int) -> Ran:
    """As the originals answered: one row at a time, padded to 128 tokens."""
    stepper = _Uncut(*(getattr(runner.stepper, name) for name in ("family", "encoder", "modules", "answer_type")))

    def batches() -> Iterator[tuple[NDArray[np.int64], Batch]]:
        for row, text in enumerate(texts):
            yield np.array([row]), _encoded(runner, [text], padding="max_length", max_length=min(PADDED, runner.limit))

    def answer(batch: Batch) -> tuple[Any, Any]:
        found = run(stepper, batch, policy)
        return found.logits.float().numpy(), found.layer.numpy()

    return _through(runner, batches(), answer, len(texts))


class _Uncut(TorchStepper):
    def embed(self, batch: Batch) -> EncoderState:
        return self.family.start(self.encoder, batch, cut=False)


def _encoded(runner: Runner, texts: list[Text], **options: Any) -> Batch:
    firsts, seconds = ([text if isinstance(text, str) else text[0] for text in texts], None)
    if not isinstance(texts[0], str):
        seconds = [text[1] for text in texts]
    return Batch.of_tensors(**runner.tokenizer(firsts, seconds, truncation=True, return_tensors="pt", **options))


def _through(runner: Runner, batches: Iterator[tuple[NDArray[np.int64], Batch]], answer: Any, count: int) -> Ran:
    """Every batch, tokenised and answered within its seconds."""
    found: list[tuple[Any, Any, Any]] = []
    seconds = []
    begun = perf_counter()
    with runner.stepper.answering():
        for rows, batch in batches:
            logits, layers = answer(batch)
            found.append((rows, logits, layers))
            now = perf_counter()
            seconds.append(now - begun)
            begun = now
    logits = np.empty((count, found[0][1].shape[-1]), np.float32)
    layers = np.empty(count, np.int64)
    for rows, some, depth in found:
        logits[rows], layers[rows] = some, depth
    return Ran(logits, layers, seconds)


def _made_pipeline(runner: Runner) -> Any:
    """The library's own, with the full depth."""
    from transformers import TextClassificationPipeline

    model = AdaptiveModel.from_pretrained(runner.name).eval()
    model.config.policy, model.config.calibrated = {"name": "never"}, None
    return TextClassificationPipeline(model=model, tokenizer=runner.tokenizer, top_k=None, function_to_apply="none")


def _pipeline(runner: Runner, pipe: Any, texts: Sequence[Text], size: int) -> Ran:
    """Every text's scores, one after the other."""
    given = [text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]} for text in texts]
    stream = (one for one in given)  # batches are made of a generator alone
    places = {label: place for place, label in enumerate(runner.config.labels)}
    logits = np.empty((len(texts), len(places)), np.float32)
    begun, seconds = perf_counter(), []
    for row, scores in enumerate(pipe(stream, batch_size=size, truncation=True, max_length=runner.limit)):
        for one in scores:
            logits[row, places[one["label"]]] = one["score"]
        now = perf_counter()
        seconds.append(now - begun)
        begun = now
    return Ran(logits, np.full(len(texts), runner.config.num_layers), seconds)
