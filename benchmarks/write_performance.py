"""Write docs/results/speed.md, its figures and a table of the README from the files in benchmarks/results/runtimes.

python benchmarks/write_performance.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from cost_sections import adapting, calls, processes
from offramp.report.figures import COLORS
from saved_results import policy_title

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runtimes"
PAGE = HERE.parent / "docs" / "results" / "speed.md"
FIGURES = HERE.parent / "docs" / "figures"
README = HERE.parent / "README.md"
MARK, END = "<!-- runtimes: written by benchmarks/write_performance.py -->", "<!-- end -->"
MODELS = {"mpnet": "all-mpnet-base-v2 (12 × 768)", "minilm": "all-MiniLM-L6-v2 (6 × 384)"}
# names in the saved results, and how they are shown
NAMES = {
    "plain Hugging Face, as it comes": "plain Hugging Face",
    "torch float32 again (A/A)": "torch float32, repeated (A/A)",
    "transformers' pipeline": "transformers pipeline",
    "the originals' way: one row, padded to 128": "originals: batch size 1, padded to 128",
    "OpenVINO int8 by NNCF": "OpenVINO int8 (NNCF)",
}

RUNTIME_COLOURS = {"ONNX Runtime": COLORS[0], "OpenVINO": COLORS[1], "torch": "#555555"}
MARKERS = {
    "bfloat16": "s",
    "int8-static": "^",
    "int8-mixed": "<",
    "int8-token": "v",
    "int8-dynamic": "D",
    "int8-nncf": "P",
}
TICKS = (10, 20, 50, 100, 200, 500, 1000)
CURVES = {"full": "full depth", "leaving": "early exits"}  # keys of the saved results, and how they are shown

INTRODUCTION = """\
`benchmarks/write_performance.py` writes this page from the files in `benchmarks/results/runtimes`. [Export to ONNX
Runtime and OpenVINO](../how-to/export.md) explains how to export, tune and measure your own model.

## Setup

**Models.** Both encoders were fine-tuned on GLUE SST-2 with `--recipe plain --epochs 2`: all-mpnet-base-v2 on 6,000
rows, all-MiniLM-L6-v2 on 12,000. `offramp adapt` then added exits, one of them on the embeddings (layer 0), using
12,000 other training sentences without labels ([Speed up a classifier](../how-to/adapt.md)). The encoders did not
change.

**Guarantee.** On texts like those of the guarantee: at most 2 % of the predictions differ from the full float32
model's, at 90 % confidence. The guarantee was tested on training rows of SST-2, which are mostly phrases. The dev
rows are whole sentences and harder: with a guarantee of 2 %, 2.5 to 3.1 % of the predictions differ on dev. For the
tables on dev, the models were calibrated again on 5,000 to 8,000 further training rows. The risk (1.3 % for
all-MiniLM-L6-v2, 1.5 % for all-mpnet-base-v2) was chosen by looking at dev, so that at least 98 % of its predictions
are the same. These tables compare speed at equal agreement; they do not test a guarantee.

**Texts.** SST-2's 872 dev sentences. *Texts like those of the guarantee* are 600 training rows that nothing else
used (400 for all-mpnet-base-v2).

**Timing.** Times include tokenization. All entries take turns. Batches contain texts of similar length, except for
*plain Hugging Face*, *transformers pipeline* and *originals*, which take texts in the order of the input.

**Columns.** *spread*: slowest and fastest round. *same*: share of predictions equal to those of the full float32
model. *layers*: mean layers per text; an exit on layer 0 counts as none. *÷ plain*: throughput relative to plain
Hugging Face. *÷ best baseline*: relative to the fastest full-depth entry that has at least as many same predictions.
Entries marked with \\* have less than 98 % same predictions and are not used as a baseline.

The commands, with MODEL, FAST and GLUE as folders:

```console
$ offramp adapt MODEL texts.txt --backend onnx --threads 1 --risk 0.02 --confidence 0.9 --output FAST
$ offramp tune FAST --backend openvino --file other-texts.txt --threads 1 --risk 0.02 --confidence 0.9
$ offramp calibrate FAST --backend onnx --policy risk --risk 0.013 --class-risk none --file other-texts.txt
$ offramp benchmark FAST --task sst-2 --data-dir GLUE --threads 1 --batch 1,8,32 --rows N --json results.json
$ offramp benchmark FAST --texts fresh-texts.txt --threads 1 --batch 1,32 --rows N --json similar.json
$ python benchmarks/runtimes.py precisions|tuned|one-file|growth FAST --data-dir GLUE
$ python benchmarks/runtimes.py forced
```

