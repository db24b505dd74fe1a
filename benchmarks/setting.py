"""Shared by the benchmarks: real texts that every machine has, and a tokenizer for them."""

from __future__ import annotations

import pydoc_data.topics
import re
from pathlib import Path

from tokenizers import BertWordPieceTokenizer
from transformers import PreTrainedTokenizerFast

__all__ = ["Texts", "make_tokenizer", "read_texts"]

Texts = list[str]


def built_in_texts() -> Texts:
    """Return sentences of the documentation that is part of every Python installation."""
    prose = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    sentences = [sentence.strip() for sentence in re.split(r"(?<=[.!?]) ", prose)]
    return [sentence for sentence in sentences if 20 <= len(sentence) <= 300 and sentence.isascii()]


def read_texts(file: Path | None, count: int) -> Texts:
    """Return `count` texts, evenly spaced in the file (one text per line) or in the built-in texts."""
    lines = built_in_texts() if file is None else [line for line in file.read_text("utf-8").split("\n") if line.strip()]
    step = max(1, len(lines) // count)
    return lines[::step][:count]


def make_tokenizer(texts: Texts) -> PreTrainedTokenizerFast:
    """Train a WordPiece tokenizer on the texts."""
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(texts, vocab_size=8000, show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
