"""Auditing the guarantee: a sample of predictions is repeated with the full model, and sequential tests run on it.

Of n audited rows, k predictions differ; α is the guaranteed risk, δ the probability of ever raising a false alarm.

- **Violation.** An e-process: a mixture of all rates above α against α. While the rate is at most α, the probability
  that it ever reaches 1/δ is at most δ, at any stopping time. Counts of several servers can be added.
- **Violation per class.** The same for every class (or decision) that the guarantee limits, on the rows that it is
  about, with δ divided by their number: the probability that any of them ever raises a false alarm is at most δ.
- **Drift.** The first test reacts slowly after a long time without violations. This one is a CUSUM: the statistic is
  multiplied by the likelihood ratio of 2α to α and reset to 1 when below. Its alarm threshold is computed so that, at
  a rate of exactly α, the average run length to a false alarm is the documented number of audited rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import coo_array
from scipy.sparse.linalg import spsolve
from scipy.special import betaincc, betaln

__all__ = ["RUN_LENGTH", "Audit", "ViolationTest", "confidence_interval", "drift_threshold", "log_evidence"]

EPSILON = 1e-12  # rates are searched between this and 1 minus this
LEVEL = 0.05
RUN_LENGTH = 10_000.0  # audited rows between two false alarms of the drift test, on average
MIN_RISK = 0.005  # for smaller risks, the drift test's threshold is that of this risk with a scaled run length
MAX_DRIFT = 1e12  # of the statistic, which would grow without bound after an alarm
GRID = 0.003  # distance of the grid points of the drift statistic's logarithm, when the threshold is computed


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


def confidence_interval(audited: int, different: int, level: float = LEVEL) -> tuple[float, float]:
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


@lru_cache
def drift_threshold(risk: float, run_length: float = RUN_LENGTH) -> float:
    """Return the threshold of the drift statistic with this average run length at a rate of exactly `risk`."""
    if risk < MIN_RISK:  # few rows differ: only their expected number matters
        return drift_threshold(MIN_RISK, run_length * risk / MIN_RISK)
    low, high = 1.0, 2.0
    while _average_run_length(risk, high) < run_length:
        low, high = high, 2 * high
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _average_run_length(risk, middle) < run_length else (low, middle)
    return high


def _average_run_length(risk: float, threshold: float) -> float:
    """Return the expected number of rows until the drift statistic reaches the threshold, from its start at 1.

    The logarithm of the statistic is a Markov chain on a grid: it falls by one step per equal row, not below 0, and
    rises by log 2 per different row. The expected times solve t = 1 + P t.
    """
    fall = -math.log((1 - 2 * risk) / (1 - risk))
    steps = math.ceil(fall / GRID)
    grid = fall / steps
    rise, count = round(math.log(2) / grid), max(1, math.ceil(math.log(threshold) / grid))
    states = np.arange(count)
    below = np.maximum(states - steps, 0)
    above = states[states + rise < count]
    rows, columns = np.concatenate([states, states, above]), np.concatenate([states, below, above + rise])
    values = np.concatenate([np.ones(count), np.full(count, risk - 1), np.full(len(above), -risk)])
    return float(spsolve(coo_array((values, (rows, columns)), shape=(count, count)).tocsc(), np.ones(count))[0])


@dataclass(frozen=True)
class ViolationTest:
    """The test of one limit: counts, and whether it has raised an alarm, which stays."""

    name: str
    risk: float
    level: float
    audited: int = 0
    different: int = 0
    violated: bool = False

    def after(self, differs: bool) -> ViolationTest:
        """Return the test after one more row that the limit is about."""
        audited, different = self.audited + 1, self.different + differs
        violated = differs and log_evidence(audited, different, self.risk) >= math.log(1 / self.level)
        return replace(self, audited=audited, different=different, violated=self.violated or violated)

    def with_counts(self, parts: Sequence[ViolationTest] | Sequence[Audit]) -> ViolationTest:
        """Return the test of the sum of counts."""
        audited, different = sum(part.audited for part in parts), sum(part.different for part in parts)
        violated = log_evidence(audited, different, self.risk) >= math.log(1 / self.level)
        return replace(self, audited=audited, different=different, violated=violated)


@dataclass(frozen=True)
class Audit:
    """The audit of one model, policy and backend: counts and the state of all tests."""

    risk: float  # α, the guaranteed risk
    level: float = LEVEL  # δ of the violation tests
    run_length: float = RUN_LENGTH  # of the drift test to a false alarm, in audited rows
    audited: int = 0
    different: int = 0
    drift: float = 1.0  # statistic of the drift test
    violated: bool = False  # the violation test has raised an alarm
    drifted: bool = False  # the drift test has raised an alarm
    limits: tuple[ViolationTest, ...] = field(default=())  # one per class or decision that is guaranteed

    @classmethod
    def of(cls, risk: float, limits: Sequence[tuple[str, float]]) -> Audit:
        """Return the audit of a risk, and of limits given by name and risk."""
        level = LEVEL / max(1, len(limits))
        return cls(risk, limits=tuple(ViolationTest(name, limit, level) for name, limit in limits))

    @classmethod
    def of_replicas(cls, audits: Sequence[Audit]) -> Audit:
        """Return the audit of the counts of several servers, added up; drift is one that any of them has detected."""
        first = audits[0]
        overall = ViolationTest("", first.risk, first.level).with_counts(audits)
        limits = zip(*(audit.limits for audit in audits), strict=True)
        return replace(
            first,
            audited=overall.audited,
            different=overall.different,
            drift=max(audit.drift for audit in audits),
            violated=overall.violated,
            drifted=any(audit.drifted for audit in audits),
            limits=tuple(tests[0].with_counts(tests) for tests in limits),
        )

    def plus(self, other: Audit) -> Audit:
        """Return the audit with the counts of another one added; the alarms of both stay."""
        total = Audit.of_replicas([self, other])
        limits = tuple(
            replace(test, violated=test.violated or mine.violated or theirs.violated)
            for test, mine, theirs in zip(total.limits, self.limits, other.limits, strict=True)
        )
        violated = total.violated or self.violated or other.violated
        return replace(total, drift=self.drift, violated=violated, limits=limits)

    def after(self, differs: bool, changes: Sequence[bool | None] = ()) -> Audit:
        """Return the audit after one more row; `changes` has a result per limit, None where it does not count."""
        factor = 2.0 if differs else (1 - 2 * self.risk) / (1 - self.risk)
        drift = min(max(self.drift, 1.0) * factor, MAX_DRIFT)
        overall = ViolationTest("", self.risk, self.level, self.audited, self.different, self.violated).after(differs)
        limits = tuple(
            test if change is None else test.after(change)
            for test, change in zip(self.limits, changes or [None] * len(self.limits), strict=True)
        )
        return replace(
            self,
            audited=overall.audited,
            different=overall.different,
            drift=drift,
            violated=overall.violated,
            drifted=self.drifted or drift >= drift_threshold(self.risk, self.run_length),
            limits=limits,
        )

    @property
    def rate(self) -> float | None:
        """The fraction of audited predictions that differ."""
        return self.different / self.audited if self.audited else None

    @property
    def violated_limits(self) -> tuple[ViolationTest, ...]:
        """The limits whose test has raised an alarm."""
        return tuple(limit for limit in self.limits if limit.violated)

    @property
    def alarm(self) -> bool:
        """Whether any test has raised an alarm."""
        return self.violated or self.drifted or bool(self.violated_limits)

    def describe_alarm(self) -> str:
        """Return which guarantee has raised an alarm, and why."""
        if not self.violated and not self.drifted:
            limit = self.violated_limits[0]
            return (
                f"The guarantee for {limit.name} is violated: {limit.different} of {limit.audited} audited predictions "
                f"changed; it allows {100 * limit.risk:.3g}%."
            )
        return (
            f"The guarantee {'is violated' if self.violated else 'is drifting'}: {self.different} of {self.audited} "
            f"audited predictions differ from the full model's; it allows {100 * self.risk:.3g}%."
        )
