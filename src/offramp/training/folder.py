"""The output folder of a run: who may write into it, where its checkpoints are, what is left in the end."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from offramp.errors import CannotWrite, OfframpError
from offramp.files.faults import loading
from offramp.files.managed_files import MODEL, check_managed
from offramp.files.writing import writing
from offramp.training.settings import FILE, Settings, read_settings, write_settings

__all__ = ["CHECKPOINTS", "check", "check_place", "checkpoints", "finish", "is_finished", "last_checkpoint", "prepare"]

logger = logging.getLogger("offramp")

CHECKPOINTS, LOGS, PROCESSES = "checkpoints", "logs", "processes"
ASIDE = "aside"  # in the checkpoints: the name of the folder that the old model was moved to
ANY_RUN = ("output",)  # what may differ between a run and its continuation


def check_place(settings: Settings) -> None:
    """Refuse an output that can be no folder, or that holds what the run reads."""
    folder = Path(settings.output)
    if not folder.name or folder.name == "-":
        raise CannotWrite(f"{folder} is no folder for a model; name another.")
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; name a folder.")
    if not folder.absolute().parent.is_dir():
        raise CannotWrite(f"Cannot write {folder}: there is no folder {folder.absolute().parent}.")
    for name in (settings.backbone, settings.data_dir, settings.dataset, settings.train_file, settings.dev_file):
        if name is not None and Path(name).exists() and Path(name).resolve().is_relative_to(folder.resolve()):
            raise CannotWrite(f"{folder} holds what the run reads ({name}); name another folder.")


def check(settings: Settings, resume: bool, overwrite: bool, processes: int = 1) -> None:
    """Refuse a folder that holds something else; nothing is written yet."""
    folder = Path(settings.output)
    if not _holds_something(folder):
        return
    if resume:
        _check_same(settings, folder, processes)
    elif not overwrite:
        raise CannotWrite(
            f"{folder} holds another run; give `resume=True` to go on with it, or `overwrite=True` to replace it."
        )
    else:
        check_managed(folder, MODEL, "a run")


def prepare(settings: Settings, resume: bool, processes: int = 1) -> None:
    """Make the folder, empty but for the settings; one that is resumed stays as it is.

    A model that is to be replaced waits beside the folder until the new one is there.
    """
    folder = Path(settings.output)
    if _holds_something(folder) and resume:
        return
    with writing(folder):
        aside = _put_aside(folder) if is_finished(folder) else None
        waiting = _aside(folder) if aside is None else aside.name  # a run that did not finish left its note
        try:
            if folder.exists():
                shutil.rmtree(folder)
            (folder / CHECKPOINTS).mkdir(parents=True)
            (folder / CHECKPOINTS / PROCESSES).write_text(str(processes))
            (folder / CHECKPOINTS / ASIDE).write_text(waiting, encoding="utf-8")
            write_settings(settings, folder)
        except OSError:
            if aside is not None:
                shutil.rmtree(folder, ignore_errors=True)
                aside.replace(folder)
            raise


def _put_aside(folder: Path) -> Path:
    """Move a model to a new folder beside it, under a name that nobody has."""
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.before-", dir=folder.absolute().parent))
    folder.replace(aside)  # over an empty folder
    logger.warning("The old model is in %s until the new one is there.", aside)
    return aside


def _aside(folder: Path) -> str:
    """The name of the folder that a run in this one moved the old model to; empty where there was none."""
    note = folder / CHECKPOINTS / ASIDE
    name = note.read_text("utf-8") if note.is_file() else ""
    return name if name.startswith(f"{folder.name}.before-") and Path(name).name == name else ""


def _drop_aside(folder: Path) -> None:
    """Remove the model that was put aside, and nothing else."""
    if name := _aside(folder):
        shutil.rmtree(folder.with_name(name), ignore_errors=True)
    (folder / CHECKPOINTS / ASIDE).unlink(missing_ok=True)


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _check_same(settings: Settings, folder: Path, processes: int) -> None:
    if not (folder / FILE).is_file():
        raise CannotWrite(f"{folder} holds no run to go on with (no {FILE}); name another folder.")
    before = settings.changed(**read_settings(folder / FILE)).absolute()
    for name in vars(settings):
        if name not in ANY_RUN and getattr(before, name) != getattr(settings, name):
            old, new = getattr(before, name), getattr(settings, name)
            option = name.replace("_", "-")
            raise CannotWrite(
                f"{folder} was begun with {option} {old}, not {new}; resume with the options in its {FILE}, "
                "or give `overwrite=True`."
            )

    file = folder / CHECKPOINTS / PROCESSES
    begun = file.read_bytes().decode("utf-8", "replace") if file.is_file() else str(processes)
    if begun != str(processes):
        raise CannotWrite(f"{folder} was begun with {begun!r:.20} processes, not {processes}; resume with as many.")


def is_finished(folder: Path) -> bool:
    """Whether the run's model is there: its config is moved in last."""
    return (folder / "config.json").is_file()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: its state is written last, so a torn one has none that can be read."""
    found = []
    for path in folder.glob("checkpoint-*"):
        try:
            step = int(json.loads((path / "trainer_state.json").read_text())["global_step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if torn := _torn(path):
            logger.warning("%s is truncated or corrupt: that checkpoint is left out.", torn)
        else:
            found.append((step, path))
    return max(found)[1] if found else None


def _torn(checkpoint: Path) -> Path | None:
    """A file of a checkpoint that a crash cut short; what torch writes is a zip, whose list stands at its end."""
    for file in sorted(checkpoint.iterdir()):
        if file.suffix in (".pt", ".pth") and not zipfile.is_zipfile(file):
            return file
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, "np"):
                    pass
            except (SafetensorError, OSError):
                return file
    try:
        with loading(checkpoint):
            AutoConfig.from_pretrained(checkpoint)
    except OfframpError:
        return checkpoint / "config.json"
    return None


def checkpoints(folder: Path) -> dict[str, Path]:
    """The whole checkpoints of a run by stage and step, in order."""
    found = sorted(
        (path.parent.name, int(path.name.split("-")[1]), path)
        for path in (folder / CHECKPOINTS).glob("*/checkpoint-*")
        if (path / "config.json").is_file()
    )
    return {f"{stage}-{step}": path for stage, step, path in found}


def finish(new: Path, folder: Path, keep_checkpoints: bool) -> None:
    """Move a written model into the folder, its config last; then the checkpoints may go."""
    with writing(folder):
        for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)
        new.rmdir()
        for logs in (folder / CHECKPOINTS).glob("*/runs"):  # TensorBoard's
            (folder / LOGS).mkdir(exist_ok=True)
            place = folder / LOGS / logs.parent.name
            logs.replace(
                place if not place.exists() else Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
            )
    _drop_aside(folder)
    if not keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
