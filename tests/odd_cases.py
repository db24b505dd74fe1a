"""Random cases by seed: a call, the files it may write, and a description of its input."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.dirty import FORMATS, Dirty, mangled, write_dirty
from tests.odd_calls import odd_options, odd_output
from tests.odd_world import EVALUATE, MODELS, ONE_STEP, USUAL, model_of
from tests.tampering import corrupt, edit_json, tamper_json, tamper_model, tamper_settings, tamper_trace

CALIBRATED = ("config.json", "calibration.json", "README.md", "tests.jsonl")  # files that calibrate writes in a model


@dataclass
class Case:
    """A call in the fuzzing folder."""

    arguments: list[str]
    description: str
    writes: list[str] = field(default_factory=list)  # paths that it may change if it succeeds
    stdin: bytes | None = b""
    stdout: str = "captured"
    seconds: int = 60
    rows: int | None = None  # expected number of rows, if it accepts its input

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.arguments[0] if self.arguments else ""


def outputs(arguments: list[str]) -> list[str]:
    """Return the outputs of a call; for calibrate also files of its model."""
    paths = []
    for index, part in enumerate(arguments):
        name, _, value = part.partition("=")
        if name.startswith("-o") and not name.startswith("--"):
            paths.append(name[2:] or (arguments[index + 1 : index + 2] or [""])[0])
        elif len(name) > 4 and ("--output".startswith(name) or "--trace".startswith(name)):
            paths.append(value if "=" in part else (arguments[index + 1 : index + 2] or [""])[0])
    if arguments[:1] == ["calibrate"]:
        paths += [f"{model}/{name}" for model in arguments[1:] if model in MODELS for name in CALIBRATED]
    ignored = ("", "-") if arguments[:1] == ["predict"] else ("",)
    return [path for path in paths if path not in ignored]


# -- data ----------------------------------------------------------------------------------------


def _reading(dirty: Dirty, chance: random.Random, *, labels: bool = True, formats: bool = True) -> list[str]:
    """Return reading options that may be wrong."""
    options: list[str] = []
    names = [*dirty.columns, "text", "label", "no,perhaps,yes", "1", "x", ""]
    if formats and chance.random() < 0.15:
        options += ["--input-format", chance.choice([*FORMATS, "parquet"])]
    if formats and chance.random() < 0.1:
        options.append("--no-header")
    for option in ("--text-column", "--pair-column", *(["--label-column"] if labels else [])):
        if chance.random() < 0.12:
            options += [option, chance.choice(names)]
    return options


def _rows(dirty: Dirty, call: list[str]) -> int | None:
    return None if {"--input-format", "--no-header"} & {*call} else dirty.rows


def data_predict(chance: random.Random) -> Case:
    """Texts to predict."""
    dirty = write_dirty(Path.cwd() / "dirty", chance)
    call = ["predict", model_of(chance), dirty.name, *_reading(dirty, chance, labels=False)]
    if chance.random() < 0.4:
        call += ["--output", chance.choice(["out.jsonl", "out.tsv"])]
    call += ["--all-scores"] if chance.random() < 0.2 else []
    return Case(call, dirty.description, rows=_rows(dirty, call))


def data_evaluate(chance: random.Random, labels: str = "usual") -> Case:
    """Rows to evaluate on."""
    dirty = write_dirty(Path.cwd() / "dirty", chance, labels)
    call = ["evaluate", model_of(chance), "--file", dirty.name, *EVALUATE, "-o", "out", *_reading(dirty, chance)]
    return Case(call, dirty.description, rows=_rows(dirty, call))


def data_calibrate(chance: random.Random, labels: str = "usual") -> Case:
    """Rows to calibrate on."""
    dirty = write_dirty(Path.cwd() / "dirty", chance, labels)
    goal = chance.choice([["--risk", "0.4"], ["--speedup", "1.5"], ["--risk-type", "accuracy", "--risk", "0.4"]])
    call = ["calibrate", model_of(chance), "--file", dirty.name, *goal, *_reading(dirty, chance)]
    call += ["--temperature"] if chance.random() < 0.1 else []
    return Case(call, dirty.description)


def data_train(chance: random.Random, labels: str = "usual") -> Case:
    """Rows to train on, or to choose the checkpoint by."""
    dirty = write_dirty(Path.cwd() / "dirty", chance, labels)
    files = {"--train-file": "data/train.csv", "--dev-file": "data/dev.csv"}
    for name in chance.choice([["--train-file"], ["--dev-file"], *([[*files]] * (8 if labels == "odd" else 2))]):
        files[name] = dirty.name
    call = ["train", "encoder", *(part for pair in files.items() for part in pair), "--cpu", "--output", "out"]
    call += _reading(dirty, chance, formats=False)
    if chance.random() < 0.3:
        call += ["--problem", chance.choice(["single-label", "multi-label", "regression"])]
    if chance.random() < 0.4:
        call += ["--calibration-split", "0"]
    if chance.random() < 0.1:
        call += chance.choice([["--class-weights", "balanced"], ["--label-smoothing", "0.1"], ["--metric", "f1"]])
    return Case([*call, *ONE_STEP], dirty.description)


def data_of_a_task(chance: random.Random) -> Case:
    """A file instead of a known task's, to evaluate, to train or to submit; or a reference curve."""
    official = {"sst-2": "glue/SST-2/dev.tsv", "elue-sst-2": "glue/SST-2/dev.tsv"}
    task = chance.choice([*official] * 5 + ["mnli", "sts-b", "cola", "elue-mrpc", "qqp"])
    if task in official and chance.random() < 0.8:
        name, description = mangled(Path(official[task]), chance)
    else:
        dirty = write_dirty(Path.cwd() / "dirty", chance)
        name, description = dirty.name, dirty.description
    if chance.random() < 0.15:
        name, description = mangled(Path("reference.csv"), chance)
        return Case(["compare", "run", "other-run", "--elue-reference", name], description)
    both, suite = ["--train-file", name, "--dev-file", name], "elue" if task.startswith("elue") else "glue"
    call = chance.choice(
        [
            ["evaluate", "two", "--task", task, "--file", name, *EVALUATE],
            ["calibrate", "two", "--task", task, "--file", name, "--speedup", "1.5"],
            ["predict", "two", name, "--format", suite, "--task", task],
            ["train", "encoder", "--task", task, *both, "--cpu", *ONE_STEP],
        ]
    )
    return Case(call + ([] if call[0] == "calibrate" else ["--output", "out"]), f"{task}: {description}")