all-mpnet-base-v2 was adapted with `--variations 4 --epochs 6.4`, which takes longer than the default and made no
clear difference. [Quality](quality.md#where-texts-exit) shows at which layers texts exit.
"""
EARLIER = """\
## Measurements of earlier models

The sections below were measured with models of 2026-11-17, unless a later date is given: all-mpnet-base-v2 fine-tuned
with `joint`, exits on the layers only, a guarantee of 1 %."""


def read(name: str) -> dict[str, Any] | None:
    """Return a saved result, or None if it was not measured."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def machine(result: dict[str, Any]) -> str:
    """Return date, CPU, threads and version."""
    threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    return f"{result['date'][:10]}, {result['cpu']}, {threads}, torch {result['torch']}."


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table with numbers to the right."""
    return [
        f"| {' | '.join(head)} |",
        "|---" + "|---:" * (len(head) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def display_name(name: str) -> str:
    """Return an entry's name as it is shown."""
    return re.sub(r", the first (\d+) layers", r", first \1 layers", NAMES.get(name, name))


def with_display_names(result: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark's results with the names that are shown."""
    rows = [
        row | {"name": display_name(row["name"]), "best_peer": display_name(row["best_peer"] or "")}
        for row in result["rows"]
    ]
    return result | {"rows": rows}


def batches_of(result: dict[str, Any]) -> list[int]:
    """Return the batch sizes of a benchmark."""
    return list(dict.fromkeys(row["batch"] for row in result["rows"]))


def fastest(result: dict[str, Any], batch: int) -> dict[str, Any]:
    """Return the fastest early-exit entry of a batch size."""
    rows = [row for row in result["rows"] if row["batch"] == batch and row["name"].startswith("offramp")]
    return max(rows, key=lambda row: row["throughput"])


def comparison(name: str, title: str) -> list[str]:
    """Return the tables of all entries, the figure, and the speedups."""
    saved = read(f"benchmark-{name}")
    lines = [f"## {title}: early exits against baselines", ""]
    if saved is None:
        return [*lines, "Not run yet.", ""]
    result = with_display_names(saved)
    policies = "; ".join(f"{entry}: {policy_title(policy)}" for entry, policy in result["policies"].items())
    lines += [
        (
            f"{machine(result)} {result['data']['rows']} texts, {result['data']['tokens']} tokens on average, "
            f"{result['rounds']} rounds; times on {result['timed']} of the texts. Policies: {policies}."
        ),
        "",
        *_speedups(result),
        "",
    ]
    draw(result, FIGURES / f"performance-{name}.svg")
    lines += [f"![Same predictions against throughput](../figures/performance-{name}.svg)", ""]
    columns = ["texts/s", "spread", "p50 / p95 / p99 ms", "same", "score", "layers", "MB", "÷ plain", "÷ best baseline"]
    for batch in batches_of(result):
        rows = [_entry_row(row) for row in result["rows"] if row["batch"] == batch]
        lines += [*table([f"batch {batch}", *columns], rows), ""]
    return lines


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw same predictions against throughput: a panel per batch size, a marker per entry."""
    batches = batches_of(result)
    figure, axes = plt.subplots(
        1, len(batches), figsize=(3.1 * len(batches) + 2.6, 4.2), sharey=True, layout="constrained"
    )
    for panel, (axis, batch) in enumerate(zip(axes, batches, strict=True)):
        for row in (row for row in result["rows"] if row["batch"] == batch):
            runtime = next((name for name in RUNTIME_COLOURS if name in row["name"]), "torch")
            marker = "X" if ", first" in row["name"] else MARKERS.get(row["dtype"], "o")
            marker = {"plain Hugging Face": ">", "transformers pipeline": "<"}.get(row["name"], marker)
            marker = "p" if row["name"].startswith("originals") else marker
            filled = RUNTIME_COLOURS[runtime] if row["adaptive"] else "none"
            style = {"markersize": 8 if row["adaptive"] else 6, "markerfacecolor": filled, "linestyle": "none"}
            label = row["name"] if panel == 0 else None
            axis.plot(
                row["throughput"], 100 * row["agreement"], marker, color=RUNTIME_COLOURS[runtime], label=label, **style
            )
        axis.set(xscale="log", xlabel="texts per second", title=f"batch size {batch}")
        axis.xaxis.set_major_locator(FixedLocator(TICKS))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([str(tick) for tick in TICKS])
        low, high = (limit([row["throughput"] for row in result["rows"]]) for limit in (min, max))
        axis.set_xlim(0.8 * low, 1.25 * high)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("same predictions as the full float32 model, %")
    figure.legend(loc="outside right upper", fontsize=7, frameon=False, title="filled: early exits; hollow: full depth")
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _entry_row(row: dict[str, Any]) -> list[str]:
    slowest, fastest_round = row["spread"]
    latency = "" if row["p50_ms"] is None else " / ".join(f"{row[key]:.1f}" for key in ("p50_ms", "p95_ms", "p99_ms"))
    name = row["name"] + ("" if row["counts"] else " \\*")
    cells = [f"**{name}**" if row["adaptive"] else name, f"{row['throughput']:.1f}"]
    cells += [f"{slowest:.0f}–{fastest_round:.0f}", latency]
    cells += [f"{row['agreement']:.1%}", "" if row["score"] is None else f"{100 * row['score']:.1f}"]
    cells += [f"{row['mean_layers']:.2f}", "" if row["memory_mb"] is None else f"{row['memory_mb']:.0f}"]
    return [*cells, *("" if row[key] is None else f"{row[key]:.2f}" for key in ("to_plain", "to_best_peer"))]


def _speedups(result: dict[str, Any]) -> list[str]:
    """Return the speedup of the fastest early-exit entry, by batch size."""
    originals = next((row for row in result["rows"] if row["name"].startswith("originals")), None)
    rows = []
    for batch in batches_of(result):
        best = fastest(result, batch)
        full = next((row for row in result["rows"] if row["batch"] == batch and _is_full_depth(row, best)), None)
        cells = [str(batch), best["name"], best["best_peer"], f"**{best['to_best_peer']:.2f}**"]
        cells += ["" if best["to_plain"] is None else f"{best['to_plain']:.2f}"]
        cells += ["" if originals is None else f"{best['throughput'] / originals['throughput']:.1f}"]
        if full is None:
            cells += ["", "", ""]
        else:
            computed = full["mean_layers"] / best["mean_layers"]
            measured = best["throughput"] / full["throughput"]
            cells += [f"{computed:.2f} ×", f"{measured:.2f} ×", f"{measured / computed:.2f}"]
        rows.append(cells)
    head = ["batch", "fastest early-exit model", "best baseline", "÷ best baseline", "÷ plain", "÷ originals"]
    head += ["computed speedup", "measured", "measured ÷ computed"]
    text = "*computed* and *measured* compare with full depth in the same runtime and precision."
    return [*table(head, rows), "", text]


def _is_full_depth(row: dict[str, Any], best: dict[str, Any]) -> bool:
    same = row["backend"] == best["backend"] and row["dtype"] == best["dtype"]
    return same and not row["adaptive"] and ", first" not in row["name"]


def precisions(name: str, title: str) -> list[str]:
    """Return how int8 changes predictions and exits."""
    result = read(f"precisions-{name}")
    if result is None:
        return []
    lines = [
        f"## {title}: how int8 changes predictions",
        "",
        (
            f"{machine(result)} {result['texts']} texts, all exits exported. Columns {result['layers'][0]} to "
            f"{result['layers'][-1]}: "
            "share of predictions equal to PyTorch's at that exit, in percent. *max. logit difference*: largest "
            "difference from PyTorch's logits. *other exits*: texts that exit elsewhere than in float32 with "
            f"{policy_title(result['policy'])}. *alone / in a batch*: texts that exit elsewhere alone than in a batch "
            "of 32."
        ),
        "",
    ]
    head = ["", *map(str, result["layers"]), "max. logit difference", "other exits", "alone / in a batch"]
    rows = []
    for row in result["rows"]:
        smooth = ", smoothed" if row["smoothed"] else ""
        cells = [f"{row['precision']}{smooth}", *(f"{100 * share:.1f}" for share in row["agreement"])]
        rows.append([*cells, f"{row['worst']:.2g}", f"{row['other_exits']:.1%}", f"{row['other_exits_by_batch']:.1%}"])
    return [*lines, *table(head, rows), ""]


def tuned(name: str, title: str) -> list[str]:
    """Return measured ÷ computed of the export that `tune` made."""
    results = [result for threads in (1, 2) if (result := read(f"tuned-{name}-{threads}")) is not None]
    if not results:
        return []
    head = ["threads, batch", "full depth, repeated", "computed", "by token", "operations", "measured"]
    head += ["÷ computed", "÷ by token", "÷ operations"]
    rows = []
    for result in results:
        for row in result["rows"]:
            measured = row["full"] / row["leaving"]
            cells = [f"{result['threads']}; batch {row['batch']}", f"{row['full again'] / row['full']:.2f}"]
            computed = [row.get(key) for key in ("computed", "computed_by_token", "computed_by_operations")]
            cells += ["" if value is None else f"{value:.2f} ×" for value in computed] + [f"{measured:.2f} ×"]
            cells += ["" if value is None else f"{measured / value:.2f}" for value in computed]
            rows.append(cells)
    first = results[0]
    exits, policy = ", ".join(map(str, first["exits"])), policy_title(first["policy"])
    operators = ", ".join(f"{operator} {100 * share:.0f} %" for operator, share in first["profile"].items())
    return [
        f"## {title}: measured and computed speedup with the exits selected by `tune`",
        "",
        (
            f"{machine(first)} Exits on layers {exits}; {policy}; {first['precision']}; {first['texts']} texts. "
            "*computed* counts layers. *by token* weights the layers of a text with its length, because hard sentences "
            "are longer. *operations* also counts the heads, that of layer 0 included. *full depth, repeated*: the "
            "second of two measurements relative to the first."
        ),
        "",
        *table(head, rows),
        "",
        f"Time by operator at full depth, one batch of 32, one thread: {operators}.",
        "",
    ]


def forced() -> list[str]:
    """Return measured ÷ computed with forced exits."""
    lines = ["## Measured and computed speedup with forced exits, ONNX Runtime int8-static", ""]
    lines += [
        "Encoders with random weights, twelve layers. Exit layers are drawn uniformly and forced. *never*: time of"
    ]
    lines += ["all segments without exits, relative to one full-depth graph."]
    for hidden in (768, 384):
        result = read(f"forced-{hidden}")
        if result is None:
            continue
        lines += ["", f"**12 × {hidden}**. {machine(result)}", ""]
        head = ["exits, batch", "full depth, repeated", "never", "computed", "measured", "measured ÷ computed"]
        rows = []
        for row in result["rows"]:
            measured = row["full"] / row["leaving"]
            exits = "every layer" if len(row["exits"]) == 12 else ", ".join(map(str, row["exits"]))
            cells = [f"{exits}; batch {row['batch']}", f"{row['full again'] / row['full']:.2f}"]
            cells += [f"{row['never'] / row['full']:.2f}", f"{row['computed']:.2f} ×", f"{measured:.2f} ×"]
            rows.append([*cells, f"**{measured / row['computed']:.2f}**"])
        lines += table(head, rows)
    return [*lines, ""]


def one_file(name: str, title: str) -> list[str]:
    """Return how the single-file export compares with the loop over segments."""
    result = read(f"one-file-{name}")
    if result is None:
        return []
    head = ["batch", "segments, seconds", "single file, seconds", "ratio", "other exits"]
    rows = [
        [
            str(row["batch"]),
            f"{row['loop']:.2f}",
            f"{row['one file']:.2f}",
            f"{row['one file'] / row['loop']:.2f}",
            f"{row['other_exits']} of {row['texts']}",
        ]
        for row in result["rows"]
    ]
    lines = [f"## {title}: the single-file export (`--one-file`)", "", machine(result), "", *table(head, rows), ""]
    if node := result["node"]:
        count = f"{node['texts']:,} texts" if "texts" in node else f"{node['batches']} batches"
        what = "scores" if "texts" in node else "logits"
        text = (
            f"From Node.js (`examples/one_file.mjs`, onnxruntime-node {node['onnxruntime-node']}), {count}: "
            f"{node['other_exits']} texts exit elsewhere than in Python, and {what} differ by at most "
            f"{node[f'{what}_apart']:.1g}."
        )
        lines += [text, ""]
    return lines


def growth(name: str, title: str) -> list[str]:
    """Return throughput by text length and by batch size."""
    result = read(f"growth-{name}")
    if result is None:
        return []
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, key, rows in ((axes[0], "length", result["lengths"]), (axes[1], "batch", result["sizes"])):
        for colour, (way, label) in zip(COLORS, CURVES.items(), strict=False):
            axis.plot([row[key] for row in rows], [row[way] for row in rows], "o-", color=colour, label=label)
        axis.set(xscale="log", yscale="log", xlabel="tokens per text" if key == "length" else "batch size")
        axis.set_xticks([row[key] for row in rows], [str(row[key]) for row in rows])
        axis.minorticks_off()
    axes[0].set(ylabel="texts per second", title=f"{result['rows']} texts of random words")
    axes[1].set(title="dev sentences")
    axes[0].legend(frameon=False)
    figure.savefig(FIGURES / f"growth-{name}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = (
        f"{machine(result)} Policy: {policy_title(result['policy'])}. How early texts of random words exit says "
        "nothing about real texts, so the left figure is only an example."
    )
    return [
        f"## {title}: longer texts and larger batches",
        "",
        text,
        "",
        f"![Throughput by text length and batch size](../figures/growth-{name}.svg)",
        "",
    ]


def summary() -> list[str]:
    """Return the page's first sentences: the fastest early-exit model per encoder, and the machine."""
    lines, machines = [], set()
    for name, title in MODELS.items():
        saved = read(f"benchmark-{name}")
        if saved is None:
            continue
        best = fastest(saved, 32)
        lines.append(
            f"- {title}, int8: {best['throughput']:.0f} texts per second at batch size 32, "
            f"{best['to_best_peer']:.1f} × the best full-depth baseline and {best['to_plain']:.0f} × plain Hugging "
            f"Face; {best['agreement']:.1%} same predictions."
        )
        machines.add(machine(saved))
    return [*lines, f"- {' '.join(sorted(machines))} Each claim is measured against the baselines in the same run."]


def short() -> str:
    """Return the README's table: the fastest adaptive model against plain Hugging Face and the best int8 baseline."""
    lines: list[str] = []
    for name, title in MODELS.items():
        results = read(f"benchmark-{name}")
        if results is None:
            continue
        if not lines:
            threads = f"{results['threads']} thread{'s' if results['threads'] > 1 else ''}"
            machine = f"{results['cpu']}, {threads}, {results['date'][:10]}"
            caption = "Texts per second of classifiers fine-tuned on SST-2, measured on its dev sentences"
            lines += [f"{caption}. {machine}.", ""]
            columns = ["encoder (layers × width)", "batch", "plain Hugging Face", "best int8 baseline", "offramp"]
            lines += [f"| {' | '.join([*columns, 'agreement', 'accuracy'])} |"]
            lines += ["|---|---|---|---|---|---|---|"]
        for batch in (1, 32):
            rows = [row for row in results["rows"] if row["batch"] == batch and row["name"].startswith("offramp")]
            best = max((row for row in rows if row["to_best_peer"]), key=lambda row: row["throughput"])
            plain, baseline = best["throughput"] / best["to_plain"], best["throughput"] / best["to_best_peer"]
            offramp = f"**{best['throughput']:.0f}** ({best['to_best_peer']:.1f}× int8, {best['to_plain']:.0f}× plain)"
            full = next(row["score"] for row in results["rows"] if row["name"].startswith("plain Hugging Face"))
            quality = f"{best['agreement']:.1%} | {best['score']:.1%} (full model {full:.1%})"
            lines += [f"| {title} | {batch} | {plain:.0f} | {baseline:.0f} | {offramp} | {quality} |"]
    return "\n".join(lines)


def main() -> None:
    """Write the page, the figures and the README's table."""
    plt.switch_backend("Agg")
    plt.rcParams["svg.hashsalt"] = "offramp"
    lines = ["# Speed", "", *summary(), "", INTRODUCTION]
    lines.append("")
    for name, title in MODELS.items():
        lines += comparison(name, title)
        lines += comparison(f"{name}-kind", f"{title}, on texts like those of the guarantee")
    lines += [*adapting(), *calls(), *processes(), EARLIER, ""]
    for section in (precisions, tuned):
        for name, title in MODELS.items():
            lines += section(name, title)
    lines += forced()
    for section in (one_file, growth):
        for name, title in MODELS.items():
            lines += section(name, title)
    before, mark, rest = README.read_text("utf-8").partition(MARK)
    if mark:
        README.write_text(f"{before}{MARK}\n{short()}\n{END}{rest.split(END, 1)[1]}", "utf-8")
    notes = RESULTS / "notes.md"
    PAGE.write_text("\n".join(lines).rstrip() + "\n" + (notes.read_text() if notes.is_file() else ""), "utf-8")


if __name__ == "__main__":
    main()
