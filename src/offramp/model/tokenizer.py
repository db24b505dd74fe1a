"""Load and check the tokenizer of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from offramp.errors import BadModel
from offramp.files.load_errors import loading
from offramp.model.config import AdaptiveConfig

__all__ = ["FILES", "load_tokenizer"]

MIN_VOCABULARY_SHARE = 0.05  # minimum tokens per embedding; embeddings may be padded or reserved
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "spm.model")
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)


def load_tokenizer(name: str, config: AdaptiveConfig, hub_options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or of a model on the Hub."""
    folder = Path(name, hub_options.get("subfolder", ""))
    if folder.is_dir() and not any((folder / file).is_file() for file in FILES):
        raise BadModel(f"{folder} has no tokenizer. Copy the backbone's tokenizer files into it.")
    with loading(name, "tokenizer"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, config=config.backbone, **hub_options)
        for second_texts in (None, ["a second text", ""]):  # invalid rules raise only when they are used
            tokenizer(["a text", ""], second_texts, truncation=True, max_length=8)
    _check_vocabulary(tokenizer, config.backbone.vocab_size, name)
    return tokenizer


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, num_embeddings: int, name: str) -> None:
    """Raise `BadModel` if the tokenizer belongs to another model or lacks its vocabulary."""
    num_tokens = len(tokenizer)
    if num_tokens > num_embeddings:
        raise BadModel(
            f"{name}: the tokenizer has {num_tokens:,} tokens, but the model has {num_embeddings:,} embeddings. "
            "The tokenizer belongs to another model."
        )
    if num_tokens < num_embeddings * MIN_VOCABULARY_SHARE:
        raise BadModel(
            f"{name}: the tokenizer has only {num_tokens:,} tokens for {num_embeddings:,} embeddings. "
            "Is tokenizer.json or another tokenizer file missing?"
        )
