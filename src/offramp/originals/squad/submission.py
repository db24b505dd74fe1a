"""SQuAD submission files: `predictions_.json`, `nbest_predictions_.json`, and `null_odds_.json` for 2.0.

Answers are slices of the context, by the tokenizer's offsets, and only tokens of the context can start or end them. A
faithful model reproduces the original implementation: windows are padded to full length, any token can start or end an
answer, and tokens are mapped back to words of the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offramp.answers.span_answers import answer_texts, best_spans, char_positions, to_char_positions
from offramp.answers.span_summary import (
    END_LOGITS,
    ENDS,
    MASKED_LOGIT,
    MAX_ANSWER_TOKENS,
    N_BEST,
    NULL,
    START_LOGITS,
    STARTS,
)
from offramp.core.batch import Batch, EncodedRows
from offramp.core.loop import run
from offramp.core.runner import Runner
from offramp.data.questions import Question, read_squad
from offramp.files.writing import apply_umask
from offramp.originals.squad.answers import (
    Candidate,
    SquadOptions,
    SquadPredictions,
    decode_answers,
    write_predictions,
)
from offramp.originals.squad.features import Window, all_windows
from offramp.policies import Policy

__all__ = ["nbest", "squad_predictions", "write_squad"]

EMPTY_ANSWER = "empty"  # the text if there is no candidate, as in the original
BATCH_SIZE = 8  # padded windows


def write_squad(runner: Runner, file: Path, folder: Path, *, overwrite: bool = False, **options: Any) -> list[Path]:
    """Answer the questions of an official file and write the files that the evaluation script reads."""
    questions = read_squad(file).questions
    predictions = squad_predictions(runner, questions, **options)
    folder.mkdir(parents=True, exist_ok=True)
    files = write_predictions(folder, predictions, overwrite=overwrite)
    for output in files:
        apply_umask(output)
    return files


def squad_predictions(
    runner: Runner,
    questions: Sequence[Question],
    *,
    policy: str | Policy | None = None,
    threshold: Any = None,
    max_layers: int | None = None,
    batch_tokens: int | None = None,
) -> SquadPredictions:
    """Return the content of the files; options are those of `Runner.stream`."""
    exit_policy = runner.config.resolve_policy(policy, threshold)
    if runner.config.faithful:
        return _faithful_predictions(runner, questions, exit_policy, max_layers)
    no_answer = runner.config.no_answer
    predictions = SquadPredictions(null_odds=None if no_answer is None else {})
    pairs = [(question.question, question.context) for question in questions]
    for chunk in runner.chunks(pairs, batch_tokens, together=exit_policy.sees_groups):
        summaries = runner.outputs(chunk, exit_policy, max_layers).logits
        spans = best_spans(to_char_positions(summaries, chunk.rows), chunk.rows.group, no_answer)
        chunk_questions = questions[chunk.offset : chunk.offset + len(chunk.examples)]
        texts = answer_texts(spans, [question.context for question in chunk_questions])
        for index, question in enumerate(chunk_questions):
            rows = np.flatnonzero(chunk.rows.group == index)
            predictions.predictions[question.id] = str(texts[index])
            candidates = nbest(summaries[rows], rows, chunk.rows, question.context, no_answer is not None)
            predictions.nbest[question.id] = [candidate.to_dict() for candidate in candidates]
            if predictions.null_odds is not None:
                predictions.null_odds[question.id] = float(spans.null[index])
    return predictions


def nbest(
    summaries: NDArray[Any], rows: NDArray[np.int64], windows: EncodedRows, context: str, no_answer: bool
) -> list[Candidate]:
    """Return a question's best texts, without duplicates, from the outputs of its windows, `rows` of `windows`."""
    by_text: dict[str, Candidate] = {}
    for score, row, start, end, logits in sorted(_spans(summaries, rows), key=lambda span: -span[0]):
        begins, ends = char_positions(windows, np.array([row]), np.array([start]), np.array([end]))
        text = context[int(begins[0]) : int(ends[0])].strip()
        if text and text not in by_text:
            by_text[text] = Candidate(text, *logits)
        if len(by_text) == N_BEST or score <= MASKED_LOGIT / 2:
            break
    candidates = list(by_text.values())
    if no_answer:
        lowest = summaries[:, NULL].sum(1).argmin()
        candidates.append(Candidate("", *map(float, summaries[lowest, NULL])))
        candidates.sort(key=lambda candidate: -candidate.score)
    candidates = candidates or [Candidate(EMPTY_ANSWER, 0.0, 0.0)]
    scores = np.array([candidate.score for candidate in candidates])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    return [
        replace(candidate, probability=float(probability))
        for candidate, probability in zip(candidates, probabilities, strict=True)
    ]


def _spans(summaries: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[tuple[float, int, int, int, Any]]:
    """Yield every valid pair of the best starts and ends: score, window, start, end, and the two logits."""
    starts, ends = (summaries[:, columns].astype(np.int64) for columns in (STARTS, ENDS))
    possible = (starts[:, :, None] >= 0) & (ends[:, None, :] >= starts[:, :, None])
    possible &= ends[:, None, :] - starts[:, :, None] < MAX_ANSWER_TOKENS
    for window, first, last in np.argwhere(possible):
        logits = (float(summaries[window, START_LOGITS][first]), float(summaries[window, END_LOGITS][last]))
        yield sum(logits), int(rows[window]), int(starts[window, first]), int(ends[window, last]), logits


def _faithful_predictions(
    runner: Runner, questions: Sequence[Question], policy: Policy, max_layers: int | None
) -> SquadPredictions:
    """Return predictions with the original's windows, logits and texts."""
    windows = list(all_windows(questions, runner.tokenizer, runner.limit))
    flat = [window for question_windows in windows for window in question_windows]
    batches = [flat[start : start + BATCH_SIZE] for start in range(0, len(flat), BATCH_SIZE)]
    logits = [_logits(runner, batch, policy, max_layers) for batch in batches]
    starts, ends = np.concatenate(logits).transpose(2, 0, 1)
    lower = bool(getattr(runner.tokenizer, "do_lower_case", True))
    null = runner.config.no_answer
    options = SquadOptions(null is not None, null or 0.0, do_lower_case=lower)
    return decode_answers(questions, windows, starts, ends, runner.tokenizer, options)


def _logits(runner: Runner, windows: list[Window], policy: Policy, max_layers: int | None) -> NDArray[np.float32]:
    columns = {
        "input_ids": [window.input_ids for window in windows],
        "attention_mask": [window.attention_mask for window in windows],
    }
    if "token_type_ids" in runner.tokenizer.model_input_names:
        columns["token_type_ids"] = [window.token_type_ids for window in windows]
    batch = {name: torch.from_numpy(np.stack(rows)).long().to(runner.device) for name, rows in columns.items()}
    with runner.stepper.inference_mode():
        tokens = run(runner.stepper, Batch.from_tensors(**batch), policy, max_layers).tokens
    assert tokens is not None
    return tokens.float().cpu().numpy()
