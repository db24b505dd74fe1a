"""The guarantee, watched: a few rows go on to full depth after they were answered, and two tests look at what they say.

n rows were audited, k of them answered differently; α is the promised risk, δ how often a false alarm may ever come.

- **Ever broken.** A mixture of all rates above α against α: the chance that it ever reaches 1/δ while the rate is at
  most α is at most δ, however long it runs and however often one looks. Counts of several servers add up.
- **Drift.** The first test goes numb after a long healthy time. This one forgets: G is multiplied by how much likelier
  a row is at 2α than at α, and never starts below 1. While the rate is at most α, a false alarm (G ≥ c) comes after at
  least c audited rows on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import brentq
from scipy.special import betaincc, betaln

__all__ = ["Audit", "interval", "log_evidence"]

SURE = 1e-12  # a rate that is as good as 0 or 1


def log_evidence(audited: int, different: int, risk: float) -> float:
    """The logarithm of the evidence that the rate is above the promised risk."""
    a, b = 1.0, 1 / (2 * risk) - 1
    same = audited - different
    above = betaincc(a + different, b + same, risk)  # of the rates that fit what was seen
    if above == 0:
        return -math.inf
    before = betaln(a, b) + math.log(betaincc(a, b, risk))
    seen = betaln(a + different, b + same) + math.log(above)
    return float(seen - before - different * math.log(risk) - same * math.log1p(-risk))


def interval(audited: int, different: int, level: float = 0.05) -> tuple[float, float]:
    """Where the rate lies, valid at every moment at once: a mixture over all rates, uniformly."""
    if not audited:
        return 0.0, 1.0
    mixed = betaln(1 + different, 1 + audited - different) - betaln(1, 1) - math.log(1 / level)

    def beyond(rate: float) -> float:
        return float(mixed - different * math.log(rate) - (audited - different) * math.log1p(-rate))

    middle = min(max(different / audited, SURE), 1 - SURE)
    low = 0.0 if different == 0 or beyond(SURE) < 0 else float(brentq(beyond, SURE, middle))
    high = 1.0 if different == audited or beyond(1 - SURE) < 0 else float(brentq(beyond, middle, 1 - SURE))
    return low, high


@dataclass(frozen=True)
class Audit:
    """What was seen so far of one model, policy and backend."""

    risk: float  # α, as promised
    level: float = 0.05  # δ of the first test
    patience: float = 10_000.0  # c: audited rows to a false alarm of the second, on average, at least
    audited: int = 0
    different: int = 0
    drift: float = 1.0
    broken: bool = False  # the first test has raised its alarm, ever
    drifted: bool = False

    def after(self, differs: bool) -> Audit:
        """One audited row more."""
        factor = 2.0 if differs else (1 - 2 * self.risk) / (1 - self.risk)
        drift = max(self.drift, 1.0) * factor
        seen = replace(self, audited=self.audited + 1, different=self.different + differs, drift=drift)
        broken = differs and log_evidence(seen.audited, seen.different, self.risk) >= math.log(1 / self.level)
        return replace(seen, broken=self.broken or broken, drifted=self.drifted or drift >= self.patience)

    @property
    def rate(self) -> float | None:
        """The share that differs."""
        return self.different / self.audited if self.audited else None

    @property
    def alarm(self) -> bool:
        """Whether either test has raised its alarm."""
        return self.broken or self.drifted
