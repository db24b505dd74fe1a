"""Results as tables that one can read in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from offramp.evaluation.results import Evaluation

__all__ = [
    "aligned",
    "checkpoints_table",
    "exits_table",
    "guarantee_and_sample",
    "headline",
    "live_table",
    "percent",
    "policies_table",
    "questions_table",
    "summary",
    "times",
    "width_table",
]

OTHER_ANSWERS = (0.005, 0.01, 0.02, 0.05)  # shares of answers that differ from the full model's


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Columns of text, the first `left` ones flush left."""
    table = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def percent(value: float | None) -> str:
    """A score with one decimal."""
    return "–" if value is None else f"{100 * value:.1f}"


def times(speedup: float | None) -> str:
    """How many times fewer layers; without any, infinitely many."""
    return "∞ ×" if speedup is None else f"{speedup:.2f} ×"


def exits_table(results: Evaluation) -> str:
    """What each exit is worth alone."""
    metrics = results.data.metrics
    head = ["exit on layer", *metrics, *(["95 %"] if metrics else []), "same as full", "MFLOPs"]
    rows = []
    for one in results.exits:
        around = one.interval
        interval = [f"{percent(around[0])}–{percent(around[1])}"] if around else ["–"] * bool(metrics)
        scores = [percent(one.scores[name]) for name in metrics]
        rows.append([str(one.layer), *scores, *interval, percent(one.agreement), f"{one.flops / 1e6:,.1f}"])
    return aligned(head, rows)


def policies_table(results: Evaluation) -> str:
    """How many times fewer layers each policy runs, by how many answers may differ; behind it the score there."""
    head = ["policy", *(f"≤ {share:.1%} differ" for share in OTHER_ANSWERS)]
    rows = []
    for name, points in results.policies.items():
        cells = []
        for share in OTHER_ANSWERS:
            fine = [point for point in points if 1 - point.agreement <= share + 1e-12]
            best = min(fine, key=lambda point: point.mean_layers) if fine else None
            shown = "" if best is None or best.score is None else f" ({percent(best.score)})"
            cells.append("–" if best is None else f"{times(best.speedup)}{shown}")
        rows.append([name, *cells])
    return aligned(head, rows)


def width_table(results: Evaluation) -> str | None:
    """Heads and channels that rows keep, layer by layer, and by the exit where they leave; None without gates."""
    width = results.width
    if width is None:
        return None
    rows = [
        ["heads", *(f"{one:.1f}" for one in width.heads), f"of {width.of['heads']}"],
        ["channels", *(f"{one:,.0f}" for one in width.channels), f"of {width.of['channels']:,}"],
    ]
    head = ["kept in layer", *(str(layer) for layer in range(1, len(width.heads) + 1)), ""]
    target = "" if width.target is None else f" (target {percent(width.target)} %)"
    told = f"{aligned(head, rows)}\n{percent(width.ratio)} % of the layers' operations are left{target}."
    published = width.original
    told = f"{told} As EBERT counts, at {published['length']} tokens: {percent(published['ratio'])} %."
    left = [one for one in width.exits if one["rows"]]
    if len(width.exits) == 1 or not left:
        return told
    head = ["left at layer", "rows", "heads", "channels", "operations of these layers"]
    rows = [
        [str(one["layer"]), f"{one['rows']:,}", f"{one['heads']:.1f}", f"{one['channels']:,.0f}", percent(one["ratio"])]
        for one in left
    ]
    return f"{told}\n\n{aligned(head, rows)}"


def questions_table(results: Evaluation) -> str | None:
    """SQuAD's scores for questions with and without an answer; None where all have one."""
    scores = results.questions
    if not scores or "NoAns_total" not in scores["full"]:
        return None
    head = ["", "exact", "f1", *(f"{kind} {name}" for kind in ("HasAns", "NoAns") for name in ("exact", "f1"))]
    names = ["exact", "f1", *(f"{kind}_{name}" for kind in ("HasAns", "NoAns") for name in ("exact", "f1"))]
    rows = [[which, *(f"{scores[which][name]:.1f}" for name in names)] for which in ("full", "chosen")]
    best = scores.get("best")
    if best is None:
        return aligned(head, rows)
    told = f"With `no_answer` {best['no_answer']:g} in its config the full model's F1 would be {best['f1']:.1f} here."
    return f"{aligned(head, rows)}\n{told}"


