"""The model that a server runs: it can be replaced by a reloaded one without dropping a request."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from offramp.errors import OfframpError
from offramp.serving.engine import Engine

__all__ = ["ServedModel"]

logger = logging.getLogger("offramp")

WARM_UP_SECONDS = 300.0  # for a reloaded model


class ServedModel:
    """The current engine; `reload` starts another one and lets the old one finish its requests."""

    def __init__(self, engine: Engine, make_engine: Callable[[], Engine] | None = None, keeps_audit: bool = False):
        self.engine = engine
        self.keeps_audit = keeps_audit  # in a file, which belongs to this model only
        self._replaced: Counter[str] = Counter()  # requests of engines that were replaced
        self._draining: Engine | None = None  # was replaced, and finishes its requests
        self._make_engine = make_engine
        self._reloading = threading.Lock()
        self._stopping = False

    @property
    def requests(self) -> Counter[str]:
        """The number of requests since the start: accepted, answered, disconnected and failed ones."""
        draining = Counter[str]() if self._draining is None else _requests(self._draining)
        return self._replaced + draining + _requests(self.engine)

    def start(self) -> None:
        """Start the model's thread."""
        self.engine.start()

    def stop(self) -> None:
        """Finish all queued requests, then stop; a reload that is under way ends without an effect."""
        self._stopping = True
        if self._draining is not None:
            self._draining.stop()
        self.engine.stop()

    def reload(self) -> bool:
        """Load the model again and switch to it; if that fails, the current one keeps serving. Blocks.

        Reloads that are requested meanwhile wait for their turn.
        """
        if self._make_engine is None:
            return False
        with self._reloading:
            try:
                engine = self._started(self._make_engine)
            except Exception as err:
                reason = str(err) if isinstance(err, OfframpError) else repr(err)
                logger.warning("Reloading failed, the current model keeps serving: %s", reason)
                return False
            self._switch(engine)
            logger.warning("Reloaded the model.")
            return True

    def _started(self, make_engine: Callable[[], Engine]) -> Engine:
        """Return a new engine that is ready, or raise."""
        if self._stopping:
            raise OfframpError("the server stops.")
        engine = make_engine()
        current = self.engine.runner.config.answer_type
        if engine.runner.config.answer_type is not current:
            title = engine.runner.config.answer_type.title
            raise OfframpError(f"The new model does {title}, this server {current.title}; start another server.")
        if self.keeps_audit and not self._is_same_model(engine):
            raise OfframpError("The state file belongs to the current model; start another server for the new one.")
        engine.start()
        deadline = time.monotonic() + WARM_UP_SECONDS
        while not (engine.ready or engine.died or self._stopping) and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._stopping or not engine.ready:
            engine.stop(wait=0.0)
            raise OfframpError("the server stops." if self._stopping else "the model did not warm up; see the log.")
        return engine

    def _switch(self, engine: Engine) -> None:
        """Send new requests to another engine; wait until the old one has finished its requests and audits."""
        old, is_same = self.engine, self._is_same_model(engine)
        engine.layers, engine.recent = old.layers.copy(), old.recent.copy()
        counts = old.auditor.counts if is_same and old.auditor is not None else None
        if is_same and old.auditor is not None and engine.auditor is not None:
            engine.auditor.continue_from(old.auditor)
        self._draining, self.engine = old, engine
        old.stop(wait=None, finish_audits=True)
        if counts is not None and old.auditor is not None and engine.auditor is not None:
            engine.auditor.add_counts(old.auditor.counts, counts)  # what the old engine has counted since
        self._replaced, self._draining = self._replaced + _requests(old), None

    def _is_same_model(self, engine: Engine) -> bool:
        """Return whether the audit of the current engine is about this one, too."""
        old, new = self.engine.auditor, engine.auditor
        return old is not None and new is not None and old.model == new.model


def _requests(engine: Engine) -> Counter[str]:
    names = ("accepted", "answered", "disconnected", "failed")
    return Counter({name: getattr(engine, name) for name in names})
