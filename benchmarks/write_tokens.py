"""Write docs/results/token-classification.md from the records of tokens.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokens import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "results" / "token-classification.md"
LABELS = ("", "-risk5", "-lost")  # of adaptations of one tagger
SETS = {"conll": "CoNLL-2003", "sentences": "sentences of MRPC", "pii": "personal data (presidio's synthetic texts)"}
HEAD = """\
# Token classification

Taggers with early exits: what they cost in entities and what they save in time. Each tagger was fine-tuned with a head
after its last layer, adapted with `offramp adapt` without labels, and compared with itself at full depth on test texts
that neither step used. Written by `benchmarks/write_tokens.py` from the records of `benchmarks/tokens.py`.

*Other entities*: texts whose entities differ from those of the full model in float32. *Lost*: entities of the full
model that are missing, on average over texts with entities. *CPU time* is per text on one thread, tokenization and
decoding included, the median of interleaved passes in one process beside other jobs. *int8* is the same tagger without
early exits in ONNX Runtime int8. Long texts exit later than short ones, so the mean layers of words are more than those
of texts.

"""


def load(name: str) -> dict[str, Any] | None:
    """Return a record; None if the step was not run."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def models(step: str) -> list[tuple[str, str]]:
    """Return the names and data sets of the records of a step."""
    names = [file.stem.removeprefix(f"{step}-").rsplit("-", 1) for file in sorted(RESULTS.glob(f"{step}-*.json"))]
    return [(name, data) for name, data in names if data in SETS]


def trained() -> list[str]:
    """Return the table of fine-tuned taggers."""
    lines = ["## Fine-tuned taggers", ""]
    titles = ["data", "starts from", "recipe", "training texts", "epochs", "F1 of the last exit, development texts"]
    lines += [row("tagger", titles), "|---|---|---|---|---:|---:|---:|"]
    per_exit = []
    for name, data in models("train"):
        record = load(f"train-{name}-{data}") or {}
        f1 = [scores["entity_f1"] for scores in record["dev"]["dev"]]
        recipe, rows = record.get("recipe", "plain"), record["rows"] or "all"
        start = record.get("encoder", "the encoder")
        cells = [SETS[data], start, recipe, rows, f"{record['epochs']:g}", f"{100 * f1[-1]:.1f}"]
        lines.append(row(name, cells))
        if len(f1) > 1:
            per_exit += [
                "",
                f"F1 of the exits of {name}:",
                "",
                row("layer", record["exits"]),
                "|---" * (1 + len(f1)) + "|",
            ]
            per_exit.append(row("F1", [f"{100 * value:.1f}" for value in f1]))
    lines += per_exit
    records = [load(f"train-{name}-{data}") or {} for name, data in models("train")]
    machines = "; ".join(sorted({f"{record['machine']}, {record['date'][:10]}" for record in records}))
    return [*lines, "", f"Machine: {machines}.", ""]


def row(name: str, cells: Iterable[Any]) -> str:
    """Return a row of a table."""
    return f"| {name} | {' | '.join(map(str, cells))} |"


CRITERIA = {
    "least": "the least certain word (SENTEE)",
    "least 2": "mean of the 2 least certain words",
    "least 3": "mean of the 3 least certain words",
    "windows": "mean over a word and its neighbours, least certain",
    "product": "all words right, if independent (the policy `risk`)",
    "words": "words exit alone (TOKEE), optimistic",
}


def policies() -> list[str]:
    """Return what exit criteria save on recorded traces, and where exits agree with the full depth."""
    lines = []
    for file in sorted(RESULTS.glob("policies-*.json")):
        record = json.loads(file.read_text("utf-8"))
        targets = list(record["mean_layers"]["least"])
        lines += [
            f"## Exit criteria: {file.stem.removeprefix('policies-')}",
            "",
            f"Mean layers on {record['texts']:,} CoNLL-2003 test texts, at the largest threshold that changes a label",
            "in at most this fraction of the texts; mean ± standard deviation over five halves.",
            "`benchmarks/token_policies.py` describes the criteria.",
            "",
            row("criterion", [f"{100 * float(target):g} % of texts" for target in targets]),
            "|---" + "|---:" * len(targets) + "|",
        ]
        for key, title in CRITERIA.items():
            cells = record["mean_layers"][key]
            lines.append(row(title, [f"{mean:.2f} ± {spread:.2f}" for mean, spread in (cells[t] for t in targets)]))
        profile = record["profile"]
        lines += ["", "Texts in which all words have the label of the full depth, by exit:", ""]
        lines += [row("texts", ["number", *(f"layer {layer}" for layer in profile["layers"][:-1])])]
        lines += ["|---" + "|---:" * len(profile["layers"]) + "|"]
        for name, part in profile.items():
            if name != "layers":
                same = [f"{100 * value:.1f} %" for value in part["same"][:-1]]
                lines.append(row(name, [f"{part['texts']:,}", *same]))
        lines += ["", f"Machine: {record['machine']}, {record['date'][:10]}.", ""]
    return lines


