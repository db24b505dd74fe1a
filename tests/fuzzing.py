"""Every command on odd data, odd options, odd places and tampered files, made by seed.

`python -m tests.fuzzing --count 3000 --seed 1` tries so many, each in a process of its own with a limit of time and
memory, and prints what did not end as it should: with code 0, 1 or 2, no traceback, a failure in one line of ours,
nothing touched but what was named, nothing left behind. `--only N` repeats one of them and shows all that it said.
"""

# ruff: noqa: T201 -- it prints what it found
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
from tests.apart import apart, prepare
from tests.attempts import Outcome, attempt, seen
from tests.odd_cases import KINDS, Case, draw
from tests.odd_world import build, renew, unlock

MEMORY = 4 << 30  # bytes that a call may take beyond the libraries
SLOW = 20  # seconds that nothing here should take
ENDINGS = ("ok", "refused", "honest no", "found")
HIDDEN = re.compile(r"(^|/)\.[^/]+|\.(part|new)(/|$)|\.before-")
PLAIN = (".json", ".jsonl")


@dataclass
class Report:
    """What became of a case."""

    number: int
    kind: str = "?"
    command: str = ""
    told: str = ""
    ending: str = "found"
    faults: list[str] = field(default_factory=list)
    where: str = ""  # alike for alike findings
    frames: str = ""
    err: str = ""
    out: str = ""
    seconds: float = 0.0


# -- one case ------------------------------------------------------------------------------------


def try_case(world: Path, seed: str, number: int, kind: str | None = None) -> Report:
    """Make a case in a fresh world, run it, judge it."""
    os.chdir(world)
    chance = random.Random(f"{seed} {number}")
    kind, case = draw(chance, kind)
    named = [_name(path, world) for one in case.writes for path in (one, os.path.realpath(one))]
    tempfile.tempdir = str(world.parent / "tmp")
    before, started = seen(world.parent), time.perf_counter()
    outcome = attempt(case.arguments, stdin=case.stdin, stdout=case.stdout, seconds=case.seconds)
    took = time.perf_counter() - started
    faults = judge(case, outcome) + judge_world(case, outcome, before, seen(world.parent), named)
    if took > SLOW:
        faults.append(f"it took {took:.0f} s")
    ending = "found" if faults else {0: "ok", 1: "honest no"}.get(outcome.code, "refused")
    command = shlex.join(["offramp", *case.arguments]).encode("utf-8", "backslashreplace").decode()
    where = outcome.where or "; ".join(_alike(fault) for fault in faults)
    parts = {"err": outcome.err[-2000:], "out": outcome.out[-500:], "frames": outcome.frames}
    return Report(number, kind, command, case.told, ending, faults, where, seconds=round(took, 2), **parts)


def _name(path: str, world: Path) -> str:
    """A path as it is called under the world's parent."""
    return os.path.relpath(os.path.normpath(world / path), world.parent)


