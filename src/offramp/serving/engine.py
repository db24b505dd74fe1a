"""One thread owns the model: it takes the oldest row and those like it, as many tokens as pay, and answers them.

Nobody waits for a batch to fill. Rows that were drawn for the audit go on to full depth when nothing else waits.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.answers.answer import Answers, RowOutputs
from offramp.core.batch import Batch, EncodedRows
from offramp.core.chunks import BATCH_TOKENS_ELSEWHERE, batches_by_tokens
from offramp.core.loop import exiting, run, within_budget
from offramp.core.runner import Runner
from offramp.policies import Never, Policy
from offramp.serving.audit import Audit
from offramp.serving.requests import (
    Full,
    QueuedRows,
    Request,
    RequestOptions,
    Response,
    Stopped,
    TooLong,
    alike,
    queued,
)

__all__ = ["Engine"]

logger = logging.getLogger("offramp")

IDLE = 0.2  # seconds between two beats of a thread that has nothing to do
BATCH_TOKENS = 256  # padded tokens at once on a CPU: with like lengths together more gain nothing
WINDOW = 128  # of the oldest rows, among which those of one length are found
AUDITED = 256  # rows that may wait for their audit; while there are more, none are drawn


@dataclass(frozen=True)
class Audited:
    """An example that was drawn, in the order in which examples were answered."""

    rows: EncodedRows  # of one example
    early: NDArray[Any] | None  # the answer that was given; None: all of its rows ran to the end anyway


class Engine:
    """A model that answers requests, and watches its guarantee."""

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
        self.batch_tokens = batch_tokens or (BATCH_TOKENS if runner.device.type == "cpu" else BATCH_TOKENS_ELSEWHERE)
        self.policy = runner.config.choose(policy)
        own = self.policy == runner.config.exit_policy  # what was promised of another one does not hold
        promised = own and runner.config.calibrated and runner.config.calibrated.get("guarantee")
        self.audit = Audit(float(promised["risk"])) if promised and promised["risk_type"] == "disagreement" else None
        self.share = audit if self.audit is not None else 0.0
        self.on_alarm, self.watch = on_alarm, watch
        self.beat = time.monotonic()
        self.ready = False
        self.draining = self.died = False
        self.accepted = self.answered = 0  # requests
        self.pace = 0.01  # seconds of a row, measured as it goes
        self._waiting: deque[QueuedRows] = deque()
        self._coming = 0  # rows that are not tokenised yet
        self._hand: list[QueuedRows] = []  # what is being answered
        self._audits: deque[Audited] = deque()
        self.skipped = 0  # rows that were drawn while too many waited for their audit
        self.layers: Counter[int] = Counter()  # rows by the layer that they left at
        self.recent: deque[float] = deque(maxlen=1000)  # seconds of requests
        self._news = threading.Condition()
        self._stop = False
        self._coin = random.Random()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    # -- from outside ----------------------------------------------------------------------------

    def start(self) -> None:
        """Warm up in the model's thread, then serve."""
        self._thread.start()

    def stop(self, wait: float = 30.0) -> None:
        """Answer what waits, then end."""
        with self._news:
            self.draining = self._stop = True
            self._news.notify()
        self._thread.join(wait)

    @property
    def _why_not(self) -> str:
        if self.draining:
            return "The server drains."
        return (
            "The model's thread has ended; the server's log tells why." if self.died else "The model is being loaded."
        )

    @property
    def is_full(self) -> bool:
        """Whether not even one more text is taken; asked without waiting."""
        return self.depth + self._coming >= self.queue_rows

    @contextmanager
    def place(self, rows: int) -> Iterator[None]:
        """Room for texts that are still being tokenised; asked for in the server's loop alone."""
        waiting = self.depth + self._coming
        if waiting and waiting + rows > self.queue_rows:
            raise self.refusal
        self._coming += rows
        try:
            yield
        finally:
            self._coming -= rows

    @property
    def refusal(self) -> Full:
        """When to come again: once what waits is done."""
        return Full(max(1.0, self.pace * self.depth))

    @property
    def depth(self) -> int:
        """Rows that wait."""
        return len(self._waiting)

    def encoded(self, examples: Sequence[Any], truncate: bool) -> EncodedRows:
        """Examples as rows of tokens; may run in any thread."""
        rows = self.runner.encoder()(list(examples), 0)
        if rows.truncated and not truncate:
            raise TooLong(
                f"{rows.truncated} of the texts are longer than {self.runner.limit} tokens; send truncate: true."
            )
        return rows

    def submit(self, rows: EncodedRows, options: RequestOptions) -> Future[Response]:
        """Put a request into the queue."""
        if options.policy is not None:
            options.policy.check(self.runner.config.model_spec)
        if options.max_layers is not None:
            within_budget(self.runner.stepper.exits, options.max_layers)
        examples = len(rows.examples)
        drawn = np.array([self.share > 0 and self._coin.random() < self.share for _ in range(examples)], dtype=bool)
        outside = options.policy is not None or options.max_layers is not None
        columns = self.runner.config.answer_type.columns(self.runner.config.num_labels)
        empty = RowOutputs(
            np.zeros((len(rows), columns), np.float32), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        )
        with self._news:
            if self.draining or not self.ready:
                raise Stopped(self._why_not)
            if outside or self._is_stopped:
                drawn[:] = False
            if len(self._audits) >= AUDITED:  # it is behind, whatever the texts are
                self.skipped += int(drawn.sum())
                drawn[:] = False
            request = Request(rows, options, Future(), empty, drawn, outside)
            self._waiting.extend(queued(request, (options.policy or self.policy).sees_groups))
            self.accepted += 1
            self._news.notify()
        return request.future

    # -- the model's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        _step_back()
        try:
            with self.runner.stepper.answering():
                self._warm_up()
                self.ready = True
                while True:
                    batch = self._next()
                    self.beat = time.monotonic()
                    if batch is None:
                        return
                    if batch[0]:
                        self._answer(*batch)
                    elif self._audits:
                        self._audit()
        except Exception as err:  # nobody is left to answer: whoever waits is told, and nobody else is let in
            logger.error("The model's thread ended: %s", "".join(traceback.format_exception(err)).rstrip())
            with self._news:
                self.ready, self.died = False, True
                for row in (*self._hand, *self._waiting):
                    _fail(row.request.future, err)
                self._waiting.clear()

    def _warm_up(self) -> None:
        config = self.runner.config
        rows = self.encoded([config.answer_type.example_for(config.reads_pairs)] * 2, truncate=True)
        for policy in (Never(), self.policy):
            run(self.runner.stepper, self._batch([(rows, row) for row in range(len(rows))]), policy)

    def _next(self) -> tuple[list[QueuedRows], bool] | None:
        """Rows that are run together, and whether they are late: one policy and budget; None: it is over."""
        with self._news:
            if not (self._waiting or self._audits or self._stop):
                self._news.wait(IDLE)
            window: list[QueuedRows] = []
            while self._waiting and len(window) < WINDOW:
                row = self._waiting.popleft()
                if not row.request.future.done():  # else its client has disconnected, or it has failed
                    window.append(row)
            if not window:
                return None if self._stop else ([], False)
            self._hand = window  # whoever waits here is told, should anything go wrong
            now = time.monotonic()
            taken = self._hand = alike(window, self.batch_tokens, now)
            chosen = set(map(id, taken))
            self._waiting.extendleft(row for row in reversed(window) if id(row) not in chosen)
        return taken, taken[0].request.options.is_late(now)

    def _answer(self, queue: list[QueuedRows], is_late: bool) -> None:
        began, options = time.monotonic(), queue[0].request.options
        policy, budget = options.policy or self._own_policy(), options.max_layers
        if is_late:
            budget = self.runner.stepper.exits[0].layer
            for one in queue:  # what is forced out early is outside the guarantee, and its audit says nothing of it
                one.request.outside = True
                one.request.drawn[:] = False
        rows = [(one.request, row) for one in queue for row in one.rows]
        if not policy.sees_groups:
            rows.sort(key=lambda row: int(row[0].rows.lengths[row[1]]))
        try:
            batch = self._batch([(request.rows, row) for request, row in rows], _groups(rows))
            for exited in exiting(self.runner.stepper, batch, policy, budget):
                logits = exited.output.logits.float().cpu().numpy()
                places = range(len(logits)) if exited.rows is None else exited.rows.tolist()
                for place, values in zip(places, logits, strict=True):  # what exits early is answered now
                    request, row = rows[place]
                    self._resolve(request, row, values, exited.output.exit, exited.output.layer)
        except Exception as err:  # of this batch: the next one may do
            logger.error("%d rows failed: %s", len(rows), "".join(traceback.format_exception(err)).rstrip())
            for request, _ in rows:
                _fail(request.future, err)
            return
        self.pace = 0.9 * self.pace + 0.1 * (time.monotonic() - began) / len(rows)
        self.watch("rows", len(rows))
        self.watch("batch_seconds", time.monotonic() - began)

    def _resolve(self, request: Request, row: int, logits: NDArray[np.float32], exit_number: int, layer: int) -> None:
        outputs, example = request.outputs, int(request.rows.group[row])
        outputs.logits[row], outputs.exit[row], outputs.layer[row] = logits, exit_number, layer
        request.left -= 1
        request.left_of[example] -= 1
        self.layers[layer] += 1
        self.watch("exit_layer", layer)
        if not request.left_of[example] and request.drawn[example] and not (self._is_stopped or request.future.done()):
            self._audits.append(self._drawn(request, example))
        if not request.left and not request.future.done():
            try:
                answers = self.runner.decode(outputs, request.rows)
            except Exception as err:  # of this request alone
                logger.error("A reply failed: %s", "".join(traceback.format_exception(err)).rstrip())
                _fail(request.future, err)
                return
            response = Response(answers, int(request.rows.lengths.sum()), request.outside or self._is_stopped)
            if request.future.set_running_or_notify_cancel():
                request.future.set_result(response)
                self.answered += 1
            self.recent.append(time.monotonic() - request.arrived)
            self.watch("request_seconds", self.recent[-1])

    def _drawn(self, request: Request, example: int) -> Audited:
        """An example that was answered, to be looked at again; alone, so that it does not keep its request."""
        places = np.flatnonzero(request.rows.group == example)
        rows, outputs = request.rows.take([example]), request.outputs
        if (outputs.layer[places] == self.runner.config.num_layers).all():
            return Audited(rows, None)
        own = RowOutputs(outputs.logits[places].copy(), outputs.exit[places], outputs.layer[places])
        return Audited(rows, self.runner.decode(own, rows).values)

    def _audit(self) -> None:
        try:
            self._look_again()
        except Exception as err:  # those few are not counted; answering goes on
            logger.error("An audit failed: %s", "".join(traceback.format_exception(err)).rstrip())

    def _look_again(self) -> None:
        """Some of the examples that were drawn, the early ones at full depth; counted in the order of their answers."""
        some = [self._audits.popleft() for _ in range(min(8, len(self._audits)))]
        early = [one for one in some if one.early is not None]
        differ = iter(self._differ(early) if early else ())
        for one in some:
            self._seen(one.early is not None and bool(next(differ)))

    def _differ(self, early: Sequence[Audited]) -> Iterable[bool]:
        full = self._at_full_depth(EncodedRows.joined([one.rows for one in early]))
        tolerance = (self.runner.config.calibrated or {}).get("guarantee", {}).get("tolerance")
        given = np.concatenate([one.early for one in early if one.early is not None])
        return self.runner.config.answer_type.differ(given, full.values, tolerance)

    def _at_full_depth(self, rows: EncodedRows) -> Answers:
        order = np.argsort(rows.lengths, kind="stable")
        parts = []
        for start, stop in batches_by_tokens(rows.lengths[order], self.batch_tokens):
            batch = Batch.of_rows(rows, order[start:stop], self.runner.pad, self.runner.device)
            parts.append(run(self.runner.stepper, batch, Never()).logits.float().cpu().numpy())
        logits = np.concatenate(parts)[np.argsort(order)]
        last = self.runner.stepper.exits[-1]
        places = (np.full(len(rows), last.number), np.full(len(rows), last.layer))
        return self.runner.decode(RowOutputs(logits, *places), rows)

    def _seen(self, differs: bool) -> None:
        if self.audit is None:
            return
        before, self.audit = self.audit, self.audit.after(differs)
        if self.audit.alarm and not before.alarm:
            which = "is broken" if self.audit.broken else "drifts"
            logger.warning(
                "The guarantee %s: %d of %d audited answers differ, and %.3g was promised.",
                which,
                self.audit.different,
                self.audit.audited,
                self.audit.risk,
            )

    @property
    def _is_stopped(self) -> bool:
        """Whether an alarm has stopped early exits: there is nothing to audit then."""
        return self.on_alarm == "never" and self.audit is not None and self.audit.alarm

    def _own_policy(self) -> Policy:
        """The model's, unless its alarm was to stop it."""
        return Never() if self._is_stopped else self.policy

    def _batch(self, parts: Sequence[tuple[EncodedRows, int]], group: NDArray[np.int64] | None = None) -> Batch:
        return Batch.of_parts(parts, self.runner.pad, self.runner.device, group)


def _groups(rows: Sequence[tuple[Request, int]]) -> NDArray[np.int64]:
    """Which rows of a batch belong to the same example of the same request."""
    numbers: dict[tuple[int, int], int] = {}
    keys = [(id(request), int(request.rows.group[row])) for request, row in rows]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _step_back() -> None:
    """Where both want the same core, the loop that talks to clients goes first: it never needs it for long."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _fail(future: Future[Any], err: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(err)
