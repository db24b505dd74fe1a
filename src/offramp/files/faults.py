"""Turn what the libraries raise while a model is read into one line that its reader can act on.

Only faults of the files are turned: what our own code raises is our bug, and what the machine lacks (memory) is said
as it is.
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

__all__ = ["loading", "reading"]

OURS = str(Path(__file__).parent.parent)


@contextmanager
def loading(name: str | os.PathLike[str], what: str = "model") -> Iterator[None]:
    """Name the folder and the fault when a model, a config or a tokenizer cannot be read."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or len(path.parts) > 2 or str(name).startswith((".", "~"))):
        raise BadModel(f"No folder {name}.")  # it cannot be a name on the Hub, so do not ask there
    try:
        yield
    except BadModel as err:
        if str(name) in str(err):
            raise
        raise BadModel(f"{name}: {err}") from err
    except OfframpError:
        raise
    except SafetensorError as err:
        torn = _torn(path) or "model.safetensors"
        raise BadModel(f"{name}: {torn} is truncated or corrupt ({_line(err)}); copy or save it again.") from err
    except pickle.UnpicklingError as err:
        raise BadModel(
            f"{name}: the .bin file holds more than plain tensors; it was not executed. "
            "Save the state dict alone, best as safetensors."
        ) from err
    except (zipfile.BadZipFile, EOFError, json.JSONDecodeError) as err:
        torn = _torn(path) or "a file"
        raise BadModel(f"{name}: {torn} is truncated or corrupt ({_line(err)}); copy or save it again.") from err
    except OSError as err:
        raise BadModel(_explain(str(name), what, err)) from err
    except Exception as err:  # the libraries raise many kinds for one broken file
        if _is_a_bug(err) or _is_memory(err):
            raise
        raise BadModel(_explain(str(name), what, err)) from err
    except BaseException as err:
        if type(err).__name__ != "PanicException":  # of a library in Rust that gave up
            raise
        raise BadModel(_explain(str(name), what, err)) from err


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Name the file of a folder when a library cannot make anything of what it holds."""
    try:
        yield
    except OfframpError as err:
        raise BadModel(f"{file}: {err}") from err
    except Exception as err:
        if _is_a_bug(err) or _is_memory(err):
            raise
        raise BadModel(f"{file}: {_line(err)}") from err


def _is_a_bug(err: Exception) -> bool:
    """Whether the error was raised by a line of our own, not by a library that read what the files hold."""
    frame = err.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_filename.startswith(OURS)


def _is_memory(err: Exception) -> bool:
    return isinstance(err, MemoryError) or "allocate memory" in str(err) or "out of memory" in str(err).lower()


def _explain(name: str, what: str, err: BaseException) -> str:
    folder = Path(name)
    if folder.is_file():
        return f"{name} is a file; a model is a folder with config.json and model.safetensors."
    if folder.is_dir() and not (folder / "config.json").is_file():
        return f"{name} is not a model folder: it has no config.json."
    if not folder.exists() and isinstance(err, OSError):
        return f"No model {name}: no such folder, and the Hub gave none of that name ({_line(err)})."
    if torn := _torn(folder):
        return f"{name}: {torn} is truncated or corrupt ({_line(err)}); copy or save it again."
    if what == "tokenizer":
        return f"{name}: tokenizer.json or tokenizer_config.json cannot be read ({_line(err)}); copy them again."
    return f"{name} cannot be read as a {what}: {_line(err)}"


def _torn(folder: Path) -> str | None:
    """The name of the first file of a model folder that is not what its ending guarantees."""
    for file in sorted([*folder.glob("*.json"), *folder.glob("model*.safetensors")]):
        try:
            if file.suffix == ".json":
                found = json.loads(file.read_text("utf-8"))
                if not isinstance(found, dict) or (not found and file.name == "config.json"):
                    return file.name
            else:
                with safe_open(file, "np"):
                    pass
        except (OSError, ValueError, RecursionError, SafetensorError):
            return file.name
    return None


def _line(err: BaseException) -> str:
    text = " ".join(str(err).split()) or type(err).__name__
    return text if len(text) <= 240 else text[:237] + "..."
