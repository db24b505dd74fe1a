"""The engine: one thread owns the model and runs the oldest row together with rows of similar length.

It never waits for a batch to fill up. Audits run between batches (`auditor.py`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import RowOutputs
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import ACCELERATOR_BATCH_TOKENS
from offramp.core.loop import exits_within, iter_exited, run
from offramp.core.runner import Runner
from offramp.policies import Never, Policy
from offramp.serving.auditor import AuditOptions, Auditor
from offramp.serving.requests import (
    QueuedRequest,
    QueueFull,
    QueueItem,
    RequestBatch,
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


class Engine:
    """A model that predicts queued requests and audits its guarantee."""

    def __init__(
        self,
        runner: Runner,
        *,
        batch_tokens: int | None = None,
        queue_rows: int = 512,
        audit: AuditOptions | None = None,
        watch: Callable[[str, float], None] = lambda name, value: None,
        policy: str | None = None,
    ):
        self.runner, self.queue_rows = runner, queue_rows
        self.batch_tokens = batch_tokens or (
            CPU_BATCH_TOKENS if runner.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS
        )
        self.policy = runner.config.resolve_policy(policy)
        self.auditor = Auditor.of(runner, self.policy, audit or AuditOptions(), self.batch_tokens)
        self.watch = watch
        self.heartbeat = time.monotonic()
        self.ready = False
        self.draining = self.died = False
        self.accepted = self.answered = self.disconnected = self.failed = 0  # requests
        self.seconds_per_row = 0.01  # moving average
        self._queue: deque[QueueItem] = deque()
        self._reserved = 0  # rows that are still being tokenized
        self._current: list[QueueItem] = []  # being run
        self.layers: Counter[int] = Counter()  # rows by exit layer
        self.recent: deque[float] = deque(maxlen=1000)  # seconds per request
        self._condition = threading.Condition()
        self._stop = self._finish_audits = False
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    # -- called from other threads ---------------------------------------------------------------

    def start(self) -> None:
        """Start the model's thread: it warms up, then serves."""
        self._thread.start()

    def stop(self, wait: float | None = 30.0, finish_audits: bool = False) -> None:
        """Finish all queued requests, and if wanted all pending audits, then stop the thread."""
        with self._condition:
            self.draining = self._stop = True
            self._finish_audits = finish_audits
            self._condition.notify()
        self._thread.join(wait)
        with self._condition:  # only if the time was too short
            for item in self._queue:
                _fail(item.request.future, Unavailable(self._unavailable_reason))

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
        outside = options.policy is not None or options.max_layers is not None
        columns = self.runner.config.answer_type.num_columns(self.runner.config.num_labels)
        empty = RowOutputs(
            np.zeros((len(rows), columns), np.float32), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        )
        with self._condition:
            if self.draining or not self.ready:
                raise Unavailable(self._unavailable_reason)
            request = QueuedRequest(rows, options, Future(), empty, np.zeros(len(rows.examples), bool), outside)
            if self.auditor is not None:
                self.auditor.draw(request)
            self._queue.extend(queue_items(request, (options.policy or self.policy).sees_groups))
            self.accepted += 1
            self._condition.notify()
        request.future.add_done_callback(self._count_outcome)
        return request.future

    def _count_outcome(self, future: Future[RequestResult]) -> None:
        """Count how an accepted request ended; a client that disconnects cancels its future."""
        with self._count_lock:
            if future.cancelled():
                self.disconnected += 1
            elif future.exception() is not None:
                self.failed += 1
            else:
                self.answered += 1

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
                        while self._finish_audits and self.auditor is not None and len(self.auditor.queue):
                            self.auditor.run(requests_wait=False)
                        return
                    if batch.items:
                        self._predict(batch)
                    if self.auditor is not None:
                        self.auditor.run(requests_wait=bool(self._queue))
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

    def _next_batch(self) -> RequestBatch | None:
        """Return the next rows to run, none if no request waits; None when the engine stops."""
        with self._condition:
            if not (self._queue or self._stop or (self.auditor is not None and len(self.auditor.queue))):
                self._condition.wait(IDLE_SECONDS)
            window: list[QueueItem] = []
            while self._queue and len(window) < WINDOW:
                item = self._queue.popleft()
                if not item.request.future.done():  # otherwise its client has disconnected, or it has failed
                    window.append(item)
            if not window:
                return None if self._stop else RequestBatch(())
            self._current = window  # so that `_work` fails these requests if select_batch raises
            batch = select_batch(window, self.batch_tokens, time.monotonic())
            self._current = list(batch.items)
            selected = set(map(id, batch.items))
            self._queue.extendleft(item for item in reversed(window) if id(item) not in selected)
        return batch

    def _predict(self, request_batch: RequestBatch) -> None:
        start, max_layers = time.monotonic(), request_batch.max_layers
        policy = request_batch.policy or self._active_policy()
        if request_batch.is_late:
            max_layers = self.runner.stepper.exits[0].layer
            self._mark_late(request_batch)
        rows = [(item.request, row) for item in request_batch.items for row in item.rows]
        if not policy.sees_groups:
            rows.sort(key=lambda row: int(row[0].rows.lengths[row[1]]))
        try:
            batch = self._batch([(request.rows, row) for request, row in rows], _groups(rows))
            for exited in iter_exited(self.runner.stepper, batch, policy, max_layers):
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
        seconds = time.monotonic() - start
        self.seconds_per_row = 0.9 * self.seconds_per_row + 0.1 * seconds / len(rows)
        self.watch("rows", len(rows))
        self.watch("batch_seconds", seconds)
        if self.auditor is not None:
            self.auditor.share.earn(seconds)

    def _mark_late(self, batch: RequestBatch) -> None:
        """Mark requests whose rows are forced to exit early: outside the guarantee; these rows are not audited."""
        for item in batch.items:
            item.request.outside = True
            if self.auditor is not None:
                for row in item.rows:
                    self.auditor.queue.cancel(item.request, int(item.request.rows.group[row]))

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
        if is_complete and self.auditor is not None:
            self.auditor.add(request, example)
        if not request.pending and not request.future.done():
            try:
                answers = self.runner.decode(outputs, request.rows)
            except Exception as err:  # only this request fails
                logger.error("Decoding a request failed: %s", "".join(traceback.format_exception(err)).rstrip())
                _fail(request.future, err)
                return
            result = RequestResult(answers, int(request.rows.lengths.sum()), request.outside)
            if request.future.set_running_or_notify_cancel():
                request.future.set_result(result)
            self.recent.append(time.monotonic() - request.arrived)
            self.watch("request_seconds", self.recent[-1])

    def _active_policy(self) -> Policy:
        """Return the engine's policy, or `Never` once an alarm has disabled early exits."""
        return Never() if self.auditor is not None and self.auditor.exits_disabled else self.policy

    def _batch(self, parts: Sequence[tuple[EncodedRows, int]], group: NDArray[np.int64] | None = None) -> Batch:
        return Batch.from_parts(parts, self.runner.pad_token_id, self.runner.device, group)


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
