"""The output folder of a run: checks, checkpoints, and the files of the finished model."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from offramp.data.training_options import read_options
from offramp.errors import CannotWrite, OfframpError
from offramp.files.load_errors import loading
from offramp.files.managed_files import MODEL, check_managed
from offramp.files.writing import writing
from offramp.training.recipes import RECIPES
from offramp.training.settings import TRAINING_FILE, Settings, read_settings, write_settings

__all__ = [
    "CHECKPOINTS",
    "check_output_folder",
    "check_output_path",
    "checkpoints",
    "finish",
    "is_finished",
    "last_checkpoint",
    "prepare",
    "trained_policy",
]

logger = logging.getLogger("offramp")

CHECKPOINTS, LOGS, PROCESSES = "checkpoints", "logs", "processes"
BACKUP = "aside"  # file in the checkpoints folder with the name of the old model's backup folder
MAY_DIFFER = ("output",)  # settings that may differ when a run is resumed


def trained_policy(folder: Path) -> str | None:
    """Return the exit policy of the recipe that a model was trained with; None if that is not known."""
    try:
        return RECIPES[str(read_options(folder / TRAINING_FILE)["recipe"])].policy
    except (OfframpError, LookupError):
        return None


def check_output_path(settings: Settings) -> None:
    """Raise if the output cannot be a folder, or if the run reads from it."""
    folder = Path(settings.output)
    if not folder.name or folder.name == "-":
        raise CannotWrite(f"{folder} is not a valid output folder; choose another.")
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"{folder} is a file; pass a folder.")
    if not folder.absolute().parent.is_dir():
        raise CannotWrite(f"Cannot write {folder}: the folder {folder.absolute().parent} does not exist.")
    for name in (settings.backbone, settings.data_dir, settings.dataset, settings.train_file, settings.dev_file):
        if name is not None and Path(name).exists() and Path(name).resolve().is_relative_to(folder.resolve()):
            raise CannotWrite(f"{folder} contains an input of the run ({name}); choose another folder.")


def check_output_folder(settings: Settings, resume: bool, overwrite: bool, processes: int = 1) -> None:
    """Raise if the folder must not be written to; nothing is written yet."""
    folder = Path(settings.output)
    if _is_empty(folder):
        return
    if resume:
        _check_same_run(settings, folder, processes)
    elif not overwrite:
        raise CannotWrite(
            f"{folder} contains another run; use `resume=True` to continue it, or `overwrite=True` to replace it."
        )
    else:
        check_managed(folder, MODEL, "a run")


def prepare(settings: Settings, resume: bool, processes: int = 1) -> None:
    """Create the folder with the settings; a resumed run keeps its folder.

    A finished model that will be replaced is moved to a backup folder until the new model is complete.
    """
    folder = Path(settings.output)
    if resume and not _is_empty(folder):
        return
    with writing(folder):
        backup = _make_backup(folder) if is_finished(folder) else None
        backup_name = _read_backup_name(folder) if backup is None else backup.name  # of an earlier, unfinished run
        try:
            if folder.exists():
                shutil.rmtree(folder)
            (folder / CHECKPOINTS).mkdir(parents=True)
            (folder / CHECKPOINTS / PROCESSES).write_text(str(processes))
            (folder / CHECKPOINTS / BACKUP).write_text(backup_name, encoding="utf-8")
            write_settings(settings, folder)
        except OSError:
            if backup is not None:
                shutil.rmtree(folder, ignore_errors=True)
                backup.replace(folder)
            raise


def _make_backup(folder: Path) -> Path:
    """Move a model to a new folder next to it."""
    backup = Path(tempfile.mkdtemp(prefix=f"{folder.name}.before-", dir=folder.absolute().parent))
    folder.replace(backup)  # over an empty folder
    logger.warning("The old model stays in %s until the new model is complete.", backup)
    return backup


def _read_backup_name(folder: Path) -> str:
    """Return the name of the backup folder that a run in this folder made; empty if there is none."""
    file = folder / CHECKPOINTS / BACKUP
    name = file.read_text("utf-8") if file.is_file() else ""
    return name if name.startswith(f"{folder.name}.before-") and Path(name).name == name else ""


def _remove_backup(folder: Path) -> None:
    if name := _read_backup_name(folder):
        shutil.rmtree(folder.with_name(name), ignore_errors=True)
    (folder / CHECKPOINTS / BACKUP).unlink(missing_ok=True)


def _is_empty(folder: Path) -> bool:
    return not (folder.is_dir() and any(folder.iterdir()))


def _check_same_run(settings: Settings, folder: Path, processes: int) -> None:
    if not (folder / TRAINING_FILE).is_file():
        raise CannotWrite(f"{folder} contains no run to resume (no {TRAINING_FILE}); choose another folder.")
    before = settings.changed(**read_settings(folder / TRAINING_FILE)).absolute()
    for name in vars(settings):
        if name not in MAY_DIFFER and getattr(before, name) != getattr(settings, name):
            old, new = getattr(before, name), getattr(settings, name)
            raise CannotWrite(
                f"The run in {folder} was started with `{name}=` {old}, not {new}; resume with the options in its "
                f"{TRAINING_FILE}, or use `overwrite=True`."
            )

    file = folder / CHECKPOINTS / PROCESSES
    started = file.read_bytes().decode("utf-8", "replace") if file.is_file() else str(processes)
    if started != str(processes):
        raise CannotWrite(
            f"The run in {folder} was started with {started!r:.20} processes, not {processes}; resume with as many."
        )


def is_finished(folder: Path) -> bool:
    """Whether the folder contains a complete model: its config is moved in last."""
    return (folder / "config.json").is_file()


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint: the trainer state is written last, so an incomplete one has none."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        try:
            step = int(json.loads((path / "trainer_state.json").read_text())["global_step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if damaged := _find_damaged_file(path):
            logger.warning("%s is truncated or corrupt: this checkpoint is ignored.", damaged)
        else:
            complete.append((step, path))
    return max(complete)[1] if complete else None


def _find_damaged_file(checkpoint: Path) -> Path | None:
    """Return a file that is truncated, or None; files of torch are zip archives, with their directory at the end."""
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
    """Return the complete checkpoints of a run in order, by stage and step."""
    paths = sorted(
        (path.parent.name, int(path.name.split("-")[1]), path)
        for path in (folder / CHECKPOINTS).glob("*/checkpoint-*")
        if (path / "config.json").is_file()
    )
    return {f"{stage}-{step}": path for stage, step, path in paths}


def finish(new: Path, folder: Path, keep_checkpoints: bool) -> None:
    """Move a written model into the folder, its config last, and remove backup and checkpoints."""
    with writing(folder):
        for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)
        new.rmdir()
        for logs in (folder / CHECKPOINTS).glob("*/runs"):  # TensorBoard's
            (folder / LOGS).mkdir(exist_ok=True)
            target = folder / LOGS / logs.parent.name
            if target.exists():
                target = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
            logs.replace(target)
    _remove_backup(folder)
    if not keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