def judge(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with how a call ended."""
    streams = case.command == "predict" and case.stdout == "kept"
    found = outcome.faults((0, 1, 2) if case.command == "calibrate" else (0, 2), case.command == "train", streams)
    if outcome.code == 2 and "is complete." in outcome.err:  # only printing failed, after notes and progress
        found = [one for one in found if not one.startswith(("more than one line", "a line that is not ours"))]
    if case.stdout == "closed" and outcome.code == 0:
        found = []  # argparse says on standard error what it cannot say on standard output
    if outcome.code == 0 and case.command == "predict" and outcome.out.startswith("{"):
        found += _not_json("standard output", outcome.out.splitlines())
    if outcome.code == 0 and case.rows is not None:
        found += _other_rows(case, outcome)
    if "not enough memory" in outcome.err and not case.told.startswith(("config.json", "encoder", "model")):
        found.append("it took more memory than there is")
    return found


def _other_rows(case: Case, outcome: Outcome) -> list[str]:
    """Whether it was about other rows than it was given, and did not say so."""
    results, answers = Path("out/results.json"), Path("out.jsonl")
    if results.is_file():
        count = json.loads(results.read_text("utf-8"))["data"]["rows"]
    elif case.command == "predict" and (answers.is_file() or outcome.out):
        count = (answers.read_text("utf-8") if answers.is_file() else outcome.out).count("\n")
    else:
        return []
    told = "were skipped" in outcome.err
    return [] if count == case.rows or told else [f"{case.rows} rows were given, {count} were taken"]


def judge_world(
    case: Case, outcome: Outcome, before: dict[str, str], after: dict[str, str], named: list[str]
) -> list[str]:
    """What it touched that it may not, what it left behind, and whether what it wrote can be read."""
    touched = [name for name in before | after if before.get(name) != after.get(name)]
    may = tuple(named) if outcome.code == 0 or "is complete." in outcome.err else ()  # only printing failed
    found = []
    strange = [name for name in touched if not any(_is_in(name, one) for one in may)]
    if strange:
        found.append(f"touched {', '.join(strange[:3])}")
    if left := [name for name in touched if name in after and name not in before and HIDDEN.search(_within(name, may))]:
        found.append(f"left behind {', '.join(left[:3])}")
    if gone := [name for name in touched if name in before and _is_others(name, may, before)]:
        found.append(f"replaced what is not ours: {', '.join(gone[:3])}")
    if spoilt := [name for name in touched if name in before and not _may_replace(case)]:
        found.append(f"replaced without --overwrite: {', '.join(spoilt[:3])}")
    for name in touched:
        plain = name.endswith(PLAIN) and not {"tsv", "--trace"} & {*case.arguments}
        if name in after and name not in strange and plain and outcome.code == 0:
            found += _not_json(name, _documents(name))
    return found


def _is_in(name: str, place: str) -> bool:
    return place == "." or name == place or name.startswith(f"{place}/")


def _may_replace(case: Case) -> bool:
    """Whether a call may change what is there."""
    asked = any(len(one) > 3 and "--overwrite".startswith(one) for one in case.arguments)
    return asked or "--resume" in case.arguments or case.command == "calibrate"


def _within(name: str, places: tuple[str, ...]) -> str:
    """A name as it stands in the output that it belongs to: the output's own name may be hidden."""
    inside = [name[len(one) :] for one in places if _is_in(name, one)]
    return min(inside, key=len, default=name)


def _is_others(name: str, places: tuple[str, ...], before: dict[str, str]) -> bool:
    """Whether something lay in a folder that was written to, under a name that we never write."""
    for one in places:
        if name.startswith(f"{one}/") and before.get(one, "").startswith("folder"):
            first = name[len(one) + 1 :].split("/")[0]
            return not any(ours.fullmatch(first) for ours in (MODEL, run_files(), COMPARISON))
    return False


def _documents(name: str) -> list[str]:
    path = Path.cwd().parent / name
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else "{}"
    return text.splitlines() if name.endswith(".jsonl") else [text]


def _not_json(name: str, documents: list[str]) -> list[str]:
    """Whether each is JSON as all readers take it: without NaN and infinity."""
    try:
        for one in documents:
            json.loads(one, parse_constant=_refuse)
    except ValueError as err:
        return [f"{Path(name).name} is no JSON ({err})"]
    return []


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none of JSON's values")


def _alike(fault: str) -> str:
    """A fault without what differs between alike ones."""
    fault = re.sub(r"[\"'].*[\"']|/[^ ,;:]+|\d+|x{9,}", "…", fault)
    return fault[:90]


# -- many ----------------------------------------------------------------------------------------


class Tally:
    """What was tried, and each finding once."""

    def __init__(self) -> None:
        self.kinds: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
        self.findings: dict[str, list[Report]] = {}
        self.slowest: list[tuple[float, int, str]] = []

    def add(self, report: Report) -> None:
        """Count a case."""
        self.kinds.setdefault(report.kind, collections.Counter())[report.ending] += 1
        self.slowest = sorted([*self.slowest, (report.seconds, report.number, report.command)], reverse=True)[:5]
        if report.ending == "found":
            self.findings.setdefault(report.where, []).append(report)

    def table(self) -> str:
        """Kinds by endings, then the findings."""
        lines = [f"{'':<20}" + "".join(f"{ending:>11}" for ending in ENDINGS)]
        total: collections.Counter[str] = sum(self.kinds.values(), collections.Counter())
        for kind, counts in [*self.kinds.items(), ("all", total)]:
            lines.append(f"{kind:<20}" + "".join(f"{counts[ending]:>11}" for ending in ENDINGS))
        for where, reports in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            first = min(reports, key=lambda report: len(report.command) + len(report.told))
            numbers = ", ".join(str(report.number) for report in reports[:8])
            lines += ["", f"{len(reports)} × {where}", f"    cases {numbers}", *_shown(first)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        findings = [
            {"where": where, "cases": [report.number for report in reports], "first": asdict(reports[0])}
            for where, reports in self.findings.items()
        ]
        kinds = {kind: {ending: counts[ending] for ending in ENDINGS} for kind, counts in self.kinds.items()}
        return {"kinds": kinds, "findings": findings, "slowest": self.slowest}


def _shown(report: Report) -> list[str]:
    return [f"    {report.command:.400}", f"    {report.told:.300}", *(f"    {fault:.400}" for fault in report.faults)]


@dataclass(frozen=True)
class Ground:
    """Where cases are tried: the world as it was, and the one that they may spoil."""

    root: Path

    @property
    def world(self) -> Path:
        """The folder that commands run in, with a neighbour for their temporary files."""
        return self.root / "place" / "world"

    @property
    def kept(self) -> Path:
        """Its copy."""
        return self.root / "kept"

    def make(self) -> None:
        """Build the world once."""
        build(self.world)
        (self.world.parent / "tmp").mkdir()
        shutil.copytree(self.world, self.kept, symlinks=True)

    def case(self, seed: str, number: int) -> Report:
        """A case in this process."""
        self.renew()
        return try_case(self.world, seed, number)

    def renew(self) -> None:
        """Put everything back."""
        unlock(self.world.parent)
        for left in self.world.parent.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        (self.world.parent / "tmp").mkdir()
        renew(self.kept, self.world)

    def apart(self, seed: str, number: int, kind: str | None = None) -> Report:
        """A case in a process of its own."""
        self.renew()
        ended = apart(try_case, self.world, seed, number, kind, seconds=90, memory=MEMORY)
        if ended.gave is not None:
            return ended.gave
        return self._dead(ended.fate, seed, number, kind)

    def _dead(self, fate: str, seed: str, number: int, kind: str | None) -> Report:
        """What is known of a case whose process died: it is made once more, and not run."""
        self.renew()
        made = apart(_describe, self.world, seed, number, kind, seconds=90, memory=MEMORY).gave or ("?", "", "")
        return Report(number, *made, faults=[fate], where=fate)


def _describe(world: Path, seed: str, number: int, kind: str | None) -> tuple[str, str, str]:
    os.chdir(world)
    kind, case = draw(random.Random(f"{seed} {number}"), kind)
    return kind, shlex.join(["offramp", *case.arguments]).encode("utf-8", "backslashreplace").decode(), case.told


def main() -> int:
    """Try, print, and end with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--kind", choices=[*KINDS], help="cases of one kind alone")
    parser.add_argument("--only", type=int, metavar="N", help="repeat one case, and keep its world")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    parser.add_argument("--verbose", action="store_true", help="each case and what it said")
    args = parser.parse_args()
    summary = None if args.json is None else args.json.absolute()
    prepare()
    ground, tally, started = Ground(Path(tempfile.mkdtemp(prefix="offramp-fuzzing-")).resolve()), Tally(), time.time()
    if fate := apart(ground.make, seconds=300, memory=MEMORY).fate:
        sys.exit(f"The world could not be made: {fate}")
    numbers = [args.only] if args.only is not None else range(args.first, args.first + args.count)
    for number in numbers:
        report = ground.apart(args.seed, number, args.kind)
        tally.add(report)
        if report.ending == "found" or args.verbose or args.only is not None:
            print(f"{report.ending:<9} {number} {report.kind}, {report.seconds:.1f} s", flush=True)
            print("\n".join(_shown(report) if args.only is None else _everything(report)), flush=True)
        elif number % 100 == 99:
            print(f"… {number + 1}, {time.time() - started:.0f} s", flush=True)
    kind = "" if args.kind is None else f" --kind {args.kind!r}"
    print(f"\n{tally.table()}\n\nrepeat one: python -m tests.fuzzing --seed {args.seed}{kind} --only N")
    if summary is not None:
        summary.write_text(json.dumps(tally.as_json(), indent=1) + "\n", encoding="utf-8")
    if args.only is not None:
        print(f"its world is in {ground.world}")
    else:
        shutil.rmtree(ground.root)
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)
    return int(bool(tally.findings))


def _everything(report: Report) -> list[str]:
    return [*_shown(report), "standard output:", report.out, "standard error:", report.err, report.frames]


if __name__ == "__main__":
    sys.exit(main())
