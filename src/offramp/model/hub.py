"""Upload a model folder to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from offramp.model import card

__all__ = ["upload"]


def upload(folder: Path, repo_id: str, private: bool | None, token: str | bool | None, **options: Any) -> str:
    """Upload a model folder, whose card then loads the model by the repository's name; return the commit's URL.

    The options are those of `HfApi.upload_folder`.
    """
    api = HfApi(token=token)
    name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    file = folder / "README.md"
    file.write_text(card.card_on_hub(file.read_text("utf-8"), name), encoding="utf-8")
    return str(api.upload_folder(repo_id=name, folder_path=folder, **options))
