"""Fuzzing of files: model folders, traces and results that are edited, truncated or replaced at random, by seed.

`python -m tests.tampering --count 600` runs the commands on that many of them and prints each violation. A command must
exit with code 0 or 2 (calibrate also 1), without a traceback, print only offramp's messages, and change no other file.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as in tests/conftest.py, before the libraries are imported
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

import numpy as np
from safetensors.numpy import load_file, save_file

from offramp.data.hashes import hash_texts
from offramp.training.holdout import write_hashes
from offramp.training.settings import Settings, write_settings
from tests.attempts import attempt, snapshot
from tests.reviews import rows
from tests.tiny import FAMILY_NAMES, adaptive

LABELS = ["no", "perhaps", "yes"]
DEEP = json.loads("[" * 400 + "]" * 400)
# replacement values of fields: other types, other ranges, and values that only look right
VALUES: list[Any] = [None, True, False, 0, 1, -1, 3, 0.5, -2.5, 10**9, 10**30, 1e308, float("nan"), float("inf")]
VALUES += [
    "",
    "x",
    "3",
    "yes",
    "é\u2028",
    "\x00",
    [],
    [1],
    ["x"],
    [None],
    [[1, 2], [3]],
    {},
    {"a": 1},
    {"0": "x"},
    DEEP,
]
CORRUPTIONS = {
    "is empty": lambda content: b"",
    "is cut in the middle": lambda content: content[: len(content) // 2],
    "lacks its end": lambda content: content[:-1],
    "is not UTF-8": lambda content: b"\xff\xfe" + content,
    "is Latin-1": lambda content: '{"é": 1}'.encode("latin-1"),
    "is zeros": lambda content: bytes(len(content)),
    "is a list": lambda content: b"[]",
    "is a number": lambda content: b"7",
    "is null": lambda content: b"null",
    "is an empty object": lambda content: b"{}",
    "is deep": lambda content: b"[" * 100_000,
    "is a long number": lambda content: b'{"a": ' + b"9" * 5000 + b"}",
    "is repeated": lambda content: content + content,
}


# -- single changes ------------------------------------------------------------------------------


def field_paths(tree: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field of a JSON value, including nested ones."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*prefix, key)
        yield from field_paths(value, (*prefix, key))


REMOVED = object()  # as a value: remove the field


def with_value(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a JSON value with another value at a path."""
    changed = copy.deepcopy(tree)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if value is REMOVED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


def edit(tree: Any, chance: random.Random) -> tuple[Any, str]:
    """Change or remove one or two fields of a JSON value; return it and a description."""
    changes = []
    for _ in range(chance.choice([1, 1, 1, 2])):
        paths = list(field_paths(tree))
        if not paths:
            break
        path = chance.choice(paths)
        value = REMOVED if chance.random() < 0.15 else chance.choice(VALUES)
        tree = with_value(tree, path, value)
        changes.append(f"{'.'.join(map(str, path))} " + ("removed" if value is REMOVED else f"= {value!r:.30}"))
    return tree, ", ".join(changes)


def corrupt(file: Path, chance: random.Random) -> str:
    """Truncate, empty, re-encode or remove a file, or replace it by a folder."""
    kind = chance.choice([*CORRUPTIONS, "is a folder", "is missing"])
    content = file.read_bytes()
    if kind in CORRUPTIONS:
        file.write_bytes(CORRUPTIONS[kind](content))
        return kind
    file.unlink()
    if kind == "is a folder":
        file.mkdir()
    return kind


def edit_json(file: Path, chance: random.Random) -> str:
    """Change fields of a JSON file."""
    changed, change = edit(json.loads(file.read_text("utf-8")), chance)
    file.write_text(json.dumps(changed), encoding="utf-8")
    return change


def edit_yaml(file: Path, chance: random.Random) -> str:
    """Change fields of a YAML file."""
    import yaml

    changed, change = edit(yaml.safe_load(file.read_text("utf-8")), chance)
    file.write_text(json.dumps(changed), encoding="utf-8")  # JSON is valid YAML
    return change


