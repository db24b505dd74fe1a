"""Turn what the libraries raise while a model is read into one line that its reader can act on."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from offramp.errors import BadModel, OfframpError

__all__ = ["loading"]


@contextmanager
def loading(name: str | os.PathLike[str], what: str = "model") -> Iterator[None]:
    """Name the folder and the fault when a model, a config or a tokenizer cannot be read."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or len(path.parts) > 2 or str(name).startswith((".", "~"))):
        raise BadModel(f"No folder {name}.")  # it cannot be a name on the Hub, so do not ask there
    try:
        yield
    except OfframpError:
        raise
    except SafetensorError as err:
        raise BadModel(
            f"{name}: model.safetensors is truncated or corrupt ({_line(err)}); copy or save it again."
        ) from err
    except pickle.UnpicklingError as err:
        raise BadModel(
            f"{name}: the .bin file holds more than plain tensors; it was not executed. "
            "Save the state dict alone, best as safetensors."
        ) from err
    except (zipfile.BadZipFile, EOFError, json.JSONDecodeError) as err:
        raise BadModel(f"{name}: a file is truncated or corrupt ({_line(err)}); copy or save it again.") from err
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as err:
        raise BadModel(_explain(str(name), what, err)) from err


def _explain(name: str, what: str, err: Exception) -> str:
    folder = Path(name)
    if folder.is_file():
        return f"{name} is a file; a model is a folder with config.json and model.safetensors."
    if folder.is_dir() and not (folder / "config.json").is_file():
        return f"{name} is not a model folder: it has no config.json."
    if not folder.exists() and isinstance(err, OSError):
        return f"No model {name}: no such folder, and the Hub gave none of that name ({_line(err)})."
    return f"{name} cannot be read as a {what}: {_line(err)}"


def _line(err: Exception) -> str:
    text = " ".join(str(err).split()) or type(err).__name__
    return text if len(text) <= 240 else text[:237] + "..."
