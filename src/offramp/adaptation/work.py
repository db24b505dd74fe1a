"""The folder of a run that is not finished, beside its output: what was computed once is not computed again."""

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

__all__ = ["Work", "work_beside"]

FILE = "adapting.json"


@dataclass(frozen=True)
class Work:
    """A folder, and what in it is done."""

    folder: Path

    def states(self) -> States | None:
        """The encoder's states, if they are all there."""
        if not (self.folder / "states.npz").is_file():
            return None
        with self._undamaged():
            kept = np.load(self.folder / "states.npz")
            values = np.memmap(self.folder / "states", np.float16, "r", shape=tuple(kept["shape"]))
            return States(values, kept["lengths"], torch.from_numpy(kept["teacher"]), kept["rows"])

    def keep_states(self, states: States) -> None:
        """Say that the states are there."""
        part = self.folder / "part.npz"
        teacher = states.teacher.numpy()
        np.savez(part, shape=states.values.shape, lengths=states.lengths, teacher=teacher, rows=states.rows)
        part.replace(self.folder / "states.npz")

    def heads(self) -> dict[str, torch.Tensor] | None:
        """The weights of heads that were trained."""
        file = self.folder / "heads.safetensors"
        if not file.is_file():
            return None
        with self._undamaged():
            return load_file(file)

    def keep_heads(self, weights: dict[str, torch.Tensor]) -> None:
        """Keep them."""
        part = self.folder / "heads.part"
        save_file({key: value.contiguous() for key, value in weights.items()}, part)
        part.replace(self.folder / "heads.safetensors")

    @contextmanager
    def _undamaged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, SafetensorError) as err:
            raise BadInput(f"What the interrupted run left in {self.folder} is damaged; start anew.") from err

    def remove(self) -> None:
        """The run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)


def work_beside(output: Path, about: dict[str, Any], resume: bool, overwrite: bool) -> Work:
    """The work folder of an output: a new one, or with `resume` what an earlier run of the same settings left.

    What an interrupted run has computed is given up only by `overwrite`.
    """
    final = output.resolve()
    folder = final.parent / f".{final.name}.adapting"
    if folder.exists() and not (folder / FILE).is_file():
        raise CannotWrite(f"{folder} is not a work folder of ours and stays; move it away first.")
    written = json.dumps(about, indent=1, sort_keys=True)
    if resume:
        if not folder.exists():
            raise BadValue(f"There is nothing to resume: no run for {output} was interrupted. Leave `resume=` out.")
        if (folder / FILE).read_text("utf-8") != written:
            raise BadValue(f"The interrupted run for {output} had another model, other texts or options; start anew.")
        return Work(folder)
    if folder.exists() and not overwrite:
        raise CannotWrite(
            f"A run for {output} was interrupted, or is at work; give `resume=True` to go on with it, or "
            "`overwrite=True` to start anew."
        )
    with writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        (folder / FILE).write_text(written, "utf-8")
    return Work(folder)
