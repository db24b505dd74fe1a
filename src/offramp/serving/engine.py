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
import torch
from numpy.typing import NDArray

from offramp.answers.answer import SpanAnswer
from offramp.core.chunks import BATCH_TOKENS_ELSEWHERE, Ragged, Text, Tokens
from offramp.core.loop import leaving, run, within_budget
from offramp.core.runner import Runner
from offramp.policies import Never, Policy
from offramp.serving.audit import Audit
from offramp.serving.rows import (
    Asked,
    Full,
    Replied,
    Stopped,
    Ticket,
    Tokenised,
    TooLong,
    Waiting,
    alike,
    joined,
    tokens_of,
)

__all__ = ["Engine"]

logger = logging.getLogger("offramp")

IDLE = 0.2  # seconds between two beats of a thread that has nothing to do
BATCH_TOKENS = 256  # padded tokens at once on a CPU: with like lengths together more gain nothing
WINDOW = 128  # of the oldest rows, among which those of one length are found
AUDITED = 256  # rows that may wait for their audit; while there are more, none are drawn


@dataclass(frozen=True)
class Audited:
    """A row that was drawn, in the order in which rows left."""

    tokens: Tokenised
    early: NDArray[np.float32] | None  # what its early exit said; None: it ran to the end anyway


class Engine:
    """A model that answers requests, and watches its promise."""

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
        promised = own and runner.config.calibrated and runner.config.calibrated.get("promise")
        self.audit = Audit(float(promised["risk"])) if promised and promised["of"] == "disagreement" else None
        self.share = audit if self.audit is not None else 0.0
        self.on_alarm, self.watch = on_alarm, watch
        self.beat = time.monotonic()
        self.ready = False
        self.draining = self.died = False
        self.accepted = self.answered = 0  # requests
        self.pace = 0.01  # seconds of a row, measured as it goes
        self._waiting: deque[Waiting] = deque()
        self._coming = 0  # rows that are not tokenised yet
        self._hand: list[Waiting] = []  # what is being answered
        self._audits: deque[Audited] = deque()
        self.skipped = 0  # rows that were drawn while too many waited for their audit
        self._questions: deque[tuple[str, str, Future[SpanAnswer]]] = deque()
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
        """Rows and questions that wait."""
        return len(self._waiting) + len(self._questions)

    def tokenised(self, texts: Sequence[Text], truncate: bool) -> tuple[Ragged, Ragged | None]:
        """Texts as tokens; may run in any thread."""
        tokens = Tokens(self.runner.tokenizer, self.runner.limit, self.runner.config.reads_pairs)
        ids, types = tokens.read(list(texts), 0)
        if tokens.cut and not truncate:
            raise TooLong(f"{tokens.cut} of the texts are longer than {self.runner.limit} tokens; send truncate: true.")
        return ids, types

    def submit(self, ids: Ragged, types: Ragged | None, asked: Asked) -> Future[Replied]:
        """Put a request into the queue."""
        if asked.policy is not None:
            asked.policy.check(self.runner.config.shape)
        if asked.max_layers is not None:
            within_budget(self.runner.stepper.exits, asked.max_layers)
        rows = len(ids.lengths)
        future: Future[Replied] = Future()
        drawn = np.array([self.share > 0 and self._coin.random() < self.share for _ in range(rows)], dtype=bool)
        outside = asked.policy is not None or asked.max_layers is not None
        with self._news:
            if self.draining or not self.ready:
                raise Stopped(self._why_not)
            if outside or self._is_stopped:
                drawn[:] = False
            if len(self._audits) >= AUDITED:  # it is behind, whatever the texts are
                self.skipped += int(drawn.sum())
                drawn[:] = False
            empty = np.zeros((rows, self.runner.config.num_labels), np.float32)
            ticket = Ticket(ids, types, asked, future, empty, np.zeros(rows, np.int64), drawn, rows, outside)
            self._waiting.extend(Waiting(ticket, row, int(ids.lengths[row])) for row in range(rows))
            self.accepted += 1
            self._news.notify()
        return future

    def question(self, question: str, context: str) -> Future[SpanAnswer]:
        """The answer to a question; each runs for itself, its windows together."""
        future: Future[SpanAnswer] = Future()
        with self._news:
            if self.draining or not self.ready:
                raise Stopped(self._why_not)
            if len(self._questions) >= self.queue_rows:
                raise self.refusal
            self._questions.append((question, context, future))
            self.accepted += 1
            self._news.notify()
        return future

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
                    if batch:
                        self._answer(batch)
                    elif self._questions:
                        self._answer_question(*self._questions.popleft())
                    elif self._audits:
                        self._audit()
        except Exception as err:  # nobody is left to answer: whoever waits is told, and nobody else is let in
            logger.error("The model's thread ended: %s", "".join(traceback.format_exception(err)).rstrip())
            with self._news:
                self.ready, self.died = False, True
                for row in (*self._hand, *self._waiting):
                    _fail(row.ticket.future, err)
                for _, _, future in self._questions:
                    _fail(future, err)
                self._waiting.clear()
                self._questions.clear()

    def _warm_up(self) -> None:
        texts: list[Any] = ["a text to warm up with", "another one"]
        if self.runner.config.answer_type.is_span:
            list(self.runner.predict([("a question", "a context")]))
            return
        if self.runner.config.reads_pairs:
            texts = [(text, text) for text in texts]
        ids, types = self.tokenised(texts, truncate=True)
        for policy in (Never(), self.policy):
            run(self.runner.stepper, self._batch(ids, types, np.arange(len(texts))), policy)

    def _next(self) -> list[Waiting] | None:
        """Rows that are run together: one policy and budget, so many padded tokens; None: it is over."""
        with self._news:
            if not (self._waiting or self._audits or self._questions or self._stop):
                self._news.wait(IDLE)
            window: list[Waiting] = []
            while self._waiting and len(window) < WINDOW:
                row = self._waiting.popleft()
                if not row.ticket.future.cancelled():  # else its client hung up
                    window.append(row)
            if not window:
                return None if self._stop and not self._questions else []
            self._hand = window  # whoever waits here is told, should anything go wrong
            taken = self._hand = alike(window, self.batch_tokens, time.monotonic())
            chosen = set(map(id, taken))
            self._waiting.extendleft(row for row in reversed(window) if id(row) not in chosen)
        return taken

    def _answer(self, rows: list[Waiting]) -> None:
        began, asked = time.monotonic(), rows[0].ticket.asked
        policy, budget = asked.policy or self._own_policy(), asked.max_layers
        if any(row.ticket.asked.is_late(began) for row in rows):
            budget = self.runner.stepper.exits[0].layer
            for row in rows:  # what is forced out early is outside the promise, and its audit says nothing of it
                row.ticket.outside = True
                row.ticket.drawn[:] = False
        try:
            ids, types = joined([tokens_of(row) for row in rows])
            order = np.argsort(ids.lengths, kind="stable")
            for left in leaving(self.runner.stepper, self._batch(ids, types, order), policy, budget):
                logits = left.said.logits.float().cpu().numpy()
                places = range(len(logits)) if left.rows is None else left.rows.tolist()
                for place, said in zip(places, logits, strict=True):  # who leaves early is answered now
                    self._resolve(rows[order[place]], said, left.said.layer)
        except Exception as err:  # of this batch: the next one may do
            logger.error("%d rows failed: %s", len(rows), "".join(traceback.format_exception(err)).rstrip())
            for row in rows:
                _fail(row.ticket.future, err)
            return
        self.pace = 0.9 * self.pace + 0.1 * (time.monotonic() - began) / len(rows)
        self.watch("rows", len(rows))
        self.watch("batch_seconds", time.monotonic() - began)

    def _answer_question(self, question: str, context: str, future: Future[SpanAnswer]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        began = time.monotonic()
        try:
            (found,) = self.runner.predict([(question, context)], policy=self._own_policy(), progress=False)
            assert isinstance(found, SpanAnswer)
        except Exception as err:
            future.set_exception(err)
            return
        self.layers[found.exit_layer] += 1
        self.recent.append(time.monotonic() - began)
        self.watch("rows", 1)
        self.watch("exit_layer", found.exit_layer)
        self.answered += 1
        future.set_result(found)

    def _resolve(self, row: Waiting, logits: NDArray[np.float32], layer: int) -> None:
        ticket = row.ticket
        ticket.logits[row.row], ticket.layers[row.row] = logits, layer
        ticket.left -= 1
        self.layers[layer] += 1
        self.watch("exit_layer", layer)
        if ticket.drawn[row.row] and not self._is_stopped:
            is_deep = layer == self.runner.config.num_layers
            self._audits.append(Audited(tokens_of(row), None if is_deep else logits.copy()))
        if not ticket.left and not ticket.future.cancelled():
            outside = ticket.outside or self._is_stopped
            reply = Replied(ticket.logits, ticket.layers, int(ticket.ids.lengths.sum()), outside)
            if ticket.future.set_running_or_notify_cancel():
                ticket.future.set_result(reply)
                self.answered += 1
            self.recent.append(time.monotonic() - ticket.arrived)
            self.watch("request_seconds", self.recent[-1])

    def _audit(self) -> None:
        try:
            self._look_again()
        except Exception as err:  # those few are not counted; answering goes on
            logger.error("An audit failed: %s", "".join(traceback.format_exception(err)).rstrip())

    def _look_again(self) -> None:
        """Some of the rows that were drawn, the early ones at full depth; counted in the order in which they left."""
        some = [self._audits.popleft() for _ in range(min(8, len(self._audits)))]
        early = [(one.tokens, one.early) for one in some if one.early is not None]
        differ = iter(self._differ(*zip(*early, strict=True)) if early else ())
        for one in some:
            self._seen(one.early is not None and bool(next(differ)))

    def _differ(self, tokens: Sequence[Tokenised], early: Sequence[NDArray[np.float32]]) -> Iterable[bool]:
        ids, types = joined(tokens)
        answered = run(self.runner.stepper, self._batch(ids, types, np.arange(len(early))), Never())
        answer_type = self.runner.config.answer_type
        tolerance = (self.runner.config.calibrated or {}).get("promise", {}).get("tolerance")
        late = answer_type.answers(answered.logits.float().cpu().numpy())
        return answer_type.differ(answer_type.answers(np.stack(early)), late, tolerance)

    def _seen(self, differs: bool) -> None:
        if self.audit is None:
            return
        before, self.audit = self.audit, self.audit.after(differs)
        if self.audit.alarm and not before.alarm:
            which = "is broken" if self.audit.broken else "drifts"
            logger.warning(
                "The promise %s: %d of %d audited answers differ, and %.3g was promised.",
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

    def _batch(self, ids: Ragged, types: Ragged | None, rows: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        table, real = ids.padded(rows, self.runner.tokenizer.pad_token_id or 0)
        batch = {"input_ids": torch.from_numpy(table), "attention_mask": torch.from_numpy(real)}
        if types is not None:
            batch["token_type_ids"] = torch.from_numpy(types.padded(rows, 0)[0])
        return {key: value.to(self.runner.device) for key, value in batch.items()}


def _step_back() -> None:
    """Where both want the same core, the loop that talks to clients goes first: it never needs it for long."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _fail(future: Future[Any], err: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(err)
