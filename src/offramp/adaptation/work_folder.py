"""The work folder of a run next to its output: an interrupted run resumes from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from offramp.errors import BadInput, BadValue, CannotWrite
from offramp.files.writing import writing
from offramp.training.imitation.states import States

__all__ = ["WorkFolder", "open_work_folder"]

FILE = "adapting.json"


@dataclass(frozen=True)
class WorkFolder:
    """A folder with the finished steps of a run."""

    folder: Path

    def load_states(self) -> States | None:
        """Return the encoder states, or None if they are not complete."""
        if not (self.folder / "states.npz").is_file():
            return None
        with self._check_damage():
            arrays = np.load(self.folder / "states.npz")
            values = np.memmap(self.folder / "states", np.float16, "r", shape=tuple(arrays["shape"]))
            summaries = torch.from_numpy(arrays["summaries"]) if "summaries" in arrays else None
            teacher = torch.from_numpy(arrays["teacher"])
            return States(values, arrays["lengths"], teacher, arrays["rows"], summaries)

    def save_states(self, states: States) -> None:
        """Mark the states, whose values are already in the folder, as complete."""
        part = self.folder / "part.npz"
        teacher = states.teacher.numpy()
        more: dict[str, Any] = {} if states.summaries is None else {"summaries": states.summaries.numpy()}
        np.savez(part, shape=states.values.shape, lengths=states.lengths, teacher=teacher, rows=states.rows, **more)
        part.replace(self.folder / "states.npz")

    def load_heads(self) -> dict[str, torch.Tensor] | None:
        """Return the weights of the trained heads, or None."""
        file = self.folder / "heads.safetensors"
        if not file.is_file():
            return None
        with self._check_damage():
            return load_file(file)

    def save_heads(self, weights: dict[str, torch.Tensor]) -> None:
        """Save the weights of the trained heads."""
        part = self.folder / "heads.part"
        save_file({key: value.contiguous() for key, value in weights.items()}, part)
        part.replace(self.folder / "heads.safetensors")

    @contextmanager
    def _check_damage(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, SafetensorError) as err:
            raise BadInput(f"The files of the interrupted run in {self.folder} are damaged; start again.") from err

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def open_work_folder(output: Path, description: dict[str, Any], resume: bool, overwrite: bool) -> WorkFolder:
    """Return a new work folder for an output, or with `resume` that of an interrupted run with the same description.

    The folder of an interrupted run is deleted only with `overwrite`.
    """
    final = output.resolve()
    folder = final.parent / f".{final.name}.adapting"
    if folder.exists() and not (folder / FILE).is_file():
        raise CannotWrite(f"{folder} was not written by offramp and is not replaced; move it first.")
    text = json.dumps(description, indent=1, sort_keys=True)
    if resume:
        if not folder.exists():
            raise BadValue(f"There is nothing to resume: no run for {output} was interrupted. Remove `resume=`.")
        if (folder / FILE).read_text("utf-8") != text:
            raise BadValue(
                f"Cannot resume: the interrupted run for {output} had a different model, texts or options; start again."
            )
        return WorkFolder(folder)
    if folder.exists() and not overwrite:
        raise CannotWrite(
            f"A run for {output} was interrupted or is still running; use `resume=True` to continue it, or "
            "`overwrite=True` to start again."
        )
    with writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        (folder / FILE).write_text(text, "utf-8")
    return WorkFolder(folder)
