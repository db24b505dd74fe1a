"""The output folder of a run: who may write into it, where its checkpoints are, what is left in the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from offramp.errors import CannotWrite
from offramp.training.settings import FILE, Settings, read_settings, write_settings
from offramp.writing import writing

__all__ = ["CHECKPOINTS", "check", "finish", "is_finished", "last_checkpoint", "prepare"]

CHECKPOINTS = "checkpoints"
ANY_RUN = ("output",)  # what may differ between a run and its continuation


def check(settings: Settings, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something else; nothing is written yet."""
    folder = Path(settings.output)
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; name a folder.")
    if not folder.absolute().parent.is_dir():
        raise CannotWrite(f"Cannot write {folder}: there is no folder {folder.absolute().parent}.")
    if not _holds_something(folder):
        return
    if resume:
        _check_same(settings, folder)
    elif not overwrite:
        raise CannotWrite(f"{folder} holds another run; give --resume to go on with it, or --overwrite to replace it.")
    elif not (folder / "config.json").is_file() and not (folder / FILE).is_file():
        raise CannotWrite(f"{folder} holds other things than a run; it is not overwritten. Name another folder.")


def prepare(settings: Settings, resume: bool) -> None:
    """Make the folder, empty but for the settings; one that is resumed stays as it is."""
    folder = Path(settings.output)
    if _holds_something(folder) and resume:
        return
    with writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        write_settings(settings, folder)


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _check_same(settings: Settings, folder: Path) -> None:
    if not (folder / FILE).is_file():
        raise CannotWrite(f"{folder} holds no run to go on with (no {FILE}); name another folder.")
    before = settings.changed(**read_settings(folder / FILE))
    for name in vars(settings):
        if name not in ANY_RUN and getattr(before, name) != getattr(settings, name):
            old, new = getattr(before, name), getattr(settings, name)
            option = name.replace("_", "-")
            raise CannotWrite(
                f"{folder} was begun with {option} {old}, not {new}; resume with the options in its {FILE}, "
                "or give --overwrite."
            )


def is_finished(folder: Path) -> bool:
    """Whether the run's model is there: its config is moved in last."""
    return (folder / "config.json").is_file()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: its state is written last, so a torn one has none that can be read."""
    found = []
    for path in folder.glob("checkpoint-*"):
        try:
            found.append((int(json.loads((path / "trainer_state.json").read_text())["global_step"]), path))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None


def finish(new: Path, folder: Path, keep_checkpoints: bool) -> None:
    """Move a written model into the folder, its config last; then the checkpoints may go."""
    with writing(folder):
        for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)
        new.rmdir()
    if not keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
