"""SQuAD's files of answers: `predictions_.json`, `nbest_predictions_.json`, and `null_odds_.json` for 2.0.

Texts are cut out of their contexts by the tokenizer's own offsets, and starts and ends are sought among the tokens of
the context alone. A faithful model's files are the original's: whole windows are padded, starts and ends are sought
among all tokens, and texts are carried back from their tokens to the original words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.answers.span_answers import best_spans, located, spots, texts_of
from offramp.answers.span_summary import END_LOGITS, ENDS, LONGEST, LOW, NBEST, NULL, START_LOGITS, STARTS
from offramp.core.batch import Batch, EncodedRows
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.data.questions import Question, read_squad
from offramp.files.writing import apply_umask
from offramp.originals.squad.answers import Answers, Candidate, Rules, write_answers
from offramp.originals.squad.answers import answers_of as original_answers
from offramp.originals.squad.features import Window, all_windows
from offramp.policies import Policy

__all__ = ["nbest", "squad_answers", "write_squad"]

NOTHING = "empty"  # what stands where nothing was found, as in the original
ROWS = 8  # padded windows in a batch


def write_squad(runner: Runner, file: Path, folder: Path, *, overwrite: bool = False, **options: Any) -> list[Path]:
    """Answer the questions of an official file and write what the benchmark's script takes."""
    questions = read_squad(file).questions
    answers = squad_answers(runner, questions, **options)
    folder.mkdir(parents=True, exist_ok=True)
    files = write_answers(folder, answers, overwrite=overwrite)
    for one in files:
        apply_umask(one)
    return files


def squad_answers(
    runner: Runner,
    questions: Sequence[Question],
    *,
    policy: str | Policy | None = None,
    threshold: Any = None,
    max_layers: int | None = None,
    batch_tokens: int | None = None,
) -> Answers:
    """What the files hold; options are those of `Runner.stream`."""
    chosen = runner.config.choose(policy, threshold)
    if runner.config.faithful:
        return _as_published(runner, questions, chosen, max_layers)
    no_answer = runner.config.no_answer
    made = Answers(null_odds=None if no_answer is None else {})
    pairs = [(one.question, one.context) for one in questions]
    for chunk in runner.chunks(pairs, batch_tokens, together=chosen.sees_groups):
        summaries = runner.outputs(chunk, chosen, max_layers).logits
        found = best_spans(located(summaries, chunk.rows), chunk.rows.group, no_answer)
        some = questions[chunk.first : chunk.first + len(chunk.examples)]
        texts = texts_of(found, [one.context for one in some])
        for place, question in enumerate(some):
            rows = np.flatnonzero(chunk.rows.group == place)
            made.predictions[question.id] = str(texts[place])
            listed = nbest(summaries[rows], rows, chunk.rows, question.context, no_answer is not None)
            made.nbest[question.id] = [one.saved() for one in listed]
            if made.null_odds is not None:
                made.null_odds[question.id] = float(found.null[place])
    return made


def nbest(
    summaries: NDArray[Any], rows: NDArray[np.int64], windows: EncodedRows, context: str, no_answer: bool
) -> list[Candidate]:
    """A question's best texts, each once, from what was said of its windows, `rows` of `windows`."""
    found: dict[str, Candidate] = {}
    for score, row, start, end, logits in sorted(_spans(summaries, rows), key=lambda one: -one[0]):
        begins, ends = spots(windows, np.array([row]), np.array([start]), np.array([end]))
        text = context[int(begins[0]) : int(ends[0])].strip()
        if text and text not in found:
            found[text] = Candidate(text, *logits)
        if len(found) == NBEST or score <= LOW / 2:
            break
    listed = list(found.values())
    if no_answer:
        least = summaries[:, NULL].sum(1).argmin()
        listed.append(Candidate("", *map(float, summaries[least, NULL])))
        listed.sort(key=lambda one: -one.score)
    listed = listed or [Candidate(NOTHING, 0.0, 0.0)]
    scores = np.array([one.score for one in listed])
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    return [
        Candidate(one.text, one.start_logit, one.end_logit, float(chance))
        for one, chance in zip(listed, chances, strict=True)
    ]


def _spans(summaries: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[tuple[float, int, int, int, Any]]:
    """Every possible pair of the best starts and ends: score, window, start, end, and the two logits."""
    starts, ends = (summaries[:, columns].astype(np.int64) for columns in (STARTS, ENDS))
    possible = (starts[:, :, None] >= 0) & (ends[:, None, :] >= starts[:, :, None])
    possible &= ends[:, None, :] - starts[:, :, None] < LONGEST
    for window, first, last in np.argwhere(possible):
        logits = (float(summaries[window, START_LOGITS][first]), float(summaries[window, END_LOGITS][last]))
        yield sum(logits), int(rows[window]), int(starts[window, first]), int(ends[window, last]), logits


def _as_published(runner: Runner, questions: Sequence[Question], policy: Policy, max_layers: int | None) -> Answers:
    """Windows, logits and texts as the original has them."""
    windows = list(all_windows(questions, runner.tokenizer, runner.limit))
    flat = [window for own in windows for window in own]
    logits = [_logits(runner, flat[start : start + ROWS], policy, max_layers) for start in range(0, len(flat), ROWS)]
    starts, ends = np.concatenate(logits).transpose(2, 0, 1)
    lower = bool(getattr(runner.tokenizer, "do_lower_case", True))
    null = runner.config.no_answer
    rules = Rules(null is not None, null or 0.0, do_lower_case=lower)
    return original_answers(questions, windows, starts, ends, runner.tokenizer, rules)


def _logits(runner: Runner, windows: list[Window], policy: Policy, max_layers: int | None) -> NDArray[np.float32]:
    columns = {
        "input_ids": [one.input_ids for one in windows],
        "attention_mask": [one.attention_mask for one in windows],
    }
    if "token_type_ids" in runner.tokenizer.model_input_names:
        columns["token_type_ids"] = [one.token_type_ids for one in windows]
    batch = {name: torch.from_numpy(np.stack(rows)).long().to(runner.device) for name, rows in columns.items()}
    with runner.stepper.answering():
        tokens = run(runner.stepper, Batch.of_tensors(**batch), policy, max_layers).tokens
    assert tokens is not None
    return tokens.float().cpu().numpy()
