"""The measured part of docs/serving.md, from benchmarks/results/{load,drift,serving-batches,cluster}.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
MARK, END = "<!-- measured: written by benchmarks/write_serving.py -->", "<!-- end -->"


def read(name: str) -> dict[str, Any] | None:
    """A result, if it was measured."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def load(told: dict[str, Any]) -> list[str]:
    """Latency and goodput of the three servers."""
    servers = told["servers"]
    limit = f"{1000 * told['limit']:.0f} ms"
    head = f"| server | capacity | goodput at p99 ≤ {limit} | " + " | ".join(
        f"{share} × capacity: p50 / p95 / p99" for share in (0.3, 0.6, 0.9, 1.1)
    )
    lines = [head + " |", "|---|---:|---:" + "|---:" * 4 + "|"]
    for name, one in servers.items():
        points = [" / ".join(f"{1000 * point[key]:.0f}" for key in ("p50", "p95", "p99")) for point in one["own"]]
        cells = [name, f"{one['capacity']:.0f}", f"{one['goodput']['rate']:.0f}", *points]
        lines.append(f"| {' | '.join(cells)} |")
    first, *others = servers.items()
    ratios = [f"{first[1]['goodput']['rate'] / one['goodput']['rate']:.2f} × that of *{name}*" for name, one in others]
    over = first[1]["overload"]
    refused = over["statuses"].get("429", 0) / sum(over["statuses"].values())
    strange = {status for status in over["statuses"] if status not in ("200", "429")}
    lines += ["", f"The goodput of *{first[0]}* is {', '.join(ratios)}.", ""]
    text = (
        f"Ten times its capacity for five seconds: {100 * refused:.0f} % were refused with 429"
        f"{', others got ' + ', '.join(sorted(strange)) if strange else ', nobody got anything else than an answer'}; "
        f"`/health` took "
        f"{1000 * over['health_worst']:.0f} ms at worst, memory went from {first[1]['memory'][0]:.0f} to "
        f"{first[1]['memory'][1]:.0f} MB."
    )
    lines.append(text)
    if soak := first[1].get("soak"):
        count = sum(soak["statuses"].values())
        at = ", ".join(f"{one:.0f}" for one in soak["memory"])
        text = (
            f"{count:,} requests in {soak['seconds'] / 60:.1f} minutes, all answered with "
            f"{', '.join(soak['statuses'])}: resident megabytes after every tenth of them: {at}."
        )
        lines += ["", text]
    about = (
        f"`benchmarks/load.py`, {told['date']}, {told['cpu']}; {told['model']} ({told['backend']}, int8, 12 × 768), "
        "872 sentences of SST-2's dev set, one text per request; the server on one core, the client on the other; "
        f"{told['seconds']:.0f} s per point, Poisson arrivals, latency in milliseconds from when a text was meant to "
        "be sent. *never* is the same server at full depth; the plain one is FastAPI around a full-depth int8 graph in "
        "ONNX Runtime, a few lines (`benchmarks/plain_server.py`)."
    )
    return ["### Load", "", about, "", *lines, "", "![latency by rate](figures/load.svg)", ""]


def drift(told: dict[str, Any]) -> list[str]:
    """What the audit said of two streams."""
    lines = []
    for name, one in told["streams"].items():
        end, alarms = one["at the end"], one["alarms"]
        half = one["at half time"]["audited"]
        raised = [
            f"{'drift' if kind == 'drifts' else 'broken'} after {place['audited'] - half:,} audited texts of that half"
            for kind, place in alarms.items()
        ]
        lines.append(
            f"- {name}: {end['different']} of {end['audited']:,} audited answers differ, {100 * end['promised']:.0f} % "
            f"were promised; {'alarms: ' + ', '.join(raised) if raised else 'no alarm'}."
        )
    about = (
        f"`benchmarks/drift.py`, {told['date']}, {told['cpu']}: all-MiniLM-L6-v2 adapted to SST-2, served with "
        f"`--audit {told['share']:g}`; {told['texts']:,} rows of SST-2 that nobody used, and a stream whose second "
        "half is sentences of STS-B."
    )
    return ["### A stream that turns", "", about, "", *lines, ""]


def cluster(told: dict[str, Any]) -> list[str]:
    """A million rows."""
    one, many = told["one process"], told["ray"]
    text = (
        f"`benchmarks/cluster.py`, {told['date']}, {told['cpu']}, {told['rows']:,} short texts in Parquet, a tiny "
        f"model: one process {told['rows'] / one['seconds']:,.0f} rows a second ({one['memory']:.0f} MB at most); "
        f"`--engine ray --workers {many['workers']}` {told['rows'] / many['seconds']:,.0f} rows a second, everything "
        f"included (a worker {many['memory']:.0f} MB at most)."
    )
    return ["### A million rows", "", text, ""]


def main() -> None:
    """Fill the page's marked part."""
    parts = []
    for name, write in {"load": load, "drift": drift, "cluster": cluster}.items():
        told = read(name)
        parts += [f"Not measured yet: {name}.", ""] if told is None else write(told)
    before, rest = PAGE.read_text("utf-8").split(MARK, 1)
    PAGE.write_text(f"{before}{MARK}\n\n" + "\n".join(parts) + END + rest.split(END, 1)[1], "utf-8")


if __name__ == "__main__":
    main()
