"""Fuzzing: every command on odd data, odd options, odd output paths and tampered files, made by seed.

`python -m tests.fuzzing --count 3000 --seed 1` tries 3000 cases, each in a separate process with a time and memory
limit, and prints those with faults. A case must end with code 0, 1 or 2, without a traceback, with errors in one line;
it may change only its outputs and must not leave temporary files. `--only N` repeats one case and shows its output.
"""

# ruff: noqa: T201 -- it prints its findings
from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as tests/conftest.py has it, before the libraries are imported
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HOME": tempfile.mkdtemp(prefix="offramp-fuzzing-hub-")}

from offramp.files.managed_files import COMPARISON, MODEL
from offramp.report.run_folder import run_files
from tests.attempts import Outcome, attempt, snapshot
from tests.isolated import prepare, run_isolated
from tests.odd_cases import KINDS, Case, draw
from tests.odd_world import build, renew, unlock

MEMORY = 4 << 30  # bytes that a call may use beyond the libraries
MAX_SECONDS = 20  # per case
ENDINGS = ("ok", "error", "no guarantee", "fault")
HIDDEN = re.compile(r"(^|/)\.[^/]+|\.(part|new)(/|$)|\.before-")
JSON_SUFFIXES = (".json", ".jsonl")


@dataclass
class Report:
    """The result of a case."""

    number: int
    kind: str = "?"
    command: str = ""
    description: str = ""
    ending: str = "fault"
    faults: list[str] = field(default_factory=list)
    where: str = ""  # equal for similar faults
    frames: str = ""
    err: str = ""
    out: str = ""
    seconds: float = 0.0


# -- one case ------------------------------------------------------------------------------------


def try_case(world: Path, seed: str, number: int, kind: str | None = None) -> Report:
    """Make a case in a fresh folder, run it, check it."""
    os.chdir(world)
    chance = random.Random(f"{seed} {number}")
    kind, case = draw(chance, kind)
    outputs = [_name(name, world) for path in case.writes for name in (path, os.path.realpath(path))]
    tempfile.tempdir = str(world.parent / "tmp")
    before, started = snapshot(world.parent), time.perf_counter()
    outcome = attempt(case.arguments, stdin=case.stdin, stdout=case.stdout, seconds=case.seconds)
    seconds = time.perf_counter() - started
    faults = check_outcome(case, outcome) + check_files(case, outcome, before, snapshot(world.parent), outputs)
    if seconds > MAX_SECONDS:
        faults.append(f"it took {seconds:.0f} s")
    ending = "fault" if faults else {0: "ok", 1: "no guarantee"}.get(outcome.code, "error")
    command = shlex.join(["offramp", *case.arguments]).encode("utf-8", "backslashreplace").decode()
    where = outcome.where or "; ".join(_normalize(fault) for fault in faults)
    parts = {"err": outcome.err[-2000:], "out": outcome.out[-500:], "frames": outcome.frames}
    return Report(number, kind, command, case.description, ending, faults, where, seconds=round(seconds, 2), **parts)


def _name(path: str, world: Path) -> str:
    """Return a path relative to the parent of the fuzzing folder."""
    return os.path.relpath(os.path.normpath(world / path), world.parent)


def check_outcome(case: Case, outcome: Outcome) -> list[str]:
    """Return what is wrong with how a call ended."""
    streams = case.command == "predict" and case.stdout == "captured"
    faults = outcome.faults((0, 1, 2) if case.command == "calibrate" else (0, 2), case.command == "train", streams)
    if outcome.code == 2 and "is complete." in outcome.err:  # only printing failed, after log lines and progress
        faults = [fault for fault in faults if not fault.startswith(("more than one line", "a line that is not from"))]
    if case.stdout == "closed" and outcome.code == 0:
        faults = []  # argparse prints to standard error if standard output is closed
    if outcome.code == 0 and case.command == "predict" and outcome.out.startswith("{"):
        faults += _not_json("standard output", outcome.out.splitlines())
    if outcome.code == 0 and case.rows is not None:
        faults += _wrong_rows(case, outcome)
    if "Out of memory" in outcome.err and not case.description.startswith(("config.json", "encoder", "model")):
        faults.append("out of memory")
    return faults


def _wrong_rows(case: Case, outcome: Outcome) -> list[str]:
    """Return a fault if rows are missing from the result without a warning."""
    results, predictions = Path("out/results.json"), Path("out.jsonl")
    if results.is_file():
        count = json.loads(results.read_text("utf-8"))["data"]["rows"]
    elif case.command == "predict" and (predictions.is_file() or outcome.out):
        count = (predictions.read_text("utf-8") if predictions.is_file() else outcome.out).count("\n")
    else:
        return []
    warned = ": skipped " in outcome.err
    return [] if count == case.rows or warned else [f"{case.rows} rows in the input, {count} in the result"]


