"""Whether exported graphs answer as torch does, exit by exit, on real texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp.core.loop import every_exit
from offramp.core.runner import Runner
from offramp.core.stepper import ExitPoint
from offramp.data.reading import Text
from offramp.runtimes.segments import SegmentStepper

__all__ = ["Checked", "compared", "seconds_of"]

TURNS = 4


@dataclass(frozen=True)
class Checked:
    """Of some texts."""

    rows: int
    layers: tuple[int, ...]
    agreement: tuple[float, ...]  # by exit: the share of torch's answers (a regression's: to a tenth of the spread)
    worst: float  # the greatest difference of a logit at any exit

    def __str__(self) -> str:
        each = ", ".join(f"{layer}: {share:.1%}" for layer, share in zip(self.layers, self.agreement, strict=True))
        return f"same answers as torch by exit on {self.rows:,} texts {each}; logits differ by up to {self.worst:.2g}"

    def told(self) -> dict[str, Any]:
        """As an export keeps it."""
        shares = {str(layer): round(share, 6) for layer, share in zip(self.layers, self.agreement, strict=True)}
        return {"rows": self.rows, "agreement": shares, "worst": float(f"{self.worst:.3g}")}


def compared(runner: Runner, stepper: SegmentStepper, points: Sequence[ExitPoint], texts: Sequence[Text]) -> Checked:
    """Every exit's answers by torch and by the graphs, on the same batches."""
    ours: list[list[Any]] = [[] for _ in points]
    theirs: list[list[Any]] = [[] for _ in points]
    worst = 0.0
    numbers = [point.number for point in points]
    for chunk in runner.chunks(texts, progress=False, quiet=True):
        for batch in chunk.batches():
            with runner.stepper.answering():
                expected = every_exit(runner.stepper, batch)
                found = every_exit(stepper, batch)
            for place, (number, said) in enumerate(zip(numbers, found, strict=True)):
                full = expected[number - 1]
                worst = max(worst, float((full.raw - said.raw).abs().max()))
                theirs[place].append(full.answer_type.choice(full.logits.float()).numpy())
                ours[place].append(said.answer_type.choice(said.logits.float()).numpy())
    answer_type = stepper.answer_type
    agreement = []
    for mine, expected_ in zip(ours, theirs, strict=True):
        answers, wanted = np.concatenate(mine), np.concatenate(expected_)
        agreement.append(float(answer_type.same(answers, wanted).mean()))
    rows = sum(len(one) for one in ours[0])
    return Checked(rows, tuple(point.layer for point in points), tuple(agreement), worst)


def seconds_of(runner: Runner, steppers: Sequence[SegmentStepper], texts: Sequence[Text]) -> list[float]:
    """What each of several exports takes for some texts, in turns; the quickest of its turns."""
    (chunk,) = runner.chunks(texts, progress=False, quiet=True)
    batches = list(chunk.batches())
    spent: list[list[float]] = [[] for _ in steppers]
    with runner.stepper.answering():
        for _ in range(TURNS):
            for place, stepper in enumerate(steppers):
                start = time.perf_counter()
                for batch in batches:
                    stepper.plain(batch)
                spent[place].append(time.perf_counter() - start)
    return [min(each) for each in spent]
