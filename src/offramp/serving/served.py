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
        self._make_engine = make_engine
        self._reloading = threading.Lock()

    @property
    def requests(self) -> Counter[str]:
        """The number of requests since the start: accepted, answered, disconnected and failed ones."""
        return self._replaced + _requests(self.engine)

    def start(self) -> None:
        """Start the model's thread."""
        self.engine.start()

    def stop(self) -> None:
        """Finish all queued requests, then stop."""
        with self._reloading:
            self.engine.stop()

    def reload(self) -> bool:
        """Load the model again and switch to it; if that fails, the current one keeps serving. Blocks."""
        if self._make_engine is None or not self._reloading.acquire(blocking=False):
            return False
        try:
            engine = self._started(self._make_engine)
        except Exception as err:
            reason = str(err) if isinstance(err, OfframpError) else repr(err)
            logger.warning("Reloading failed, the current model keeps serving: %s", reason)
            return False
        else:
            self._continue_audit(engine)
            old, self.engine = self.engine, engine
            old.stop()
            self._replaced += _requests(old)
            logger.warning("Reloaded the model.")
            return True
        finally:
            self._reloading.release()

    def _started(self, make_engine: Callable[[], Engine]) -> Engine:
        engine = make_engine()
        current = self.engine.runner.config.answer_type
        if engine.runner.config.answer_type is not current:
            title = engine.runner.config.answer_type.title
            raise OfframpError(f"The new model does {title}, this server {current.title}; start another server.")
        if self.keeps_audit and not self._is_same_model(engine):
            raise OfframpError("The state file belongs to the current model; start another server for the new one.")
        engine.start()
        deadline = time.monotonic() + WARM_UP_SECONDS
        while not engine.ready and not engine.died and time.monotonic() < deadline:
            time.sleep(0.02)
        if not engine.ready:
            engine.stop(wait=0.0)
            raise OfframpError("the model did not warm up; see the server log.")
        return engine

    def _is_same_model(self, engine: Engine) -> bool:
        """Return whether the audit of the current engine is about this one, too."""
        old, new = self.engine.auditor, engine.auditor
        return old is not None and new is not None and old.model == new.model

    def _continue_audit(self, engine: Engine) -> None:
        """Continue the counts and alarms of the current engine, unless the model is another one."""
        old, new = self.engine.auditor, engine.auditor
        if old is None or new is None or not self._is_same_model(engine):
            return
        new.resume(old.counts)
        new.on_change = old.on_change


def _requests(engine: Engine) -> Counter[str]:
    names = ("accepted", "answered", "disconnected", "failed")
    return Counter({name: getattr(engine, name) for name in names})
