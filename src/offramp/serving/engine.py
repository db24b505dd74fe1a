"""The engine: one thread owns the model and runs the oldest row together with rows of similar length.

It never waits for a batch to fill up. Rows drawn for the audit run through all layers while the queue is empty.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answers, RowOutputs
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import ACCELERATOR_BATCH_TOKENS, batches_by_tokens
from offramp.core.loop import exits_within, iter_exited, run
from offramp.core.runner import Runner
from offramp.policies import Never, Policy
from offramp.serving.audit import Audit
from offramp.serving.audit_limits import AuditLimits
from offramp.serving.requests import (
    QueuedRequest,
    QueueFull,
    QueueItem,
    RequestOptions,
    RequestResult,
    TextTooLong,
    Unavailable,
    queue_items,
    select_batch,
)

__all__ = ["Engine"]

logger = logging.getLogger("offramp")

IDLE_SECONDS = 0.2  # between two heartbeats of an idle thread
CPU_BATCH_TOKENS = 256  # padded tokens per batch on a CPU; with similar lengths, larger batches gain nothing
WINDOW = 128  # oldest queue items, from which a batch is selected
MAX_PENDING_AUDITS = 256  # while more examples wait for their audit, none are drawn


@dataclass(frozen=True)
class PendingAudit:
    """An example drawn for the audit; these are queued in the order in which examples were predicted."""

    rows: EncodedRows  # of this example
    early: Answers  # the prediction that was returned
    is_full: bool  # all of its rows ran through all layers


class Engine:
    """A model that predicts queued requests and audits its guarantee."""

    def __init__(
        self,
        runner: Runner,
        *,
        batch_tokens: int | None = None,
        queue_rows: int = 512,
        audit: float = 0.0,
        on_alarm: str = "warn",
        watch: Callable[[str, float], None] = lambda name, value: None,
        policy: str | None = None,
    ):
        self.runner, self.queue_rows = runner, queue_rows
        self.batch_tokens = batch_tokens or (
            CPU_BATCH_TOKENS if runner.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS
        )
        self.policy = runner.config.resolve_policy(policy)
        is_calibrated = self.policy == runner.config.exit_policy  # the guarantee does not apply to any other policy
        guarantee = is_calibrated and runner.config.calibrated and runner.config.calibrated.get("guarantee")
        self.audit: Audit | None = None
        self.limits: AuditLimits | None = None
        if guarantee and guarantee["risk_type"] == "disagreement":
            config = runner.config
            self.limits = AuditLimits.of(config.calibrated, config.answer_type, config.labels)
            limits = [(limit.name, limit.risk) for limit in self.limits.limits]
            self.audit = Audit.of(float(guarantee["risk"]), limits)
        self.audit_rate = audit if self.audit is not None else 0.0
        self.on_alarm, self.watch = on_alarm, watch
        self.heartbeat = time.monotonic()
        self.ready = False
        self.draining = self.died = False
        self.accepted = self.answered = 0  # requests
        self.seconds_per_row = 0.01  # moving average
        self._queue: deque[QueueItem] = deque()
        self._reserved = 0  # rows that are still being tokenized
        self._current: list[QueueItem] = []  # being run
        self._audits: deque[PendingAudit] = deque()
        self.skipped = 0  # examples drawn while too many waited for their audit
        self.layers: Counter[int] = Counter()  # rows by exit layer
        self.recent: deque[float] = deque(maxlen=1000)  # seconds per request
        self._condition = threading.Condition()
        self._stop = False
        self._random = random.Random()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    # -- called from other threads ---------------------------------------------------------------

    def start(self) -> None:
        """Start the model's thread: it warms up, then serves."""
        self._thread.start()

    def stop(self, wait: float = 30.0) -> None:
        """Finish all queued requests, then stop the thread."""
        with self._condition:
            self.draining = self._stop = True
            self._condition.notify()
        self._thread.join(wait)

    @property
    def _unavailable_reason(self) -> str:
        if self.draining:
            return "The server is shutting down."
        return "The model's thread has stopped; see the server log." if self.died else "The model is still loading."

    @property
    def is_full(self) -> bool:
        """Whether the queue cannot take a single row more; does not block."""
        return self.depth + self._reserved >= self.queue_rows

    @contextmanager
    def reserve(self, rows: int) -> Iterator[None]:
        """Reserve queue slots for texts that are still being tokenized; call it on the event loop only."""
        waiting = self.depth + self._reserved
        if waiting and waiting + rows > self.queue_rows:
            raise self.queue_full_error
        self._reserved += rows
        try:
            yield
        finally:
            self._reserved -= rows

    @property
    def queue_full_error(self) -> QueueFull:
        """The error for a full queue; clients should retry once the queued rows are done."""
        return QueueFull(max(1.0, self.seconds_per_row * self.depth))

    @property
    def depth(self) -> int:
        """The number of queued rows."""
        return len(self._queue)

    def encode(self, examples: Sequence[Any], truncate: bool) -> EncodedRows:
        """Tokenize examples; can run in any thread."""
        rows = self.runner.encoder()(list(examples), 0)
        if rows.truncated and not truncate:
            count = f"{rows.truncated} text{'s are' if rows.truncated > 1 else ' is'}"
            raise TextTooLong(f'{count} longer than {self.runner.limit} tokens; shorten, or send "truncate": true.')
        return rows

    def submit(self, rows: EncodedRows, options: RequestOptions) -> Future[RequestResult]:
        """Add a request to the queue."""
        if options.policy is not None:
            options.policy.check(self.runner.config.model_spec)
        if options.max_layers is not None:
            exits_within(self.runner.stepper.exits, options.max_layers)
        num_examples, rate = len(rows.examples), self.audit_rate
        drawn = np.array([rate > 0 and self._random.random() < rate for _ in range(num_examples)], dtype=bool)
        outside = options.policy is not None or options.max_layers is not None
        columns = self.runner.config.answer_type.num_columns(self.runner.config.num_labels)
        empty = RowOutputs(
            np.zeros((len(rows), columns), np.float32), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        )
        with self._condition:
            if self.draining or not self.ready:
                raise Unavailable(self._unavailable_reason)
            if outside or self._exits_disabled:
                drawn[:] = False
            if len(self._audits) >= MAX_PENDING_AUDITS:  # independent of the texts, so the sample stays unbiased
                self.skipped += int(drawn.sum())
                drawn[:] = False
            request = QueuedRequest(rows, options, Future(), empty, drawn, outside)
            self._queue.extend(queue_items(request, (options.policy or self.policy).sees_groups))
            self.accepted += 1
            self._condition.notify()
        return request.future

    # -- the model's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        _lower_priority()
        try:
            with self.runner.stepper.inference_mode():
                self._warm_up()
                self.ready = True
                while True:
                    batch = self._next_batch()
                    self.heartbeat = time.monotonic()
                    if batch is None:
                        return
                    if batch[0]:
                        self._predict(*batch)
                    elif self._audits:
                        self._audit()
        except Exception as err:  # fail all queued requests and accept no more
            logger.error("The model's thread stopped: %s", "".join(traceback.format_exception(err)).rstrip())
            with self._condition:
                self.ready, self.died = False, True
                for item in (*self._current, *self._queue):
                    _fail(item.request.future, err)
                self._queue.clear()

    def _warm_up(self) -> None:
        config = self.runner.config
        rows = self.encode([config.answer_type.warmup_example(config.reads_pairs)] * 2, truncate=True)
        for policy in (Never(), self.policy):
            run(self.runner.stepper, self._batch([(rows, row) for row in range(len(rows))]), policy)

    def _next_batch(self) -> tuple[list[QueueItem], bool] | None:
        """Return items with the same policy and budget, and whether they are late; None when the engine stops."""
        with self._condition:
            if not (self._queue or self._audits or self._stop):
                self._condition.wait(IDLE_SECONDS)
            window: list[QueueItem] = []
            while self._queue and len(window) < WINDOW:
                item = self._queue.popleft()
                if not item.request.future.done():  # otherwise its client has disconnected, or it has failed
                    window.append(item)
            if not window:
                return None if self._stop else ([], False)
            self._current = window  # so that `_work` fails these requests if select_batch raises
            now = time.monotonic()
            batch = self._current = select_batch(window, self.batch_tokens, now)
            selected = set(map(id, batch))
            self._queue.extendleft(item for item in reversed(window) if id(item) not in selected)
        return batch, batch[0].request.options.is_late(now)

    def _predict(self, items: list[QueueItem], is_late: bool) -> None:
        start, options = time.monotonic(), items[0].request.options
        policy, budget = options.policy or self._active_policy(), options.max_layers
        if is_late:
            budget = self.runner.stepper.exits[0].layer
            for item in items:  # forced to exit early: outside the guarantee, and not audited
                item.request.outside = True
                item.request.drawn[:] = False
        rows = [(item.request, row) for item in items for row in item.rows]
        if not policy.sees_groups:
            rows.sort(key=lambda row: int(row[0].rows.lengths[row[1]]))
        try:
            batch = self._batch([(request.rows, row) for request, row in rows], _groups(rows))
            for exited in iter_exited(self.runner.stepper, batch, policy, budget):
                logits = exited.output.logits.float().cpu().numpy()
                indices = range(len(logits)) if exited.rows is None else exited.rows.tolist()
                for index, row_logits in zip(indices, logits, strict=True):  # early exits are returned immediately
                    request, row = rows[index]
                    self._resolve(request, row, row_logits, exited.output.exit, exited.output.layer)
        except Exception as err:  # only this batch fails
            logger.error("%d rows failed: %s", len(rows), "".join(traceback.format_exception(err)).rstrip())
            for request, _ in rows:
                _fail(request.future, err)
            return
        self.seconds_per_row = 0.9 * self.seconds_per_row + 0.1 * (time.monotonic() - start) / len(rows)
        self.watch("rows", len(rows))
        self.watch("batch_seconds", time.monotonic() - start)

    def _resolve(
        self, request: QueuedRequest, row: int, logits: NDArray[np.float32], exit_number: int, layer: int
    ) -> None:
        """Store a row's output; once all rows of a request have exited, set its result."""
        outputs, example = request.outputs, int(request.rows.group[row])
        outputs.logits[row], outputs.exit[row], outputs.layer[row] = logits, exit_number, layer
        request.pending -= 1
        request.pending_per_example[example] -= 1
        self.layers[layer] += 1
        self.watch("exit_layer", layer)
        is_complete = not request.pending_per_example[example]
        if is_complete and request.drawn[example] and not (self._exits_disabled or request.future.done()):
            self._audits.append(self._pending_audit(request, example))
        if not request.pending and not request.future.done():
            try:
                answers = self.runner.decode(outputs, request.rows)
            except Exception as err:  # only this request fails
                logger.error("Decoding a request failed: %s", "".join(traceback.format_exception(err)).rstrip())
                _fail(request.future, err)
                return
            result = RequestResult(answers, int(request.rows.lengths.sum()), request.outside or self._exits_disabled)
            if request.future.set_running_or_notify_cancel():
                request.future.set_result(result)
                self.answered += 1
            self.recent.append(time.monotonic() - request.arrived)
            self.watch("request_seconds", self.recent[-1])

    def _pending_audit(self, request: QueuedRequest, example: int) -> PendingAudit:
        """Copy an example for its audit, so that it does not keep the whole request in memory."""
        indices = np.flatnonzero(request.rows.group == example)
        rows, outputs = request.rows.take([example]), request.outputs
        is_full = bool((outputs.layer[indices] == self.runner.config.num_layers).all())
        example_outputs = RowOutputs(outputs.logits[indices].copy(), outputs.exit[indices], outputs.layer[indices])
        return PendingAudit(rows, self.runner.decode(example_outputs, rows), is_full)

    def _audit(self) -> None:
        try:
            self._run_audits()
        except Exception as err:  # these examples are not counted; serving continues
            logger.error("An audit failed: %s", "".join(traceback.format_exception(err)).rstrip())

    def _run_audits(self) -> None:
        """Audit up to 8 drawn examples, in order; only those that exited early need the full model."""
        audits = [self._audits.popleft() for _ in range(min(8, len(self._audits)))]
        early = [audit for audit in audits if not audit.is_full]
        full = self._run_full_model(EncodedRows.concat([audit.rows for audit in early])) if early else None
        position = 0
        for audit in audits:  # one by one: the tests need the order in which examples were drawn
            expected = audit.early
            if full is not None and not audit.is_full:
                expected = full.take(position)
                position += 1
            self._count_audit(audit.early, expected)

    def _run_full_model(self, rows: EncodedRows) -> Answers:
        order = np.argsort(rows.lengths, kind="stable")
        parts = []
        for start, stop in batches_by_tokens(rows.lengths[order], self.batch_tokens):
            batch = Batch.from_rows(rows, order[start:stop], self.runner.pad_token_id, self.runner.device)
            parts.append(run(self.runner.stepper, batch, Never()).logits.float().cpu().numpy())
        logits = np.concatenate(parts)[np.argsort(order)]
        last = self.runner.stepper.exits[-1]
        outputs = RowOutputs(logits, np.full(len(rows), last.number), np.full(len(rows), last.layer))
        return self.runner.decode(outputs, rows)

    def _count_audit(self, early: Answers, full: Answers) -> None:
        """Count whether a returned prediction differs from the full model's, overall and for every limit."""
        if self.audit is None:
            return
        tolerance = (self.runner.config.calibrated or {}).get("guarantee", {}).get("tolerance")
        (differs,) = self.runner.config.answer_type.differ(early.values, full.values, tolerance)
        changes = [] if self.limits is None else self.limits.changes(early, full)
        before, self.audit = self.audit, self.audit.after(bool(differs), changes)
        if self.audit.alarm and not before.alarm:
            logger.warning("%s", _describe_alarm(self.audit))

    @property
    def _exits_disabled(self) -> bool:
        """Whether an alarm has disabled early exits, which leaves nothing to audit."""
        return self.on_alarm == "never" and self.audit is not None and self.audit.alarm

    def _active_policy(self) -> Policy:
        """Return the engine's policy, or `Never` once an alarm has disabled early exits."""
        return Never() if self._exits_disabled else self.policy

    def _batch(self, parts: Sequence[tuple[EncodedRows, int]], group: NDArray[np.int64] | None = None) -> Batch:
        return Batch.from_parts(parts, self.runner.pad_token_id, self.runner.device, group)


def _describe_alarm(audit: Audit) -> str:
    """Return which guarantee has raised an alarm, and why."""
    if not audit.violated and not audit.drifted:
        limit = audit.violated_limits[0]
        return (
            f"The guarantee for {limit.name} is violated: {limit.different} of {limit.audited} audited predictions "
            f"changed; it allows {100 * limit.risk:.3g}%."
        )
    return (
        f"The guarantee {'is violated' if audit.violated else 'is drifting'}: {audit.different} of {audit.audited} "
        f"audited predictions differ from the full model's; it allows {100 * audit.risk:.3g}%."
    )


def _groups(rows: Sequence[tuple[QueuedRequest, int]]) -> NDArray[np.int64]:
    """Return a group number per row; rows of the same example of the same request share one."""
    numbers: dict[tuple[int, int], int] = {}
    keys = [(id(request), int(request.rows.group[row])) for request, row in rows]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _lower_priority() -> None:
    """Give the event loop priority over this thread: it never needs a core for long."""
    if sys.platform == "linux":  # other systems have no priorities per thread
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _fail(future: Future[Any], err: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(err)
