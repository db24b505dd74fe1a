"""Auditing the guarantee: a sample of predictions is repeated with the full model, and two sequential tests run on it.

Of n audited rows, k predictions differ; α is the guaranteed risk, δ the probability of ever raising a false alarm.

- **Violation.** An e-process: a mixture of all rates above α against α. While the rate is at most α, the probability
  that it ever reaches 1/δ is at most δ, at any stopping time. Counts of several servers can be added.
- **Drift.** The first test reacts slowly after a long time without violations. This one is a CUSUM-like e-detector: the
  statistic is multiplied by the likelihood ratio of 2α to α and reset to 1 when below. While the rate is at most α, the
  average run length to a false alarm (statistic ≥ c) is at least c audited rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import brentq
from scipy.special import betaincc, betaln

__all__ = ["Audit", "confidence_interval", "log_evidence"]

EPSILON = 1e-12  # rates are searched between this and 1 minus this


def log_evidence(audited: int, different: int, risk: float) -> float:
    """Return the logarithm of the evidence that the rate is above the guaranteed risk."""
    a, b = 1.0, 1 / (2 * risk) - 1
    same = audited - different
    above = betaincc(a + different, b + same, risk)  # posterior probability of a rate above the risk
    if above == 0:
        return -math.inf
    prior = betaln(a, b) + math.log(betaincc(a, b, risk))
    posterior = betaln(a + different, b + same) + math.log(above)
    return float(posterior - prior - different * math.log(risk) - same * math.log1p(-risk))


def confidence_interval(audited: int, different: int, level: float = 0.05) -> tuple[float, float]:
    """Return the anytime-valid confidence interval of the rate, from a uniform mixture over all rates."""
    if not audited:
        return 0.0, 1.0
    mixture = betaln(1 + different, 1 + audited - different) - betaln(1, 1) - math.log(1 / level)

    def excess(rate: float) -> float:  # positive where the rate is rejected
        return float(mixture - different * math.log(rate) - (audited - different) * math.log1p(-rate))

    estimate = min(max(different / audited, EPSILON), 1 - EPSILON)
    low = 0.0 if different == 0 or excess(EPSILON) < 0 else float(brentq(excess, EPSILON, estimate))
    high = 1.0 if different == audited or excess(1 - EPSILON) < 0 else float(brentq(excess, estimate, 1 - EPSILON))
    return low, high


@dataclass(frozen=True)
class Audit:
    """The audit of one model, policy and backend: counts and the state of both tests."""

    risk: float  # α, the guaranteed risk
    level: float = 0.05  # δ of the violation test
    patience: float = 10_000.0  # c: minimum average run length of the drift test to a false alarm, in audited rows
    audited: int = 0
    different: int = 0
    drift: float = 1.0  # statistic of the drift test
    violated: bool = False  # the violation test has raised an alarm
    drifted: bool = False  # the drift test has raised an alarm

    def after(self, differs: bool) -> Audit:
        """Return the audit after one more audited row."""
        factor = 2.0 if differs else (1 - 2 * self.risk) / (1 - self.risk)
        drift = max(self.drift, 1.0) * factor
        updated = replace(self, audited=self.audited + 1, different=self.different + differs, drift=drift)
        violated = differs and log_evidence(updated.audited, updated.different, self.risk) >= math.log(1 / self.level)
        return replace(updated, violated=self.violated or violated, drifted=self.drifted or drift >= self.patience)

    @property
    def rate(self) -> float | None:
        """The fraction of audited predictions that differ."""
        return self.different / self.audited if self.audited else None

    @property
    def alarm(self) -> bool:
        """Whether either test has raised an alarm."""
        return self.violated or self.drifted