def precisions() -> list[str]:
    """Return how many texts int8 changes, and which products are to blame."""
    lines = []
    for file in sorted(RESULTS.glob("int8-*.json")):
        record = json.loads(file.read_text("utf-8"))
        methods = list(record["changed"])
        lines += [
            f"## int8: {file.stem.removeprefix('int8-')}",
            "",
            f"Texts with other entities than in float32, at full depth, of {record['texts']:,} CoNLL-2003 development",
            "texts, and CPU milliseconds per text, one thread. `benchmarks/int8_products.py`.",
            "",
            row("in float32", [f"{cell} {method}" for method in methods for cell in ("changed,", "ms,")]),
            "|---" + "|---:" * (2 * len(methods)) + "|",
        ]
        for group in record["changed"][methods[0]]:
            cells = []
            for method in methods:
                time = record["milliseconds"][f"{method}, {group} in float32"]
                cells += [f"{100 * record['changed'][method][group]:.2f} %", f"{time:.2f}"]
            lines.append(row(group, cells))
        lines += ["", f"Everything in float32: {record['milliseconds']['float32']:.2f} ms. Measured beside other jobs."]
        lines += ["", f"Machine: {record['machine']}, {record['date'][:10]}.", ""]
    return lines


def adapted(name: str, data: str) -> list[str]:
    """Return the section of a tagger with all its adaptations, and with its own exits if they were calibrated."""
    lines = [f"## {name} on {SETS[data]}", ""]
    records = [(label, load(f"adapt-{name}-{data}{label}")) for label in LABELS]
    sections = [adaptation(record, f"{name}-{data}{label}") for label, record in records if record is not None]
    if (exported := load(f"export-{name}-{data}-own")) is not None:
        sections.append(own_exits(exported, f"{name}-{data}-own"))
    return [*lines, *(line for section in sections for line in section)] if sections else [*lines, "Not adapted.", ""]


def own_exits(record: dict[str, Any], key: str) -> list[str]:
    """Return the guarantees of a tagger's own exits, which `offramp calibrate` chose a threshold for."""
    layers = ", ".join(map(str, record["layers"]))
    return [
        "### Its own exits",
        "",
        f"On layers {layers}, trained with the tagger; exported in {record['precision']}, calibrated without labels.",
        "",
        *calibrated(key),
    ]


def calibrated(key: str) -> list[str]:
    """Return the guarantees of a model about texts and about entities, and the comparisons on test texts."""
    lines = []
    for kind in ("disagreement", "lost"):
        if (calibration := load(f"calibrate-{key}-{kind}")) is not None:
            lines += [calibration["sentence"], ""]
            lines += compared(load(f"check-{key}-{kind}")) if calibration["holds"] else []
    return lines


def adaptation(record: dict[str, Any], key: str) -> list[str]:
    """Return one adaptation, and the comparisons on test texts."""
    epochs = f"; {record['training']['epochs']:g} epochs" if record["training"]["epochs"] else ""
    limited = "entities lost" if record.get("risk_type") == "lost" else "texts"
    lines = [f"### {100 * record['risk']:g} % of {limited}", ""]
    lines += [f"{record['texts']:,} texts without labels{epochs}.", ""]
    lines += [record["sentence"], ""]
    if not record["holds"]:
        return lines
    lines += [f"Exits on layers {', '.join(map(str, record['layers']))}.", ""]
    lines += compared(load(f"check-{key}"))
    again = calibrated(key)
    return [*lines, "Calibrated again on other texts:", "", *again] if again else lines


def compared(record: dict[str, Any] | None) -> list[str]:
    """Return the comparison of a tagger with its full depth on test texts."""
    if record is None:
        return ["Not compared on test texts.", ""]
    count = record["texts"]
    lines = [
        f"On {count:,} test texts with {record['entities']:,} entities of the full model:",
        "",
        row("model", ["F1", "other entities", "lost", "mean layers of texts", "of words", "CPU time per text"]),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    seconds = {key: statistics.median(values) for key, values in record["seconds_per_text"].items()}
    titles = {"full": "full depth, float32", "int8": f"full depth, {record['precision']['int8']}"}
    titles["fast"] = f"early exits, {record['precision']['fast']}"
    titles |= {name: f"all texts exit on {name}" for name in record["results"] if name.startswith("layer ")}
    for key, title in titles.items():
        result = record["results"][key]
        f1 = "" if result["f1"] is None else f"{100 * result['f1']:.1f}"
        other, lost = f"{100 * result['other_entities'] / count:.1f} %", f"{100 * result['lost_on_average']:.1f} %"
        time = f"{1000 * seconds[key]:.2f} ms" if key in seconds else "not measured"
        layers = [f"{result[name]:.2f}" for name in ("mean_layers", "mean_layers_of_words")]
        lines.append(row(title, [f1, other, lost, *layers, time]))
    speedup = seconds["int8"] / seconds["fast"]
    spread = max(max(values) / min(values) for values in record["seconds_per_text"].values())
    lines += ["", f"{speedup:.2f} × full-depth int8, on {record['timed']:,} texts."]
    lines += [f"The slowest pass took {spread:.2f} × the time of the fastest.", ""]
    if record["by_type"]:
        lines += ["| type | F1 with early exits | labelled entities |", "|---|---:|---:|"]
        lines += [f"| {kind} | {100 * s['f1']:.1f} | {s['support']:.0f} |" for kind, s in record["by_type"].items()]
        lines.append("")
    return [*lines, f"Machine: {record['machine']}, {record['date'][:10]}.", ""]


def main() -> None:
    """Write the page."""
    names = sorted({*models("train"), *models("adapt")})
    sections = [line for name, data in names for line in adapted(name, data)]
    PAGE.write_text(HEAD + "\n".join([*trained(), *sections, *policies(), *precisions()]).rstrip() + "\n", "utf-8")


if __name__ == "__main__":
    main()
