"""The record of rows that have tested a guarantee, so that "fresh" is true: `tests.jsonl`, one line per test.

A test that is repeated until it passes proves nothing. Every test is recorded, also one that fails, with keys of its
rows (hashes of the texts, which also distinguish their copies): later tests take other rows (`adapt`), or say how many
of their rows were tested before.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offramp.calibration.risks import Guarantee
from offramp.errors import BadInput
from offramp.files.writing import check_output_path, writing

__all__ = ["LEDGER", "Ledger", "TestRecord", "append_tests", "count_tested", "describe_earlier_tests", "read_tests"]

LEDGER = "tests.jsonl"


@dataclass(frozen=True)
class TestRecord:
    """A test of a guarantee: when, of what, with which result, on which rows."""

    __test__ = False  # not a test case

    date: str
    risk_type: str
    risk: float
    confidence: float
    passed: bool
    rows: int
    keys: NDArray[np.uint64]  # of the rows, sorted

    @classmethod
    def of(cls, guarantee: Guarantee, passed: bool, keys: NDArray[np.uint64]) -> TestRecord:
        """Return the record of a test that was made now."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        facts = (guarantee.risk_type, guarantee.risk, guarantee.confidence)
        return cls(date, *facts, passed, len(keys), np.unique(keys))

    def to_json(self) -> str:
        """Return a line of the file."""
        packed = base64.b64encode(self.keys.astype("<u8").tobytes()).decode()
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "keys"}
        return json.dumps(values | {"keys": packed}) + "\n"


def read_tests(file: Path) -> list[TestRecord]:
    """Return the recorded tests; none if there is no file."""
    if not file.exists():
        check_output_path(file, overwrite=True)
        return []
    records = []
    try:
        for line in file.read_text("utf-8").splitlines():
            saved = json.loads(line)
            packed = np.frombuffer(base64.b64decode(saved.pop("keys"), validate=True), "<u8").astype(np.uint64)
            records.append(TestRecord(**saved, keys=packed))
    except OSError as err:
        raise BadInput(f"Cannot read {file}: {err.strerror or err}.") from err
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise BadInput(
            f"{file} is not a record of tests ({str(err).splitlines()[0]:.80}); restore or move it."
        ) from err
    return records


def append_tests(file: Path, records: Sequence[TestRecord]) -> None:
    """Add tests to the file."""
    with writing(file), file.open("a", encoding="utf-8") as out:
        out.write("".join(record.to_json() for record in records))


@dataclass(frozen=True)
class Ledger:
    """The record of a model folder that may not exist yet: then it is next to it, as `fast.tests.jsonl` for `fast`."""

    folder: Path
    file: Path | None  # chosen by the user, outside of the folder
    records: list[TestRecord]

    @classmethod
    def find(cls, folder: Path, file: str | None) -> Ledger:
        """Return the record for a folder, or in a file that the user chose."""
        folder = folder.resolve()
        if file is not None and Path(file).resolve() != folder / LEDGER:
            return cls(folder, Path(file), read_tests(Path(file)))
        inside = read_tests(folder / LEDGER) if folder.is_dir() else []
        return cls(folder, None, [*inside, *read_tests(cls._beside(folder))])

    @staticmethod
    def _beside(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.{LEDGER}")

    def record(self, test: TestRecord, new_folder: Path | None = None) -> Path:
        """Record a test and return the file; `new_folder` replaces the folder and takes over all records."""
        if self.file is not None:
            append_tests(self.file, [test])
            return self.file
        if new_folder is not None:
            append_tests(new_folder / LEDGER, [*self.records, test])
            return new_folder / LEDGER
        file = self.folder / LEDGER if self.folder.is_dir() else self._beside(self.folder)
        append_tests(file, [test])
        return file

    def clean_up(self) -> None:
        """Remove the file next to the folder once the folder has all records."""
        if self.file is None:
            self._beside(self.folder).unlink(missing_ok=True)


def count_tested(records: Sequence[TestRecord], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for every row how often it was tested."""
    counts = np.zeros(len(keys), dtype=np.int64)
    for record in records:
        counts += np.isin(keys, record.keys)
    return counts


def describe_earlier_tests(records: Sequence[TestRecord], keys: NDArray[np.uint64]) -> str | None:
    """Return a clause about rows that were tested before; None if all are fresh."""
    earlier = [record for record in records if np.isin(record.keys, keys).any()]
    if not earlier:
        return None
    rows = int((count_tested(earlier, keys) > 0).sum())
    tests = f"{len(earlier)} earlier test{'' if len(earlier) == 1 else 's'}"
    return f"{rows:,} of the {len(keys):,} rows were also used in {tests}"