def check_files(
    case: Case, outcome: Outcome, before: dict[str, str], after: dict[str, str], outputs: list[str]
) -> list[str]:
    """Return what is wrong on disk: forbidden changes, temporary files, unreadable output."""
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    allowed = tuple(outputs) if outcome.code == 0 or "is complete." in outcome.err else ()  # only printing failed
    faults = []
    forbidden = [name for name in changed if not any(_is_in(name, path) for path in allowed)]
    if forbidden:
        faults.append(f"changed {', '.join(forbidden[:3])}")
    new = [name for name in changed if name in after and name not in before]
    if temporary := [name for name in new if HIDDEN.search(_within(name, allowed))]:
        faults.append(f"temporary files remain: {', '.join(temporary[:3])}")
    if users := [name for name in changed if name in before and _is_users(name, allowed, before)]:
        faults.append(f"replaced files of the user: {', '.join(users[:3])}")
    if replaced := [name for name in changed if name in before and not _may_replace(case)]:
        faults.append(f"replaced without --overwrite: {', '.join(replaced[:3])}")
    for name in changed:
        is_json = name.endswith(JSON_SUFFIXES) and not {"tsv", "--trace"} & {*case.arguments}
        if name in after and name not in forbidden and is_json and outcome.code == 0:
            faults += _not_json(name, _documents(name))
    return faults


def _is_in(name: str, path: str) -> bool:
    return path == "." or name == path or name.startswith(f"{path}/")


def _may_replace(case: Case) -> bool:
    """Return whether a call may replace existing files."""
    overwrites = any(len(word) > 3 and "--overwrite".startswith(word) for word in case.arguments)
    return overwrites or "--resume" in case.arguments or case.command == "calibrate"


def _within(name: str, outputs: tuple[str, ...]) -> str:
    """Return a name relative to its output, whose own name may be hidden."""
    inside = [name[len(output) :] for output in outputs if _is_in(name, output)]
    return min(inside, key=len, default=name)


def _is_users(name: str, outputs: tuple[str, ...], before: dict[str, str]) -> bool:
    """Return whether a file in an output folder has a name that offramp never writes."""
    for output in outputs:
        if name.startswith(f"{output}/") and before.get(output, "").startswith("folder"):
            first = name[len(output) + 1 :].split("/")[0]
            return not any(pattern.fullmatch(first) for pattern in (MODEL, run_files(), COMPARISON))
    return False


def _documents(name: str) -> list[str]:
    path = Path.cwd().parent / name
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else "{}"
    return text.splitlines() if name.endswith(".jsonl") else [text]


def _not_json(name: str, documents: list[str]) -> list[str]:
    """Return a fault unless all documents are strict JSON, without NaN and infinity."""
    try:
        for document in documents:
            json.loads(document, parse_constant=_reject)
    except ValueError as err:
        return [f"{Path(name).name} is not JSON ({err})"]
    return []


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _normalize(fault: str) -> str:
    """Remove names and numbers from a fault, so that similar faults are equal."""
    fault = re.sub(r"[\"'].*[\"']|/[^ ,;:]+|\d+|x{9,}", "…", fault)
    return fault[:90]


# -- many cases ----------------------------------------------------------------------------------------


