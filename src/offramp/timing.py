"""Seconds, not layers: policies and the plain encoder take turns on the same texts, tokenising each time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from offramp.backbones import Inside
from offramp.batching import answering, check_budget, chunks
from offramp.model import AdaptiveModel
from offramp.policies import Policy
from offramp.reading import Text
from offramp.stepper import Batch

__all__ = ["Race", "race"]

ROWS, ROUNDS = 512, 3  # texts spread over the data; the median of so many rounds, after one to warm up


@dataclass(frozen=True)
class Race:
    """Median seconds for the same rows."""

    places: NDArray[np.int64]  # of the rows that ran
    plain: float  # the unmodified encoder with the last exit's head
    seconds: list[float]  # of each policy


def race(model: AdaptiveModel, texts: Sequence[Text], policies: Sequence[Policy], rows: int = ROWS) -> Race:
    """Time every policy and the plain encoder."""
    places = np.unique(np.linspace(0, len(texts) - 1, min(rows, len(texts))).astype(np.int64))
    some = [texts[place] for place in places]
    ways: list[Callable[[Batch], Tensor]] = [partial(plain, model), *(partial(_leave, model, one) for one in policies)]
    spent: list[list[float]] = [[] for _ in ways]
    turns = [(turn, way) for turn in range(ROUNDS + 1) for way in range(len(ways))]
    for turn, way in tqdm(turns, unit=" passes", desc="timing", delay=2, leave=False, disable=None):
        start = time.perf_counter()
        for chunk in chunks(model, some, check_budget(model, None), progress=False):
            with answering(model):
                for batch in chunk.batches():
                    ways[way](batch).cpu()
        if turn:
            spent[way].append(time.perf_counter() - start)
    first, *others = (statistics.median(seconds) for seconds in spent)
    return Race(places, first, others)


def _leave(model: AdaptiveModel, policy: Policy, batch: Batch) -> Tensor:
    return model.answer(batch, policy).logits


def plain(model: AdaptiveModel, batch: Batch) -> Tensor:
    """The family's own forward pass, then the last exit's head: what one would run without offramp."""
    hidden = model.backbone(**batch)[0]
    mask = batch["attention_mask"]
    weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
    head = model.exits.head(model.config.num_layers)
    shared = model.exits["shared"] if model.exits.shares_pooler[-1] else None
    with torch.no_grad():
        return head(head.features(Inside(hidden, None, weights, None), shared))