def live_table(results: Evaluation) -> str:
    """Computed beside measured, against the plain model in the same run."""
    rows = [["plain encoder", "1.00 ×", f"{results.plain_seconds:.2f}", "1.00 ×"]]
    for point in results.live or []:
        measured = f"{point.measured_speedup:.2f} ×"
        rows.append([point.policy, times(point.speedup), f"{point.seconds:.2f}", measured])
    return aligned([f"{results.live_rows} texts, live", "fewer layers", "seconds", "measured"], rows)


def headline(results: Evaluation) -> str:
    """The chosen point in a sentence or two."""
    chosen, full = results.chosen, results.exits[-1]
    assert chosen is not None
    depth = results.model.depth
    said = f"{chosen.policy}: {chosen.mean_layers:.2f} of {depth} layers on average, "
    said += f"{times(chosen.speedup)} fewer; "
    if chosen.score is not None:
        metric = results.data.metrics[0]
        said += f"{metric} {percent(chosen.score)} (full model {percent(full.scores[metric])}); "
    low, high = chosen.agreement_interval
    whom = results.reference or "the full model"
    said += f"same answer as {whom} for {percent(chosen.agreement)} % ({percent(low)}–{percent(high)})."
    if results.picked_here:
        said += "\nPicked on these very rows, so without a guarantee; `offramp calibrate` gives one."
    return said


def guarantee_and_sample(results: Evaluation) -> str | None:
    """What a guarantee about disagreement means beside the share that these rows show; None where there is none."""
    guarantee = (results.calibration or {}).get("guarantee")
    if not guarantee or guarantee.get("risk_type") != "disagreement" or guarantee.get("tolerance") != results.tolerance:
        return None  # another tolerance would count other answers
    if results.reference != guarantee.get("reference") and not (guarantee.get("frozen") and results.reference is None):
        return None  # and another reference, too
    from scipy import stats

    data, risk = results.data, guarantee["risk"]
    rows = data.texts or data.rows  # an example counts once, whatever its rows
    assert results.chosen is not None
    most = stats.binom.ppf(0.95, rows, risk) / rows
    return (
        f"Promised, with {100 * guarantee['confidence']:g} % confidence: at most {100 * risk:g} % other answers over all "
        "rows like those it was tested on. A sample scatters around that: of "
        f"{rows:,} rows with a true share of exactly {100 * risk:g} %, one sample in twenty shows more than "
        f"{percent(most)} %. These rows show {percent(1 - results.chosen.agreement)} %."
    )


def checkpoints_table(results: Mapping[str, Evaluation]) -> str:
    """The main score of every exit, a line per checkpoint."""
    first = next(iter(results.values()))
    metric = first.data.metrics[0] if first.data.metrics else None
    head = [f"{metric or 'same as full'}", *(f"exit {one.layer}" for one in first.exits)]
    rows = []
    for name, one in results.items():
        cells = [percent(exit.scores[metric] if metric else exit.agreement) for exit in one.exits]
        rows.append([name, *cells])
    return aligned(head, rows)


def summary(results: Evaluation) -> str:
    """The tables, and what the chosen point gives."""
    parts = [
        exits_table(results),
        *filter(None, [width_table(results), questions_table(results)]),
        "times fewer layers than the full model, by answers that may differ from its:",
    ]
    parts += [policies_table(results), headline(results)]
    if guarantee := guarantee_and_sample(results):
        parts.append(guarantee)
    if results.live:
        parts.append(live_table(results))
    return "\n\n".join(parts)