class Tally:
    """Counts of the cases by kind and ending, and the distinct faults."""

    def __init__(self) -> None:
        self.kinds: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
        self.findings: dict[str, list[Report]] = {}
        self.slowest: list[tuple[float, int, str]] = []

    def add(self, report: Report) -> None:
        """Count a case."""
        self.kinds.setdefault(report.kind, collections.Counter())[report.ending] += 1
        self.slowest = sorted([*self.slowest, (report.seconds, report.number, report.command)], reverse=True)[:5]
        if report.ending == "fault":
            self.findings.setdefault(report.where, []).append(report)

    def table(self) -> str:
        """Return a table of kinds and endings, then the faults."""
        lines = [f"{'':<20}" + "".join(f"{ending:>11}" for ending in ENDINGS)]
        total: collections.Counter[str] = sum(self.kinds.values(), collections.Counter())
        for kind, counts in [*self.kinds.items(), ("all", total)]:
            lines.append(f"{kind:<20}" + "".join(f"{counts[ending]:>11}" for ending in ENDINGS))
        for where, reports in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            first = min(reports, key=lambda report: len(report.command) + len(report.description))
            numbers = ", ".join(str(report.number) for report in reports[:8])
            lines += ["", f"{len(reports)} × {where}", f"    cases {numbers}", *_summary(first)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the counts and faults as plain data."""
        findings = [
            {"where": where, "cases": [report.number for report in reports], "first": asdict(reports[0])}
            for where, reports in self.findings.items()
        ]
        kinds = {kind: {ending: counts[ending] for ending in ENDINGS} for kind, counts in self.kinds.items()}
        return {"kinds": kinds, "findings": findings, "slowest": self.slowest}


def _summary(report: Report) -> list[str]:
    return [
        f"    {report.command:.400}",
        f"    {report.description:.300}",
        *(f"    {fault:.400}" for fault in report.faults),
    ]


@dataclass(frozen=True)
class Workspace:
    """The fuzzing folder, which cases may change, and its original."""

    root: Path

    @property
    def world(self) -> Path:
        """The folder that commands run in, beside a folder for temporary files."""
        return self.root / "work" / "world"

    @property
    def original(self) -> Path:
        """The unchanged copy."""
        return self.root / "original"

    def make(self) -> None:
        """Build the folder and its copy."""
        build(self.world)
        (self.world.parent / "tmp").mkdir()
        shutil.copytree(self.world, self.original, symlinks=True)

    def case(self, seed: str, number: int) -> Report:
        """Run a case in this process."""
        self.renew()
        return try_case(self.world, seed, number)

    def renew(self) -> None:
        """Restore the folder."""
        unlock(self.world.parent)
        for path in self.world.parent.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self.world.parent / "tmp").mkdir()
        renew(self.original, self.world)

    def isolated_case(self, seed: str, number: int, kind: str | None = None) -> Report:
        """Run a case in a separate process."""
        self.renew()
        ended = run_isolated(try_case, self.world, seed, number, kind, seconds=90, memory=MEMORY)
        if ended.value is not None:
            return ended.value
        return self._report_crash(ended.failure, seed, number, kind)

    def _report_crash(self, failure: str, seed: str, number: int, kind: str | None) -> Report:
        """Return the report of a case whose process died; the case is made again, but not run."""
        self.renew()
        described = run_isolated(_describe, self.world, seed, number, kind, seconds=90, memory=MEMORY).value
        return Report(number, *(described or ("?", "", "")), faults=[failure], where=failure)


def _describe(world: Path, seed: str, number: int, kind: str | None) -> tuple[str, str, str]:
    os.chdir(world)
    kind, case = draw(random.Random(f"{seed} {number}"), kind)
    return kind, shlex.join(["offramp", *case.arguments]).encode("utf-8", "backslashreplace").decode(), case.description


def main() -> int:
    """Run the cases, print a table, and return 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--kind", choices=[*KINDS], help="only cases of this kind")
    parser.add_argument("--only", type=int, metavar="N", help="repeat one case and keep its folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary to this file")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    args = parser.parse_args()
    summary = None if args.json is None else args.json.absolute()
    prepare()
    workspace, tally, started = (
        Workspace(Path(tempfile.mkdtemp(prefix="offramp-fuzzing-")).resolve()),
        Tally(),
        time.time(),
    )
    if failure := run_isolated(workspace.make, seconds=300, memory=MEMORY).failure:
        sys.exit(f"Could not build the fuzzing folder: {failure}")
    numbers = [args.only] if args.only is not None else range(args.first, args.first + args.count)
    for number in numbers:
        report = workspace.isolated_case(args.seed, number, args.kind)
        tally.add(report)
        if report.ending == "fault" or args.verbose or args.only is not None:
            print(f"{report.ending:<9} {number} {report.kind}, {report.seconds:.1f} s", flush=True)
            print("\n".join(_summary(report) if args.only is None else _details(report)), flush=True)
        elif number % 100 == 99:
            print(f"… {number + 1}, {time.time() - started:.0f} s", flush=True)
    kind = "" if args.kind is None else f" --kind {args.kind!r}"
    print(f"\n{tally.table()}\n\nrepeat a case: python -m tests.fuzzing --seed {args.seed}{kind} --only N")
    if summary is not None:
        summary.write_text(json.dumps(tally.as_json(), indent=1) + "\n", encoding="utf-8")
    if args.only is not None:
        print(f"its folder is {workspace.world}")
    else:
        shutil.rmtree(workspace.root)
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    return int(bool(tally.findings))


def _details(report: Report) -> list[str]:
    return [*_summary(report), "standard output:", report.out, "standard error:", report.err, report.frames]


if __name__ == "__main__":
    sys.exit(main())
