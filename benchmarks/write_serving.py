"""Write docs/results/server.md from benchmarks/results: load, attack, clients, soak, drift, audits, batch jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from load import draw

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "server.md"
NAMES = {"offramp, leaving early": "offramp, early exits", "offramp, never": "offramp, full depth"}
MARK, END = "<!-- measured: written by benchmarks/write_serving.py -->", "<!-- end -->"


def read(name: str) -> dict[str, Any] | None:
    """Return a saved result, or None if it was not measured."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def load(result: dict[str, Any]) -> list[str]:
    """Return the section about latency and goodput of the three servers."""
    servers = {NAMES.get(name, name): server for name, server in result["servers"].items()}
    draw(servers, result["limit"])
    limit = f"{1000 * result['limit']:.0f} ms"
    head = f"| server | capacity | goodput at p99 ≤ {limit} | " + " | ".join(
        f"{share} × capacity: p50 / p95 / p99" for share in (0.3, 0.6, 0.9, 1.1)
    )
    lines = [head + " |", "|---|---:|---:" + "|---:" * 4 + "|"]
    for name, server in servers.items():
        points = [" / ".join(f"{1000 * point[key]:.0f}" for key in ("p50", "p95", "p99")) for point in server["own"]]
        cells = [name, f"{server['capacity']:.0f}", f"{server['goodput']['rate']:.0f}", *points]
        lines.append(f"| {' | '.join(cells)} |")
    (first_name, first), *others = servers.items()
    ratios = [f"{first['goodput']['rate'] / other['goodput']['rate']:.2f} × that of *{name}*" for name, other in others]
    overload = first["overload"]
    refused = overload["statuses"].get("429", 0) / sum(overload["statuses"].values())
    unexpected = sorted(status for status in overload["statuses"] if status not in ("200", "429"))
    lines += ["", f"The goodput of *{first_name}* is {' and '.join(ratios)}.", ""]
    text = (
        f"Overload, ten times the capacity for five seconds: {100 * refused:.0f} % of the requests were rejected with "
        f"429; {'others got ' + ', '.join(unexpected) if unexpected else 'all others were answered'}. `/health` "
        f"responded within {1000 * overload['health_worst']:.0f} ms. Memory went from {first['memory'][0]:.0f} to "
        f"{first['memory'][1]:.0f} MB."
    )
    lines.append(text)
    about = (
        f"`benchmarks/load.py`, {result['date']}, {result['cpu']}. Model: {result['model']} ({result['backend']}, "
        "int8, 12 × 768). Texts: 872 sentences of SST-2's dev set, one per request. The server runs on one core and "
        f"the client on the other. {result['seconds']:.0f} s per point, Poisson arrivals. Capacity and goodput are in "
        "texts per second; latency is in milliseconds from the scheduled send time. *offramp, full depth* is the same "
        "server with the policy `never`."
    )
    if any("plain" in name for name in result["servers"]):
        about += " The plain server is FastAPI with a full-depth int8 graph in ONNX Runtime "
        about += "(`benchmarks/plain_server.py`)."
    return ["## Load", "", about, "", *lines, "", "![latency by request rate](../figures/load.svg)", ""]


def load_rankings(result: dict[str, Any]) -> list[str]:
    """Return the section about the goodput of a reranker."""
    limit = f"{1000 * result['limit']:.0f} ms"
    lines = [f"| server | capacity | goodput at p99 ≤ {limit} | p50 / p95 / p99 at this rate |", "|---|---:|---:|---:|"]
    servers = {NAMES.get(name, name): server for name, server in result["servers"].items()}
    for name, server in servers.items():
        best = server["goodput"]
        times = " / ".join(f"{1000 * best[key]:.0f}" for key in ("p50", "p95", "p99")) if "p99" in best else ""
        lines.append(f"| {name} | {server['capacity']:.2f} | {best['rate']:.2f} | {times} |")
    about = (
        f"`benchmarks/load.py --rankings`, {result['date']}, {result['cpu']}. Model: {result['model']} "
        f"({result['backend']}). A request to `/rerank` has a query with {result['documents']} documents; rates are in "
        f"queries per second. The method is that of *Load*, {result['seconds']:.0f} s per point. Other jobs ran on the "
        f"same cores, load average {result['load']:.1f}: only the ratio of the two servers means something."
    )
    return ["## Load of a reranker", "", about, "", *lines, ""]