def edit_arrays(file: Path, chance: random.Random) -> str:
    """Change the length, shape, dtype, name or values of an array of a safetensors file."""
    arrays, metadata = load_file(file), header(file).get("__metadata__")
    name = chance.choice(sorted(arrays))
    array = arrays[name]
    kinds: dict[str, Callable[[], Any]] = {
        "is short": lambda: array[:-1],
        "is empty": lambda: array[:0],
        "is flat": lambda: array.reshape(-1),
        "has one more axis": lambda: array[..., None],
        "is float16": lambda: array.astype(np.float16),
        "is int32": lambda: array.astype(np.int32),
        "is float64": lambda: array.astype(np.float64),
        "is a scalar": lambda: np.array(1.0),
        "is negative": lambda: -1 - np.abs(array.astype(np.int64)) if array.dtype.kind in "iu" else -1 - np.abs(array),
        "is NaN": lambda: np.full(array.shape, np.nan, array.dtype if array.dtype.kind == "f" else np.float64),
        "is huge": lambda: np.full(array.shape, 10**9, array.dtype),
        "is missing": lambda: None,
    }
    kind = chance.choice([*kinds, "has another name"])
    changed = array if kind == "has another name" else kinds[kind]()
    del arrays[name]
    if changed is not None:
        arrays["stranger" if kind == "has another name" else name] = np.ascontiguousarray(changed)
    save_file(arrays, file, metadata=metadata)
    return f"{name} {kind}"


