"""Names of the files that offramp writes into folders; only these are ever overwritten."""

from __future__ import annotations

import re
from pathlib import Path

from offramp.errors import CannotWrite

__all__ = ["COMPARISON", "EXPORT", "MODEL", "check_managed"]

MODEL = re.compile(  # files written by training, models and tokenizers
    r"(config|generation_config|scores|calibration|summary|special_tokens_map|added_tokens|vocab)\.json|README\.md|"
    r"report\.html|modeling_offramp\.py|tests\.jsonl|"
    r"training\.yaml|(model.*|rows|trace)\.safetensors|model\.safetensors\.index\.json|"
    r"tokenizer(\.json|\.model|_config\.json)|vocab\.txt|merges\.txt|(spiece|spm|sentencepiece\.bpe)\.model|"
    r"checkpoints|logs|onnx|openvino|\.new|seed-\d+|\.seed-\d+\.lock"
)
EXPORT = re.compile(r"offramp\.json|calibration\.json|exit-\d+\.onnx|model\.(onnx|json)")  # files that an export writes
COMPARISON = re.compile(r"comparison\.json|curve\.(png|svg)")


def check_managed(folder: Path, managed: re.Pattern[str], what: str) -> None:
    """Raise if `folder` contains files whose names do not match `managed`: it must not be replaced."""
    if not folder.is_dir():
        return
    if unmanaged := sorted(path.name for path in folder.iterdir() if not managed.fullmatch(path.name)):
        raise CannotWrite(
            f"{folder} contains files that are not part of {what} ({unmanaged[0]}), so it is not overwritten. "
            "Choose another folder."
        )
