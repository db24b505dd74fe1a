"""The tokenizer that lies beside a model, checked before anything is read with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from offramp.errors import BadModel
from offramp.files.faults import loading
from offramp.model.config import AdaptiveConfig

__all__ = ["FILES", "load_tokenizer"]

FEWEST = 0.05  # of the embeddings that a tokenizer's own tokens fill; some are padded, or left for later
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")


def load_tokenizer(name: str, config: AdaptiveConfig, hub_options: dict[str, Any]) -> PreTrainedTokenizerBase:
    """From a folder, or a name on the Hub."""
    folder = Path(name, hub_options.get("subfolder", ""))
    if folder.is_dir() and not any((folder / file).is_file() for file in FILES):
        raise BadModel(f"{folder} has no tokenizer: put the backbone's tokenizer files beside the model.")
    with loading(name, "tokenizer"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, config=config.backbone, **hub_options)
        for partners in (None, ["its partner", ""]):  # what is wrong with its rules it says only now
            tokenizer(["a text", ""], partners, truncation=True, max_length=8)
    _check_vocabulary(tokenizer, config.backbone.vocab_size, name)
    return tokenizer


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, embeddings: int, name: str) -> None:
    """Refuse a tokenizer that is another model's, or one without its vocabulary, which reads every word as unknown."""
    tokens = len(tokenizer)
    if tokens > embeddings:
        raise BadModel(
            f"{name}: its tokenizer has {tokens:,} tokens, its embeddings {embeddings:,}; it is another model's."
        )
    if tokens < embeddings * FEWEST:
        raise BadModel(
            f"{name}: its tokenizer has only {tokens:,} tokens for {embeddings:,} embeddings; is tokenizer.json or "
            "another of its files missing?"
        )
