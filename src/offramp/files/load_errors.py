"""Turn library errors raised while a model loads into one-line messages that the user can act on.

Only errors caused by the files are translated. Errors raised by offramp's own code and out-of-memory errors pass
through unchanged.
"""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from offramp.errors import BadModel, OfframpError
from offramp.extras import require
from offramp.files.storage import check_local_model

__all__ = ["loading", "reading"]

PACKAGE_DIR = str(Path(__file__).parent.parent)


@contextmanager
def loading(name: str | os.PathLike[str], what: str = "model") -> Iterator[None]:
    """Raise `BadModel` with the folder and the reason when a model, config or tokenizer cannot be loaded."""
    path = Path(name)
    check_local_model(name)
    if not path.exists() and (path.is_absolute() or len(path.parts) > 2 or str(name).startswith((".", "~"))):
        raise BadModel(f"Folder not found: {name}.")  # not a valid Hub name, so the Hub is not queried
    try:
        yield
    except BadModel as err:
        if str(name) in str(err):
            raise
        raise BadModel(f"{name}: {err}") from err
    except OfframpError:
        raise
    except SafetensorError as err:
        corrupt = _find_corrupt_file(path) or "model.safetensors"
        raise BadModel(f"{name}: {corrupt} is truncated or corrupt ({_one_line(err)}); copy or save it again.") from err
    except pickle.UnpicklingError as err:
        raise BadModel(
            f"{name}: the .bin file contains more than plain tensors and was not executed. "
            "Save only the state dict, preferably as safetensors."
        ) from err
    except (zipfile.BadZipFile, EOFError, json.JSONDecodeError) as err:
        corrupt = _find_corrupt_file(path) or "a file"
        raise BadModel(f"{name}: {corrupt} is truncated or corrupt ({_one_line(err)}); copy or save it again.") from err
    except OSError as err:
        raise BadModel(_explain(str(name), what, err)) from err
    except Exception as err:  # libraries raise many exception types for a broken file
        if _is_own_bug(err) or _is_out_of_memory(err):
            raise
        if "tiktoken" in str(err):  # transformers' last attempt at a .model file if sentencepiece is missing
            require("sentencepiece", f"The tokenizer of {name}")
        raise BadModel(_explain(str(name), what, err)) from err
    except BaseException as err:
        if type(err).__name__ != "PanicException":  # a panic in a Rust library
            raise
        raise BadModel(_explain(str(name), what, err)) from err


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Raise `BadModel` with the file name when a library cannot parse the file's content."""
    try:
        yield
    except OfframpError as err:
        raise BadModel(f"{file}: {err}") from err
    except Exception as err:
        if _is_own_bug(err) or _is_out_of_memory(err):
            raise
        raise BadModel(f"{file}: {_one_line(err)}") from err


def _is_own_bug(err: Exception) -> bool:
    """Whether the error was raised by offramp itself, not by a library that parsed the files."""
    frame = err.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_filename.startswith(PACKAGE_DIR)


def _is_out_of_memory(err: Exception) -> bool:
    return isinstance(err, MemoryError) or "allocate memory" in str(err) or "out of memory" in str(err).lower()


def _explain(name: str, what: str, err: BaseException) -> str:
    folder = Path(name)
    if folder.is_file():
        return f"{name} is a file; a model is a folder with config.json and model.safetensors."
    if folder.is_dir() and not (folder / "config.json").is_file():
        return f"{name} is not a model folder: it has no config.json."
    if not folder.exists() and isinstance(err, OSError):
        offline = "connect" in str(err) or "offline" in str(err).lower()
        hub = "the Hugging Face Hub could not be reached" if offline else "the Hugging Face Hub has no such model"
        return f"Model {name} not found: there is no such folder, and {hub}."
    if corrupt := _find_corrupt_file(folder):
        return f"{name}: {corrupt} is truncated or corrupt ({_one_line(err)}); copy or save it again."
    if what == "tokenizer":
        return f"{name}: tokenizer.json or tokenizer_config.json cannot be read ({_one_line(err)}); copy them again."
    return f"{name} cannot be read as a {what}: {_one_line(err)}"


def _find_corrupt_file(folder: Path) -> str | None:
    """Return the name of the first JSON or safetensors file of a model folder that cannot be parsed."""
    for file in sorted([*folder.glob("*.json"), *folder.glob("model*.safetensors")]):
        try:
            if file.suffix == ".json":
                content = json.loads(file.read_text("utf-8"))
                if not isinstance(content, dict) or (not content and file.name == "config.json"):
                    return file.name
            else:
                with safe_open(file, "np"):
                    pass
        except (OSError, ValueError, RecursionError, SafetensorError):
            return file.name
    return None


def _one_line(err: BaseException) -> str:
    text = " ".join(str(err).split()) or type(err).__name__
    return text if len(text) <= 240 else text[:237] + "..."
