"""`offramp.audit`: add up the audits of several servers and test the sum."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue
from offramp.extras import require

if TYPE_CHECKING:
    from offramp.serving.audit import Audit
    from offramp.serving.audit_state import AuditCounts

__all__ = ["AuditResult", "audit"]


@dataclass(frozen=True)
class AuditResult:
    """Result of `offramp.audit`; `print(result)` shows it.

    Attributes:
        counts: the added counts, and the violation tests of them.
        replicas: the counts of every state file, by its name.
    """

    counts: AuditCounts
    replicas: dict[str, AuditCounts]

    @property
    def alarm(self) -> bool:
        """Whether a test of the added counts raises an alarm, or a server has raised one."""
        return self.counts.audit.alarm or any(counts.audit.alarm for counts in self.replicas.values())

    @property
    def audited(self) -> int:
        """The number of audited predictions."""
        return self.counts.audit.audited

    @property
    def different(self) -> int:
        """The number of audited predictions that differ from the full model's."""
        return self.counts.audit.different

    @property
    def rate(self) -> float | None:
        """The fraction of audited predictions that differ."""
        return self.counts.audit.rate

    @property
    def interval(self) -> tuple[float, float]:
        """The anytime-valid 95 % confidence interval of the rate of audited predictions that differ."""
        from offramp.serving.audit import confidence_interval

        return confidence_interval(self.audited, self.different)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "alarm": self.alarm,
            **_to_dict(self.counts),
            "interval": list(self.interval),
            "replicas": [{"state": name} | _to_dict(counts) for name, counts in self.replicas.items()],
        }

    def __str__(self) -> str:
        audit, (low, high) = self.counts.audit, self.interval
        files = f"{len(self.replicas)} state file{'s' if len(self.replicas) > 1 else ''}"
        interval = f"95 % confidence interval {_percent(low)} to {_percent(high)}"
        allowed = f"the guarantee allows {_percent(audit.risk)}"
        lines = [f"Audited: {audit.audited:,} of {self.counts.sampled:,} sampled predictions ({files})"]
        lines += [f"Different from the full model: {audit.different:,} ({_percent(audit.rate)}; {interval}; {allowed})"]
        lines += [
            f"  {limit.name}: {limit.different:,} of {limit.audited:,} changed (the guarantee allows "
            f"{_percent(limit.risk)}){', VIOLATED' if limit.violated else ''}"
            for limit in audit.limits
        ]
        alarms = ["The guarantee is violated."] if audit.violated else []
        alarms += [f"The guarantee for {limit.name} is violated." for limit in audit.violated_limits]
        alarms += [f"{name}: {text}" for name, counts in self.replicas.items() for text in _alarms(counts.audit)]
        lines += [f"Alarm: {text}" for text in alarms] or ["No alarm."]
        return "\n".join(lines)


def audit(states: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> AuditResult:
    """Add up the audits of several servers of the same model, and test whether the guarantee holds for all of them.

    The violation tests use the added counts, with the false alarm probability of a single server. Drift is tested by
    every server on its own predictions.

    Args:
        states: the state files of the servers (`offramp.serve(state=…)`); the servers may be running.

    Returns:
        The added counts, the rate with its confidence interval, and the alarms.

    Examples:
        >>> result = offramp.audit(["replica-1.json", "replica-2.json"])
        >>> result.alarm
        False
    """
    require("serve", "Testing audits")
    from offramp.serving.audit import Audit
    from offramp.serving.audit_state import AuditCounts, read_state

    paths = [states] if isinstance(states, str | os.PathLike) else list(states)
    if not paths:
        raise BadValue("`states` is empty; pass at least one state file.")
    files = {str(path): Path(path) for path in paths}
    if len({file.resolve() for file in files.values()}) < len(paths):
        raise BadValue("A state file is listed twice, so its predictions would be counted twice.")
    read = {name: read_state(file) for name, file in files.items()}
    first_name, first = next(iter(read.items()))
    for name, state in read.items():
        if difference := state.model.difference(first.model):
            raise BadValue(f"{name} and {first_name} cannot be added: their {difference} differs.")
    replicas = {name: state.counts for name, state in read.items()}
    sums = [sum(getattr(counts, name) for counts in replicas.values()) for name in ("sampled", "skipped", "failed")]
    return AuditResult(AuditCounts(Audit.of_replicas([counts.audit for counts in replicas.values()]), *sums), replicas)


def _to_dict(counts: AuditCounts) -> dict[str, Any]:
    audit = counts.audit
    return {
        "sampled": counts.sampled,
        "audited": audit.audited,
        "skipped": counts.skipped,
        "failed": counts.failed,
        "different": audit.different,
        "rate": audit.rate,
        "guaranteed_risk": audit.risk,
        "violated": audit.violated,
        "drifting": audit.drifted,
        "limits": [asdict(limit) for limit in audit.limits],
    }


def _alarms(audit: Audit) -> list[str]:
    """Return the alarms that one server has raised."""
    alarms = ["this server has detected drift."] if audit.drifted else []
    alarms += ["this server's test has found a violation."] if audit.violated else []
    return alarms + [f"this server's test has found a violation for {limit.name}." for limit in audit.violated_limits]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g} %"
