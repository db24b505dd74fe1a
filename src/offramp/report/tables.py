"""Format results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from offramp.answers import ANSWER_TYPES
from offramp.evaluation.results import Evaluation
from offramp.model.class_table import MAX_CLASSES
from offramp.policies import parse

__all__ = [
    "checkpoints_table",
    "classes_table",
    "exits_table",
    "format_table",
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

CHANGED = (0.005, 0.01, 0.02, 0.05)  # maximum fractions of changed predictions


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table of aligned columns; the first `left` ones are left-aligned."""
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
    """Return a fraction as a percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f}"


def times(speedup: float | None) -> str:
    """Return a speedup as text; None means that no layer ran."""
    return "∞ ×" if speedup is None else f"{speedup:.2f} ×"


def exits_table(results: Evaluation) -> str:
    """Return the scores and costs of every exit alone."""
    metrics = results.data.metrics
    head = ["exit layer", *metrics, *(["95 % interval"] if metrics else []), "same as full", "MFLOPs"]
    rows = []
    for exit_ in results.exits:
        bounds = exit_.interval
        interval = [f"{percent(bounds[0])}–{percent(bounds[1])}"] if bounds else ["–"] * bool(metrics)
        scores = [percent(exit_.scores[name]) for name in metrics]
        rows.append([str(exit_.layer), *scores, *interval, percent(exit_.agreement), f"{exit_.flops / 1e6:,.1f}"])
    return format_table(head, rows)


def policies_table(results: Evaluation) -> str:
    """Return the speedup in layers of every policy by the fraction of changed predictions, with the score."""
    head = ["policy", *(f"≤ {share:.1%} changed" for share in CHANGED)]
    rows = []
    for name, points in results.policies.items():
        cells = []
        for share in CHANGED:
            valid = [point for point in points if 1 - point.agreement <= share + 1e-12]
            best = min(valid, key=lambda point: point.mean_layers) if valid else None
            score = "" if best is None or best.score is None else f" ({percent(best.score)})"
            cells.append("–" if best is None else f"{times(best.speedup)}{score}")
        rows.append([name, *cells])
    return format_table(head, rows)


def width_table(results: Evaluation) -> str | None:
    """Return the heads and channels that gates keep, per layer and per exit; None without gates."""
    width = results.width
    if width is None:
        return None
    rows = [
        ["heads", *(f"{heads:.1f}" for heads in width.heads), f"of {width.of['heads']}"],
        ["channels", *(f"{channels:,.0f}" for channels in width.channels), f"of {width.of['channels']:,}"],
    ]
    head = ["kept in layer", *(str(layer) for layer in range(1, len(width.heads) + 1)), ""]
    target = "" if width.target is None else f" (target {percent(width.target)} %)"
    text = f"{format_table(head, rows)}\n{percent(width.ratio)} % of the layers' operations are kept{target}."
    original = width.original
    text = f"{text} As EBERT counts, at {original['length']} tokens: {percent(original['ratio'])} %."
    exits = [exit_ for exit_ in width.exits if exit_["rows"]]
    if len(width.exits) == 1 or not exits:
        return text
    head = ["exit layer", "rows", "heads", "channels", "operations kept"]
    rows = [
        [str(row["layer"]), f"{row['rows']:,}", f"{row['heads']:.1f}", f"{row['channels']:,.0f}", percent(row["ratio"])]
        for row in exits
    ]
    return f"{text}\n\n{format_table(head, rows)}"


def questions_table(results: Evaluation) -> str | None:
    """Return SQuAD scores of questions with and without an answer; None if all have one."""
    scores = results.questions
    if not scores or "NoAns_total" not in scores["full"]:
        return None
    head = ["", "exact", "f1", *(f"{group} {name}" for group in ("HasAns", "NoAns") for name in ("exact", "f1"))]
    names = ["exact", "f1", *(f"{group}_{name}" for group in ("HasAns", "NoAns") for name in ("exact", "f1"))]
    rows = [[which, *(f"{scores[which][name]:.1f}" for name in names)] for which in ("full", "chosen")]
    best = scores.get("best")
    if best is None:
        return format_table(head, rows)
    hint = (
        f"With `no_answer` {best['no_answer']:g} in config.json, the full model's F1 is {best['f1']:.1f} on these rows."
    )
    return f"{format_table(head, rows)}\n{hint}"


def classes_table(results: Evaluation) -> str:
    """Return how many texts of every class keep their prediction, the classes that lose most first."""
    classes = sorted(results.classes, key=lambda entry: (entry.kept / entry.rows, -entry.rows))
    rows = []
    for entry in classes[:MAX_CLASSES]:
        low, high = entry.interval
        interval = f"{percent(low)}–{percent(high)}"
        rows.append([entry.name, f"{entry.rows:,}", percent(entry.kept / entry.rows), interval])
    if len(classes) > MAX_CLASSES:
        rows.append([f"{len(classes) - MAX_CLASSES} others", "", "", ""])
    return format_table(["full model's class", "rows", "same (%)", "95 % interval"], rows)


def live_table(results: Evaluation) -> str:
    """Return computed and measured speedups over the plain model, timed in the same run."""
    rows = [["plain encoder", "1.00 ×", f"{results.plain_seconds:.2f}", "1.00 ×"]]
    for point in results.live or []:
        measured = f"{point.measured_speedup:.2f} ×"
        rows.append([parse(point.policy).describe(), times(point.speedup), f"{point.seconds:.2f}", measured])
    names = ANSWER_TYPES[results.model.problem].input_names if results.model.problem in ANSWER_TYPES else "texts"
    return format_table([f"{results.live_rows} {names}", "fewer layers", "seconds", "measured speedup"], rows)


def headline(results: Evaluation) -> str:
    """Return the chosen operating point in one or two sentences."""
    chosen, full = results.chosen, results.exits[-1]
    assert chosen is not None
    depth = results.model.depth
    text = f"{parse(chosen.policy).describe()}: {chosen.mean_layers:.2f} of {depth} layers on average "
    text += f"({times(chosen.speedup)} fewer); "
    if chosen.score is not None:
        metric = results.data.metrics[0]
        text += f"{metric} {percent(chosen.score)} (full model {percent(full.scores[metric])}); "
    low, high = chosen.agreement_interval
    reference = results.reference or "the full model"
    text += (
        f"{percent(chosen.agreement)} % ({percent(low)}–{percent(high)}) of predictions are the same as {reference}'s."
    )
    if results.picked_here:
        text += "\nThis policy was chosen on the same rows, so there is no guarantee; run `offramp calibrate` for one."
    return text


def guarantee_and_sample(results: Evaluation) -> str | None:
    """Explain the disagreement on these rows in the light of the guarantee; None without a matching guarantee."""
    guarantee = (results.calibration or {}).get("guarantee")
    if not guarantee or guarantee.get("risk_type") != "disagreement" or guarantee.get("tolerance") != results.tolerance:
        return None  # another tolerance counts other predictions
    if guarantee.get("group") or guarantee.get("average"):
        return None  # it is about groups, or about the mean over calibrations
    if results.reference != guarantee.get("reference") and not (guarantee.get("frozen") and results.reference is None):
        return None  # so does another reference
    from scipy import stats

    data, risk = results.data, guarantee["risk"]
    rows = data.texts or data.rows  # an example counts once, even if it is several rows
    assert results.chosen is not None
    limit = stats.binom.ppf(0.95, rows, risk) / rows
    return (
        f"Guarantee: with {100 * guarantee['confidence']:g} % confidence, at most {100 * risk:g} % changed predictions "
        "over all rows like those it was tested on. A sample varies: with a true rate of exactly "
        f"{100 * risk:g} %, one in twenty samples of {rows:,} rows has more than {percent(limit)} %. "
        f"These rows have {percent(1 - results.chosen.agreement)} %."
    )


def checkpoints_table(results: Mapping[str, Evaluation]) -> str:
    """Return the main score of every exit, one line per checkpoint."""
    first = next(iter(results.values()))
    metric = first.data.metrics[0] if first.data.metrics else None
    head = [f"{metric or 'same as full'}", *(f"exit {exit_.layer}" for exit_ in first.exits)]
    rows = []
    for name, checkpoint in results.items():
        cells = [percent(exit_.scores[metric] if metric else exit_.agreement) for exit_ in checkpoint.exits]
        rows.append([name, *cells])
    return format_table(head, rows)


def summary(results: Evaluation) -> str:
    """Return all tables and the headline of an evaluation."""
    parts = [
        exits_table(results),
        *filter(None, [width_table(results), questions_table(results)]),
        "Speedup in layers, by maximum fraction of changed predictions:",
    ]
    parts += [policies_table(results), headline(results)]
    if results.classes:
        parts.append(classes_table(results))
    if guarantee := guarantee_and_sample(results):
        parts.append(guarantee)
    if results.live:
        parts.append(live_table(results))
    return "\n\n".join(parts)