def header(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file."""
    content = file.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


# -- folders, traces, results --------------------------------------------------------------------


def tamper_model(folder: Path, chance: random.Random) -> str:
    """Change one file of a model folder."""
    shares = {"config.json": 70, "training.yaml": 8, "rows.safetensors": 6, "tokenizer.json": 8}
    shares |= {"tokenizer_config.json": 8, "calibration.json": 2, "README.md": 1, "model.safetensors": 3}
    shares |= {"model.safetensors.index.json": 2, "generation_config.json": 1, "adapter_config.json": 1}
    name = chance.choices([*shares], [*shares.values()])[0]
    file = folder / name
    if not file.exists():
        file.write_text('{"metadata": {"total_size": 1}, "weight_map": {"a": "model.safetensors"}}')
        if name == "model.safetensors.index.json" and chance.random() < 0.7:
            (folder / "model.safetensors").unlink()
    if name == "README.md" or chance.random() < 0.15:
        return f"{name} {corrupt(file, chance)}"
    editors = {".json": edit_json, ".yaml": edit_yaml, ".safetensors": edit_arrays}
    return f"{name}: {editors[file.suffix](file, chance)}"


def tamper_trace(file: Path, chance: random.Random) -> str:
    """Change a trace's header or one of its arrays, or corrupt the file."""
    kind = chance.random()
    if kind < 0.1:
        return corrupt(file, chance)
    if kind < 0.5:
        return edit_arrays(file, chance)
    metadata = header(file)["__metadata__"]
    if kind < 0.6:
        name, value = chance.choice(sorted(metadata)), chance.choice(["", "{", "[]", "null", "7", "[" * 100_000])
        save_file(load_file(file), file, metadata=metadata | {name: value})
        return f"{name} = {value:.20}"
    about, change = edit(json.loads(metadata["about"]), chance)
    save_file(load_file(file), file, metadata=metadata | {"about": json.dumps(about)})
    return change


def tamper_json(file: Path, chance: random.Random) -> str:
    """Change fields of a JSON file, or corrupt it."""
    return corrupt(file, chance) if chance.random() < 0.15 else edit_json(file, chance)


def tamper_settings(file: Path, chance: random.Random) -> str:
    """Change options of a `--config` file, or corrupt it."""
    return corrupt(file, chance) if chance.random() < 0.15 else edit_yaml(file, chance)


# -- the original files --------------------------------------------------------------------------


def write_model(folder: Path, family: str, data: Path, **options: Any) -> Path:
    """Write a tiny model with the files that training writes."""
    model = adaptive(family, folder.with_name(f"{folder.name}-encoder"), labels=LABELS, policy="patience:1", **options)
    model.save_pretrained(folder)
    encoder, output = folder.with_name(f"{folder.name}-encoder"), folder
    files = {"train_file": str(data / "train.csv"), "dev_file": str(data / "dev.csv")}
    write_settings(Settings(backbone=str(encoder), output=str(output), **files), folder)
    texts = [text for text, _ in rows(60, 3)]
    parts = {"train": texts[:20], "calibration": texts[20:], "dev": []}
    write_hashes(folder, {name: hash_texts(part) for name, part in parts.items()})
    return folder


def write_data(folder: Path) -> Path:
    """Write labelled rows for calibration and evaluation, and texts for prediction."""
    folder.mkdir()
    for split, seed in (("train", 3), ("dev", 4)):
        lines = [f"{text},{LABELS[index % 3]}" for index, (text, _) in enumerate(rows(60, seed))]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    (folder / "texts.txt").write_text("a lovely film\n\nbad\n")
    return folder


def calls(model: Path, data: Path, output: Path) -> dict[str, list[str]]:
    """Return a call of each command that reads a model folder."""
    return {
        "info": ["info", str(model)],
        "predict": ["predict", str(model), str(data / "texts.txt")],
        "calibrate": ["calibrate", str(model), "--risk", "0.3"],
        "calibrate --file": ["calibrate", str(model), "--file", str(data / "dev.csv"), "--risk", "0.3"],
        "evaluate": ["evaluate", str(model), "--no-live", "--policy", "patience", "--output", str(output)],
    }


# -- the command line ----------------------------------------------------------------------------


class Tally:
    """The commands that were run, and their violations."""

    def __init__(self, root: Path, verbose: bool):
        self.root, self.verbose = root, verbose
        self.calls: collections.Counter[str] = collections.Counter()
        self.codes: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []

    def call(self, kind: str, change: str, arguments: list[str], may_write: tuple[str, ...] = ()) -> None:
        """Run a command and record its violations; `may_write` are names under the root that it may write."""
        before, started = snapshot(self.root), time.perf_counter()
        outcome = attempt(arguments)
        violations = outcome.faults((0, 1, 2) if arguments[0] == "calibrate" else (0, 2), arguments[0] == "train")
        after = snapshot(self.root)
        allowed = may_write if outcome.code == 0 else ()
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        if unexpected := [name for name in changed if not name.startswith(allowed or ("\0",))]:
            violations.append(f"changed {', '.join(unexpected[:3])}")
        self.calls[kind] += 1
        self.codes[f"{arguments[0]} {outcome.code}"] += 1
        self.violations += [f"{kind}, {change}: {arguments[0]}: {violation}" for violation in violations]
        if self.verbose or violations:
            seconds = time.perf_counter() - started
            status = "WRONG" if violations else "fine "
            print(f"{status} {change} | {arguments[0]} {outcome.code} {seconds:.1f} s", flush=True)
            for line in violations or [outcome.err.strip().replace(str(self.root), "…")[:300]]:
                print(f"      {line}", flush=True)


def try_models(tally: Tally, data: Path, count: int, chance: random.Random) -> None:
    root = tally.root
    options: dict[str, dict[str, Any]] = {name: {} for name in FAMILY_NAMES}
    options["roberta"] = {"lte": True, "heads": "shared", "exits": [2, 4]}
    models = {name: write_model(root / "original" / name, name, data, **more) for name, more in options.items()}
    assert attempt(["calibrate", str(models["bert"]), "--risk", "0.5"]).code == 0
    for number in range(count):
        family = chance.choice(["bert", "bert", *FAMILY_NAMES])
        model = Path(shutil.copytree(models[family], root / "model"))
        change = f"{number} {family}: {tamper_model(model, chance)}"
        for name, arguments in calls(model, data, root / "run").items():
            writes = {"evaluate": ("run",), "calibrate": ("model/config", "model/calib", "model/README")}
            if name == "evaluate" and number % 4 and "training.yaml" not in change:
                continue  # drawing figures is slow
            tally.call("folders", change, arguments, writes.get(arguments[0], ()))
            shutil.rmtree(root / "run", ignore_errors=True)
        shutil.rmtree(model)


def try_traces(tally: Tally, data: Path, count: int, chance: random.Random) -> None:
    root = tally.root
    model = write_model(root / "original" / "traced", "bert", data, lte=True)
    trace, original = root / "trace.safetensors", root / "original" / "trace.safetensors"
    options = ["--file", str(data / "dev.csv"), "--trace", str(trace)]
    commands = [["evaluate", str(model), "--no-live", *options, "--output", str(root / "run")]]
    commands.append(["calibrate", str(model), "--speedup", "2", *options])
    assert attempt(commands[0]).code == 0
    shutil.rmtree(root / "run")
    shutil.move(trace, original)
    for number in range(count):
        shutil.copyfile(original, trace)
        change = f"{number} trace: {tamper_trace(trace, chance)}"
        for arguments in commands:
            before = shutil.copytree(model, root / "before")
            tally.call("traces", change, arguments, ("run", "trace.safetensors", "original/traced/"))
            shutil.rmtree(model)
            shutil.move(before, model)
            shutil.rmtree(root / "run", ignore_errors=True)
        shutil.rmtree(trace) if trace.is_dir() else trace.unlink(missing_ok=True)


def try_results(tally: Tally, data: Path, count: int, chance: random.Random) -> None:
    root = tally.root
    model = write_model(root / "original" / "compared", "bert", data)
    first, second = root / "first", root / "second"
    for output in (first, second):
        assert attempt([*calls(model, data, output)["evaluate"], "--policy", "entropy"]).code == 0
    small = json.loads((second / "results.json").read_text())
    small["policies"] = {name: points[::50] for name, points in small["policies"].items()}
    small["static"] = small["static"][:2]  # a different point of the reference curve than the first run
    for number in range(count):
        (second / "results.json").write_text(json.dumps(small))
        change = f"{number} results: {tamper_json(second / 'results.json', chance)}"
        for more in ([], ["--policy", "layer"], ["--elue-reference", str(first), str(second), "--clamp"]):
            tally.call("results", change, ["compare", str(first), str(second), *more])
        if number % 3 == 0:
            output = ["--output", str(root / "run")]
            tally.call("results", change, ["compare", str(second), str(first), *output], ("run",))
            shutil.rmtree(root / "run", ignore_errors=True)
        results = second / "results.json"
        shutil.rmtree(results) if results.is_dir() else None


def try_settings(tally: Tally, data: Path, count: int, chance: random.Random) -> None:
    root = tally.root
    model = write_model(root / "original" / "set", "bert", data)
    (model / "training.yaml").rename(root / "original" / "training.yaml")
    for number in range(count):
        file = Path(shutil.copyfile(root / "original" / "training.yaml", root / "config.yaml"))
        change = f"{number} --config: {tamper_settings(file, chance)}"
        arguments = ["train", "--config", str(file), "--output", str(root / "run"), "--max-steps", "1", "--cpu"]
        tally.call("settings", change, [*arguments, "--calibration-split", "0"], ("run", "original/"))
        for path in (root / "run", file, root / "x", root / "3"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=600, help="folders")
    parser.add_argument("--traces", type=int, default=60)
    parser.add_argument("--results", type=int, default=60)
    parser.add_argument("--settings", type=int, default=0, help="--config files of train; each trains a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print each call and its output")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # huge sizes must not exhaust the machine's memory
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        os.chdir(root)
        (root / "original").mkdir()
        tally, data = Tally(root, args.verbose), write_data(root / "data")
        for tries, count in (
            (try_models, args.count),
            (try_traces, args.traces),
            (try_results, args.results),
            (try_settings, args.settings),
        ):
            if count:
                tries(tally, data, count, random.Random(args.seed))
    codes = dict(sorted(tally.codes.items()))
    print(f"\ncalls {dict(tally.calls)}, exit codes {codes}, violations {len(tally.violations)}")
    return int(bool(tally.violations))


if __name__ == "__main__":
    sys.exit(main())
