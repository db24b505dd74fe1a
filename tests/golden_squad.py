"""SQuAD as EBERT's original processes it: windows and targets, answers from given logits, files, scores."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertTokenizer

from golden_case import Case, Check, claim, same
from offramp.answers.span_scores import squad_scores
from offramp.data.questions import Question, read_squad
from offramp.originals.squad.answers import SquadOptions, decode_answers, write_predictions
from offramp.originals.squad.features import Window, all_windows

__all__ = ["checks_of_squad_post"]

SETTINGS = ("version_2", "null_score_diff_threshold", "n_best_size", "max_answer_length", "do_lower_case")


def checks_of_squad_post(case: Case) -> Iterator[Check]:
    """All of it."""
    tokenizer = BertTokenizer(vocab=str(case.folder / "vocab.txt"), do_lower_case=case.about["do_lower_case"])
    questions = read_squad(case.folder / "squad.json").questions
    length, stride, query = (case.about[name] for name in ("max_seq_length", "doc_stride", "max_query_length"))
    windows = {}
    for split in ("train", "dev"):
        windows[split] = list(all_windows(questions, tokenizer, length, stride, query, split == "train"))
        yield from checks_of_windows(case, split, windows[split])
    starts, ends = (case.inputs[key].numpy() for key in ("start_logits", "end_logits"))
    for name, run in case.about["runs"].items():
        rules = SquadOptions(**{key: run[key] for key in SETTINGS})
        with tempfile.TemporaryDirectory() as folder:
            answers = decode_answers(questions, windows["dev"], starts, ends, tokenizer, rules)
            written = write_predictions(Path(folder), answers, name)
            yield from checks_of_files(case, written, run["files"])
        yield from checks_of_scores(name, questions, answers.predictions, run["scores"])


def checks_of_windows(case: Case, split: str, windows: list[list[Window]]) -> Iterator[Check]:
    """Every array of a split; the original numbers only the questions that have windows."""
    having = [own for own in windows if own]
    every = [window for own in having for window in own]
    got: dict[str, Any] = {
        "example_index": [number for number, own in enumerate(having) for _ in own],
        "token_to_word": np.stack([window.words for window in every]),
        "start_positions": [window.start for window in every],
        "end_positions": [window.end for window in every],
        "is_impossible": [window.impossible for window in every],
    }
    for name in ("input_ids", "attention_mask", "token_type_ids", "max_context"):
        got[name] = np.stack([getattr(window, name) for window in every])
    for name, values in got.items():
        if (wanted := case.take(f"{split}/{name}")) is not None:
            yield same(f"{split}/{name}", torch.as_tensor(values), wanted)


def checks_of_files(case: Case, written: list[Path], wanted: list[str]) -> Iterator[Check]:
    """Their names, layout, texts exactly, and numbers to 1e-6."""
    yield claim(f"names of {', '.join(wanted)}", sorted(file.name for file in written) == sorted(wanted))
    for file in written:
        text, model = (path.read_text("utf-8") for path in (file, case.folder / file.name))
        yield claim(f"file {file.name}", alike(json.loads(text), json.loads(model)))
        layout = text == json.dumps(json.loads(text), indent=4) + "\n"
        yield claim(f"layout of {file.name}", layout and text.count("\n") == model.count("\n"))


def checks_of_scores(
    name: str, questions: list[Question], predictions: dict[str, str], wanted: dict[str, float]
) -> Iterator[Check]:
    """Each score that the original logs, and no other."""
    scores = squad_scores(questions, predictions)
    yield claim(f"names of {name}'s scores", list(scores) == list(wanted), ", ".join(scores))
    for key, value in wanted.items():
        yield claim(f"{name}/{key}", alike(scores.get(key), value), f"{scores.get(key)}")


def alike(got: Any, wanted: Any) -> bool:
    """JSON that is the same, keys in the same order, numbers to 1e-6."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and list(got) == list(wanted) and all(alike(got[key], wanted[key]) for key in got)
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(alike, got, wanted))
    if isinstance(wanted, float):
        return isinstance(got, (int, float)) and math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-6)
    return bool(got == wanted)
