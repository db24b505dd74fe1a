"""The auditor: it repeats sampled predictions with the full model and counts those that differ.

It runs on the model's thread: freely while no request waits, and within a share of the time while requests wait.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offramp.answers.answer import Answers, RowOutputs
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import batches_by_tokens
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.policies import Never, Policy
from offramp.serving.audit import Audit, drift_threshold
from offramp.serving.audit_limits import MAX_RISK, AuditLimits
from offramp.serving.audit_queue import AuditQueue, PendingAudit, TimeShare
from offramp.serving.audit_state import AuditCounts, AuditedModel
from offramp.serving.requests import QueuedRequest

__all__ = ["AuditOptions", "Auditor"]

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class AuditOptions:
    """How a server audits its guarantee."""

    fraction: float = 0.0  # of the predictions
    share: float = 0.05  # maximum fraction of the model's time while requests wait
    on_alarm: str = "warn"  # or "never": stop exiting early


class Auditor:
    """The audit of a served model whose guarantee limits the disagreement with the full model."""

    def __init__(self, runner: Runner, policy: Policy, options: AuditOptions, batch_tokens: int):
        config = runner.config
        assert config.calibrated is not None
        self.runner, self.options, self.batch_tokens = runner, options, batch_tokens
        self.limits = AuditLimits.of(config.calibrated, config.answer_type, config.labels)
        limits = [(limit.name, limit.risk) for limit in self.limits.limits]
        self.policy, self.guarantee = policy, config.calibrated["guarantee"]
        self.audit = Audit.of(float(self.guarantee["risk"]), limits)
        if options.fraction and self.audit.risk < MAX_RISK:
            drift_threshold(self.audit.risk)  # computed now, not while requests wait
        self.queue, self.share = AuditQueue(options.fraction), TimeShare(options.share)
        self.failed = 0  # examples whose audit raised an error
        self._lock = threading.Lock()  # of `audit`
        self._random = np.random.default_rng()
        self.seconds = 0.0  # spent on audits
        self.before = AuditCounts(self.audit)  # at the start of the server: from the state file, if there is one
        self.on_change: Callable[[bool], None] = lambda is_alarm: None

    @classmethod
    def of(cls, runner: Runner, policy: Policy, options: AuditOptions, batch_tokens: int) -> Auditor | None:
        """Return the auditor, or None if the policy has no guarantee that can be audited."""
        if policy != runner.config.exit_policy:  # the guarantee does not apply to any other policy
            return None
        guarantee = (runner.config.calibrated or {}).get("guarantee")
        if not guarantee or guarantee["risk_type"] not in ("disagreement", "changed"):
            return None
        return cls(runner, policy, options, batch_tokens)

    @property
    def model(self) -> AuditedModel:
        """What the counts belong to; hashes the weights."""
        limits = [[limit.name, limit.risk] for limit in self.audit.limits]
        return AuditedModel(self.runner.fingerprint, str(self.policy), self.guarantee | {"limits": limits})

    # -- counts ----------------------------------------------------------------------------------

    @property
    def counts(self) -> AuditCounts:
        """The counts of this server, including those of the state file."""
        audit, failed, skipped = self.audit, self.failed, self.queue.skipped
        sampled = self.queue.sampled  # read last: other threads count, and a prediction is sampled first
        before = self.before
        return AuditCounts(audit, before.sampled + sampled, before.skipped + skipped, before.failed + failed)

    def resume(self, counts: AuditCounts) -> None:
        """Continue from the counts of a state file."""
        self.before, self.audit = counts, counts.audit

    def continue_from(self, other: Auditor) -> None:
        """Continue the audit of another engine with the same model, which serves until now."""
        self.before, self.audit, self.failed, self.seconds = other.before, other.audit, other.failed, other.seconds
        self.queue.sampled, self.queue.skipped = other.queue.sampled, other.queue.skipped
        self.on_change = other.on_change

    def add_counts(self, end: AuditCounts, start: AuditCounts) -> None:
        """Add what another engine with the same model has counted between two moments."""
        delta = end.since(start)
        with self._lock:
            self.audit = self.audit.plus(delta.audit)
        self.queue.sampled += delta.sampled
        self.queue.skipped += delta.skipped
        self.failed += delta.failed
        self.on_change(self.audit.alarm)

    @property
    def exits_disabled(self) -> bool:
        """Whether an alarm has disabled early exits, which leaves nothing to audit."""
        return self.options.on_alarm == "never" and self.audit.alarm

    # -- the sample ------------------------------------------------------------------------------

    def draw(self, request: QueuedRequest) -> None:
        """Draw examples of a new request, unless its predictions are outside the guarantee."""
        if self.options.fraction and not request.outside and not self.exits_disabled:
            self.queue.draw(request)

    def add(self, request: QueuedRequest, example: int) -> None:
        """Queue the audit of an example if it was drawn; all of its rows have exited."""
        if not request.drawn[example]:
            return
        if self.exits_disabled:  # it may have run after the alarm, through all layers
            self.queue.cancel(request, example)
            return
        indices = np.flatnonzero(request.rows.group == example)
        rows, outputs = request.rows.take([example]), request.outputs  # copies, which do not keep the whole request
        is_full = bool((outputs.layer[indices] == self.runner.config.num_layers).all())
        example_outputs = RowOutputs(outputs.logits[indices].copy(), outputs.exit[indices], outputs.layer[indices])
        self.queue.add(request, example, PendingAudit(rows, self.runner.decode(example_outputs, rows), is_full))

    # -- the model's thread ----------------------------------------------------------------------

    def run(self, requests_wait: bool) -> None:
        """Audit the oldest examples if there are any; while requests wait, only within the share of the time."""
        if not len(self.queue) or (requests_wait and not self.share.is_available):
            return
        start, audits = time.monotonic(), self.queue.take(self.batch_tokens)
        try:
            self._repeat(audits)
        except Exception as err:  # serving continues
            self.failed += len(audits)
            logger.error("An audit failed: %s", "".join(traceback.format_exception(err)).rstrip())
        seconds = time.monotonic() - start
        self.seconds += seconds
        if requests_wait:
            self.share.spend(seconds)

    def _repeat(self, audits: list[PendingAudit]) -> None:
        """Run the examples through all layers, if they exited early, and count all of them in their order."""
        early = [audit for audit in audits if not audit.is_full]
        repeated = iter(self._run_full_model(EncodedRows.concat([audit.rows for audit in early])) if early else ())
        results = [self._compare(audit.early, audit.early if audit.is_full else next(repeated)) for audit in audits]
        with self._lock:
            before = self.audit
            for result in results:
                self.audit = self.audit.after(*result)
        is_alarm = self.audit.alarm and not before.alarm
        if is_alarm:
            logger.warning("%s", self.audit.describe_alarm())
        self.on_change(is_alarm)

    def _run_full_model(self, rows: EncodedRows) -> list[Answers]:
        order = np.argsort(rows.lengths, kind="stable")
        parts = []
        for start, stop in batches_by_tokens(rows.lengths[order], self.batch_tokens):
            batch = Batch.from_rows(rows, order[start:stop], self.runner.pad_token_id, self.runner.device)
            parts.append(run(self.runner.stepper, batch, Never()).logits.float().cpu().numpy())
        logits = np.concatenate(parts)[np.argsort(order)]
        last = self.runner.stepper.exits[-1]
        outputs = RowOutputs(logits, np.full(len(rows), last.number), np.full(len(rows), last.layer))
        answers = self.runner.decode(outputs, rows)
        return [answers.take(example) for example in range(len(rows.examples))]

    def _compare(self, early: Answers, full: Answers) -> tuple[bool, list[bool | None]]:
        """Return whether a returned prediction differs from the full model's, overall and for every limit."""
        answer_type, tolerance = self.runner.config.answer_type, self.guarantee.get("tolerance")
        compare = answer_type.differ if self.guarantee["risk_type"] == "changed" else answer_type.changes
        (change,) = compare(early.values, full.values, tolerance)
        # a fraction counts with this probability, so that the tests stay valid
        return float(change) > self._random.random(), self.limits.changes(early, full)
