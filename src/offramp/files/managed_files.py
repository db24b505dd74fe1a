"""What we write into folders, by name: only that is ever replaced."""

from __future__ import annotations

import re
from pathlib import Path

from offramp.errors import CannotWrite

__all__ = ["COMPARISON", "MODEL", "check_managed"]

MODEL = re.compile(  # what training, models and tokenizers leave in a folder
    r"(config|generation_config|scores|calibration|summary|special_tokens_map|added_tokens|vocab)\.json|README\.md|"
    r"report\.html|"
    r"training\.yaml|(model.*|rows|trace)\.safetensors|model\.safetensors\.index\.json|"
    r"tokenizer(\.json|\.model|_config\.json)|vocab\.txt|merges\.txt|(spiece|spm|sentencepiece\.bpe)\.model|"
    r"checkpoints|logs|onnx|openvino|\.new|seed-\d+|\.seed-\d+\.lock"
)
COMPARISON = re.compile(r"comparison\.json|curve\.(png|svg)")


def check_managed(folder: Path, ours: re.Pattern[str], what: str) -> None:
    """Refuse to replace a folder that holds anything but what we write there."""
    if not folder.is_dir():
        return
    if strange := sorted(path.name for path in folder.iterdir() if not ours.fullmatch(path.name)):
        raise CannotWrite(
            f"{folder} holds other things than {what} ({strange[0]}); it is not overwritten. Name another folder."
        )
