"""The state of an audit in a file, which survives restarts: the counts, the alarms, and the model that they belong to.

A thread writes the file: after an alarm at once, otherwise at most once a second. It is replaced atomically, so a
killed server leaves the previous state, and it is locked, so two servers never write the same file.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.files.lock import acquire_lock, release_lock
from offramp.files.typed_json import TypeMismatch, parse_json_as
from offramp.files.writing import check_output_path, writing
from offramp.serving.audit import Audit

__all__ = ["AuditCounts", "AuditState", "AuditStateFile", "AuditedModel", "read_state"]

logger = logging.getLogger("offramp")

FORMAT = 1
WRITE_SECONDS = 1.0  # between two writes, except after an alarm


@dataclass(frozen=True)
class AuditedModel:
    """What the counts of an audit belong to."""

    fingerprint: str  # of the weights, tokenizer, maximum length, backend, dtype and device
    policy: str
    guarantee: dict[str, Any]  # with its limits

    def difference(self, other: AuditedModel) -> str | None:
        """Return in words what differs, or None."""
        if self.fingerprint != other.fingerprint:
            return "model (weights, tokenizer, maximum length, backend, precision or device)"
        if self.policy != other.policy:
            return "exit policy"
        return "guarantee" if self.guarantee != other.guarantee else None


@dataclass(frozen=True)
class AuditCounts:
    """The tests of an audit, and how many sampled predictions they did not see."""

    audit: Audit
    sampled: int = 0  # predictions that were drawn
    skipped: int = 0  # of them, not audited because too many were waiting
    failed: int = 0  # of them, not audited because of an error

    @property
    def coverage(self) -> float | None:
        """The fraction of sampled predictions that were audited."""
        return self.audit.audited / self.sampled if self.sampled else None

    def since(self, before: AuditCounts) -> AuditCounts:
        """Return the counts without those of an earlier start."""
        limits = tuple(
            replace(limit, audited=limit.audited - kept.audited, different=limit.different - kept.different)
            for limit, kept in zip(self.audit.limits, before.audit.limits, strict=True)
        )
        audited, different = self.audit.audited - before.audit.audited, self.audit.different - before.audit.different
        audit = replace(self.audit, audited=audited, different=different, limits=limits)
        sampled, skipped = self.sampled - before.sampled, self.skipped - before.skipped
        return AuditCounts(audit, sampled, skipped, self.failed - before.failed)


@dataclass(frozen=True)
class AuditState:
    """The content of a state file."""

    model: AuditedModel
    counts: AuditCounts
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def read_state(file: Path) -> AuditState:
    """Read a state file; raise `BadInput` if it is damaged."""
    try:
        state = parse_json_as(AuditState, json.loads(file.read_text("utf-8")))
        if state.format != FORMAT:
            raise TypeMismatch(f"its format is {state.format}, this version of offramp reads {FORMAT}")
        _check_counts(state.counts)
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror}.") from err
    except (ValueError, RecursionError, TypeMismatch) as err:
        raise BadInput(
            f"{file} is not an audit state: {str(err).splitlines()[0]:.100}. Restore it from a copy, or delete it to "
            "start over without its counts and alarms."
        ) from err
    return state


def _check_counts(counts: AuditCounts) -> None:
    audit = counts.audit
    tests = [(audit.audited, audit.different, audit.risk, audit.level)]
    tests += [(limit.audited, limit.different, limit.risk, limit.level) for limit in audit.limits]
    for audited, different, risk, level in tests:
        if not 0 <= different <= audited or not 0 < risk < 1 or not 0 < level < 1:
            raise TypeMismatch(f"{different} of {audited} predictions differ at a risk of {risk:g}")
    if min(counts.skipped, counts.failed) < 0 or counts.sampled < audit.audited + counts.skipped + counts.failed:
        raise TypeMismatch(f"{audit.audited} of {counts.sampled} sampled predictions are audited")
    if audit.drift < 0 or audit.run_length < 1:
        raise TypeMismatch(f"the drift statistic is {audit.drift:g}")


class AuditStateFile:
    """A locked state file and the thread that writes it."""

    def __init__(self, file: Path):
        self.file = file.resolve()
        self.kept = read_state(file) if file.exists() else None
        self._snapshot: Callable[[], AuditState] | None = None
        self._is_new = threading.Event()  # something was counted since the last write
        self._is_urgent = threading.Event()  # an alarm, or the end
        self._closing = False
        self._failed = False
        self._thread = threading.Thread(target=self._write_repeatedly, name="audit state", daemon=True)

    @classmethod
    @contextmanager
    def opened(cls, file: Path | None) -> Iterator[AuditStateFile | None]:
        """Lock and read the file; at the end write it a last time and release it. None for no file."""
        if file is None:
            yield None
            return
        check_output_path(file, overwrite=True)
        path = file.resolve()
        descriptor = acquire_lock(path, "every server needs its own `state=` file")
        try:
            state_file = cls(file)
            try:
                yield state_file
            finally:
                state_file.close()
        finally:
            release_lock(path, descriptor)

    def counts_for(self, model: AuditedModel) -> AuditCounts | None:
        """Return the kept counts; raise `BadValue` if they belong to something else than this model."""
        if self.kept is None:
            return None
        if difference := self.kept.model.difference(model):
            raise BadValue(
                f"{self.file} is the audit of another {difference}. Use another `state=` file, or delete it to start "
                "over."
            )
        return self.kept.counts

    def start(self, snapshot: Callable[[], AuditState]) -> None:
        """Write the state that `snapshot` returns, now and whenever it changes."""
        self._write(snapshot())  # a file that cannot be written is reported before the server starts
        self._snapshot = snapshot
        self._thread.start()

    def changed(self, is_alarm: bool) -> None:
        """Have the state written: at once after an alarm, else within a second. Does not block."""
        if is_alarm:
            self._is_urgent.set()
        self._is_new.set()

    def close(self) -> None:
        """Write the last state."""
        if self._snapshot is None:
            return
        self._closing = True
        self.changed(is_alarm=True)  # wakes the thread
        self._thread.join()
        self._write_or_warn()  # the thread may have written its last state before the last change

    def _write_repeatedly(self) -> None:
        while not self._closing:
            self._is_new.wait()
            self._is_urgent.wait(WRITE_SECONDS)
            self._is_new.clear()
            self._is_urgent.clear()
            self._write_or_warn()

    def _write_or_warn(self) -> None:
        assert self._snapshot is not None
        try:
            self._write(self._snapshot())
            self._failed = False
        except CannotWrite as err:  # serving continues, and the next change tries again
            if not self._failed:
                logger.warning("The state of the audit is not saved: %s", err)
            self._failed = True

    def _write(self, state: AuditState) -> None:
        """Replace the file atomically; the lock makes the name of the temporary file ours."""
        part = self.file.with_name(f".{self.file.name}.part")
        with writing(self.file):
            with part.open("w", encoding="utf-8") as out:
                out.write(state.to_json())
                out.flush()
                os.fsync(out.fileno())
            part.replace(self.file)