def label_columns(chance: random.Random) -> Case:
    """Odd labels, mostly to train on."""
    return chance.choice([data_train, data_train, data_train, data_evaluate, data_calibrate])(chance, "odd")


# -- calls, outputs, streams ----------------------------------------------------------------------


def options(chance: random.Random) -> Case:
    """Random options."""
    call = odd_options(chance)
    return Case(call, "", stdin=chance.choice([b"", b"good film\n", None]))


def odd_outputs(chance: random.Random) -> Case:
    """Odd output paths."""
    call, target, description = odd_output(chance)
    return Case(call, description, writes=[target])


def standard_streams(chance: random.Random) -> Case:
    """Standard input that is dirty or closed, standard output that cannot be written."""
    dirty = write_dirty(Path.cwd() / "dirty", chance, moves=False)
    content = dirty.content if chance.random() < 0.9 else None
    call = [
        "predict",
        "model",
        "-",
        "--input-format",
        dirty.format,
        *_reading(dirty, chance, labels=False, formats=False),
    ]
    stdout = chance.choice(["captured"] * 3 + ["full", "closed", "unread", "latin-1"])
    if stdout != "captured":
        call = chance.choice(
            [call, *(list(USUAL[name]) for name in USUAL), ["--help"], ["--version"], ["info", "no/such"]]
        )
    return Case(call, f"{dirty.description}, standard output {stdout}", stdin=content, stdout=stdout)


# -- tampered files ----------------------------------------------------------------------


def tampered_model(chance: random.Random) -> Case:
    """A model folder."""
    description = tamper_model(Path("model"), chance)
    call = list(USUAL[chance.choice(["info", "predict", "predict", "calibrate", "evaluate"])])
    if call[0] == "calibrate" and chance.random() < 0.5:
        call = ["calibrate", "model", "--risk", "0.3"]
    return Case(call, description)


def tampered_backbone(chance: random.Random) -> Case:
    """An encoder to train, or a model to train on; an original to convert."""
    folder = chance.choice(["encoder", "encoder", "model", "checkpoint"])
    if folder == "model":
        description = tamper_model(Path(folder), chance)
    else:
        file = chance.choice(sorted(Path(folder).iterdir()))
        edits = file.suffix == ".json" and chance.random() < 0.8
        description = f"{file.name} {edit_json(file, chance) if edits else corrupt(file, chance)}"
    if folder == "checkpoint":
        return Case(list(USUAL["convert"]), description)
    call = list(USUAL["train"])
    call[1] = folder
    return Case(call, f"{folder}: {description}")


def tampered_trace(chance: random.Random) -> Case:
    """A trace."""
    description = tamper_trace(Path("trace.safetensors"), chance)
    call = [*USUAL[chance.choice(["evaluate", "calibrate"])], "--trace", "trace.safetensors"]
    return Case(call, description)


def tampered_results(chance: random.Random) -> Case:
    """Results."""
    description = tamper_json(Path("other-run/results.json"), chance)
    more = chance.choice(
        [[], ["--policy", "layer"], ["--policy", "patience", "-o", "out"], ["--elue-reference", "reference.csv"]]
    )
    return Case([*USUAL["compare"], *more], description)


def tampered_settings(chance: random.Random) -> Case:
    """A file of options for train."""
    description = tamper_settings(Path("config.yaml"), chance)
    return Case(["train", "--config", "config.yaml", "--output", "out", *ONE_STEP], description)


def tampered_run(chance: random.Random) -> Case:
    """An interrupted run to resume."""
    files = [path for path in sorted(Path("begun").rglob("*")) if path.is_file()]
    file = chance.choice(files)
    edits = file.suffix == ".json" and chance.random() < 0.6
    description = f"{file}: {edit_json(file, chance) if edits else corrupt(file, chance)}"
    return Case(["train", "--config", "config.yaml", "--resume"], description, writes=["begun"])


KINDS: dict[str, tuple[int, Callable[[random.Random], Case]]] = {  # name → weight and function
    "data to predict": (17, data_predict),
    "data to evaluate": (8, data_evaluate),
    "data to calibrate": (8, data_calibrate),
    "data to train": (9, data_train),
    "data of a task": (5, data_of_a_task),
    "labels": (11, label_columns),
    "options": (22, options),
    "outputs": (14, odd_outputs),
    "streams": (5, standard_streams),
    "tampered model": (4, tampered_model),
    "tampered backbone": (3, tampered_backbone),
    "tampered trace": (2, tampered_trace),
    "tampered results": (2, tampered_results),
    "tampered settings": (3, tampered_settings),
    "tampered run": (2, tampered_run),
}


def draw(chance: random.Random, kind: str | None = None) -> tuple[str, Case]:
    """Return a random case; its files are written to the current folder."""
    kind = kind or chance.choices([*KINDS], [weight for weight, _ in KINDS.values()])[0]
    case = KINDS[kind][1](chance)
    case.writes += outputs(case.arguments)
    return kind, case