def drift(result: dict[str, Any]) -> list[str]:
    """Return the section about what the audit reported on two streams."""
    lines = []
    for name, stream in result["streams"].items():
        end, half = stream["at the end"], stream["at half time"]["audited"]
        allowed = end.get("guaranteed_risk", end.get("promised"))  # the name in records of 0.1
        alarms = [
            f"{'drift' if alarm.startswith('drift') else 'violation'} after {position['audited'] - half:,} audited "
            "texts of the second half"
            for alarm, position in stream["alarms"].items()
        ]
        lines.append(
            f"- {'Same distribution' if name == 'the usual texts' else 'Other texts in the second half'}: "
            f"{end['different']} of {end['audited']:,} audited predictions differ, the guarantee allows "
            f"{100 * allowed:.0f} %; {'alarms: ' + ', '.join(alarms) if alarms else 'no alarm'}."
        )
    about = (
        f"`benchmarks/drift.py`, {result['date']}, {result['cpu']}. all-MiniLM-L6-v2 adapted to SST-2, served with "
        f"`--audit {result['share']:g}`. Two streams: {result['texts']:,} unused rows of SST-2, and a stream whose "
        "second half is sentences of STS-B."
    )
    return ["## Drift", "", about, "", *lines, ""]


def audit_under_load(result: dict[str, Any]) -> list[str]:
    """Return the section about a saturated server whose thresholds are too loose."""
    lines = ["| server | texts per second | sampled | audited | coverage | different | alarm |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name, server in result["servers"].items():
        audit, alarm = server["audit"], server["alarm"]
        differ = f"{audit['different']} ({100 * audit['different'] / max(1, audit['audited']):.1f} %)"
        when = "none during the load"
        if alarm is not None:
            when = f"{alarm['test']} after {alarm['seconds']:.0f} s and {alarm['audited']} audited texts"
        cells = [
            *(name.replace("share", "`--audit-share`"), f"{server['throughput']:.0f}", f"{audit['sampled']:,}"),
            *(f"{audit['audited']:,}", f"{100 * audit['coverage']:.0f} %", differ, when),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = (
        f"`benchmarks/audit_under_load.py`, {result['date']}, {result['cpu']}. all-MiniLM-L6-v2 "
        f"({result['layers']} × {result['hidden_size']}, PyTorch, one thread) trained on SST-2 and calibrated for at "
        f"most 2 % different predictions. *loosened* is the same model with {result['loosen']:g} times the threshold. "
        f"Served with `--audit {result['audit']:g}` and saturated by {result['clients']} clients for "
        f"{result['seconds']:.0f} s. The counts are those at the end of the load, while requests were still waiting."
    )
    ratios = [after / before for before, after in result["rounds"]]
    cost = (
        f"Texts per CPU second with the audit relative to the same server without one, in {len(ratios)} alternating "
        f"rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; median {result['ratio']:.2f}."
    )
    raised = sum(alarm is not None for alarm in result["alarms"])
    cost += (
        f" A round takes {result['seconds'] / 4:.0f} s; {raised} of {len(result['alarms'])} were long enough for an "
        "alarm, which needs about 8 / risk audited texts at twice the guaranteed risk, and fewer at higher rates."
    )
    return ["## Audits of a saturated server", "", about, "", *lines, "", cost, ""]


def cluster(result: dict[str, Any]) -> list[str]:
    """Return the section about a million rows."""
    single, ray = result["one process"], result["ray"]
    speed, ray_speed = (result["rows"] / run["seconds"] for run in (single, ray))
    text = (
        f"`benchmarks/cluster.py`, {result['date']}, {result['cpu']}. {result['rows']:,} short texts, a tiny model. "
        f"One process, reading plain text: {speed:,.0f} rows per second, {single['memory']:.0f} MB peak memory. "
        f"`--engine ray --workers {ray['workers']}`, reading Parquet: {ray_speed:,.0f} rows per second including "
        f"startup, {ray['memory']:.0f} MB peak memory per worker."
    )
    return ["## Batch job with a million rows", "", text, ""]


def attack(result: dict[str, Any]) -> list[str]:
    """Return the section about hostile requests, before the limits of bodies and connections and now."""
    before, after = read("attack/before") or {"bodies": {}, "connections": {}}, result
    lines = [
        "| body | bytes | | status | response | slowest `/health` | memory |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for name, now in after["bodies"].items():
        for when, row in (("before", before["bodies"].get(name)), ("now", now)):
            if row is not None:
                first = [name, f"{row['bytes']:,}"] if when == "before" or name not in before["bodies"] else ["", ""]
                status = f"{row['status']}" if row["status"] else "none"
                figures = [f"{row['seconds']:.2f} s", f"{row['health_ms']:.0f} ms", f"+{row['memory_mb']:.0f} MB"]
                lines.append(f"| {' | '.join([*first, when, status, *figures])} |")
    lines += ["", "| connections | before | now |", "|---|---|---|"]
    for name, now in after["connections"].items():
        cells = [name, *(_connections(row) for row in (before["connections"].get(name), now))]
        lines.append(f"| {' | '.join(cells)} |")
    about = (
        f"`benchmarks/attack.py`, {after['date']}, {after['cpu']}. all-MiniLM-L6-v2 in PyTorch. Bodies within the "
        "limit of 2 MB, each sent three times (once if it took more than 5 s): worst response time, the slowest of the "
        "`/health` requests sent meanwhile, and the memory above that before the first one. Texts with characters "
        "outside of Latin-1 take two or four times their size in Python."
    )
    return ["## Hostile requests", "", about, "", *lines, ""]


def _connections(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not measured"
    if "ended" in row:
        return f"ended after {row['seconds']:g} s" if row["ended"] else f"not ended after {row['seconds']:g} s"
    if "health_answered" in row:
        return f"`/health` answered {row['health_answered']}"
    counts = (
        f"{row['silent_open']} of 200 silent, {row['half_sent_open']} of 500 half-sent, {row['slow_open']} of 20 slow"
    )
    return f"{counts} open after {row['seconds']:g} s; slowest `/health` {row['health_ms']:.0f} ms"


def clients(result: dict[str, Any]) -> list[str]:
    """Return the section about clients of other projects."""
    lines = ["| client | texts | same label | largest difference of scores |", "|---|---:|---:|---:|"]
    for name, row in result["clients"].items():
        lines.append(f"| {name} | {row['texts']} | {row['same_labels']} | {row['largest_difference']:.0e} |")
    text = (
        f"`benchmarks/clients.py`, {result['date']}. Predictions of other projects' clients and of `offramp predict`."
    )
    end = f"schemathesis, on requests made from the OpenAPI description: {result['schemathesis']}."
    return ["## Clients of other projects", "", text, "", *lines, "", end, ""]


def rerank_clients(result: dict[str, Any]) -> list[str]:
    """Return the section about rerank clients of other projects."""
    lines = ["| client | queries | same order | largest difference of scores |", "|---|---:|---:|---:|"]
    for name, row in result["clients"].items():
        lines.append(f"| {name} | {row['queries']} | {row['same_order']} | {row['largest_difference']:.0e} |")
    text = (
        f"`benchmarks/rerank_clients.py`, {result['date']}. Results of other projects' rerank clients and of "
        f"`offramp.load(…).rank`, for the first {result['top_n']} documents; `rerankers` asks for all. Model: "
        f"{result['model']} (see [Rerankers](reranking.md))."
    )
    return ["## Rerank clients of other projects", "", text, "", *lines, ""]


def soak(result: dict[str, Any]) -> list[str]:
    """Return the section about many requests."""
    samples = result["samples"]
    columns = {"requests": "requests", "memory_mb": "memory, MB", "files": "open files", "threads": "threads"}
    lines = [f"| {' | '.join(columns.values())} |", "|---:" * len(columns) + "|"]
    for sample in [*samples[::4], samples[-1]]:
        lines.append(f"| {' | '.join(f'{sample[name]:,.0f}' for name in columns)} |")
    statuses = ", ".join(f"{count:,} × {status}" for status, count in result["statuses"].items())
    text = (
        f"`benchmarks/soak.py`, {result['date']}, {result['cpu']}. {result['requests']:,} requests in "
        f"{result['seconds'] / 60:.1f} minutes: {statuses}. {result['different_labels']} labels differ from the first "
        "response to the same text."
    )
    return ["## Soak", "", text, "", *lines, ""]


def main() -> None:
    """Replace the marked part of the page."""
    parts = []
    sections = {
        "load": load,
        "load_rankings": load_rankings,
        "attack/after": attack,
        "clients": clients,
        "rerank_clients": rerank_clients,
        "soak": soak,
        "drift": drift,
        "audit_under_load": audit_under_load,
        "cluster": cluster,
    }
    for name, write in sections.items():
        result = read(name)
        title = name.split("/")[0].replace("_", " ")
        parts += [f"Not measured yet: {title}.", ""] if result is None else write(result)
    before, rest = PAGE.read_text("utf-8").split(MARK, 1)
    PAGE.write_text(f"{before}{MARK}\n\n" + "\n".join(parts) + END + rest.split(END, 1)[1], "utf-8")


if __name__ == "__main__":
    main()
