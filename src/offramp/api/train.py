"""`offramp.train` and `offramp.convert`: models with exits, trained here or by an original system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.training.run import Result

__all__ = ["convert", "settings_of", "train"]


def train(
    backbone: str | os.PathLike[str] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    train_data: Any = None,
    dev_data: Any = None,
    config: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Any:
    """Put exits on an encoder and train them, by any of the published recipes.

    Args:
        backbone: an encoder, a fine-tuned classifier or an offramp model: a folder, or a name on the Hub.
        output: the model folder to write.
        train_data: your own data in memory: a tuple of texts and labels, a pandas DataFrame, or a data set.
        dev_data: the same, to score on.
        config: settings from a YAML or JSON file; the others go before.
        resume: go on with the run in `output`.
        overwrite: replace the run in `output`.
        settings: every option of `offramp train`, with underscores (task, train_file, recipe, epochs, batch_size, …),
            and the recipe's own; `offramp train --help` lists them, `offramp.training.settings.Settings` has them.

    Returns a result with `folder`, the exits' `layers`, and every metric of every exit on `dev`; with `seeds` a list.

    >>> offramp.train("bert-base-uncased", output="model", task="sst-2", data_dir="GLUE")       # doctest: +SKIP
    >>> offramp.train("bert-base-uncased", output="model", train_data=(texts, labels),          # doctest: +SKIP
    ...               dev_data=(dev_texts, dev_labels), recipe="deebert", epochs=2)
    """
    from offramp.extras import require

    require("train", "Training")
    from offramp.data.table import Columns
    from offramp.training.data import Tables, table_given
    from offramp.training.run import close_process_group
    from offramp.training.run import train as run
    from offramp.training.seeds import train_seeds

    given = {"backbone": backbone, "output": output}
    options = {name: os.fspath(value) for name, value in given.items() if value is not None} | settings
    made = settings_of(None if config is None else Path(config), options)
    tables: Tables | None = None
    if (train_data is None) is not (dev_data is None):
        raise BadValue("Give both `train_data=` and `dev_data=`: exits are trained on one and scored on the other.")
    if train_data is not None:
        for name in ("task", "train_file", "dev_file", "dataset", "data_dir"):
            if getattr(made, name) is not None:
                raise BadValue(f"The data are given in memory; leave `{name}=` out.")
        columns = Columns(made.text_column, made.pair_column, made.label_column)
        tables = table_given(train_data, "train_data", columns), table_given(dev_data, "dev_data", columns)
    try:
        if made.seeds is not None:
            return train_seeds(made, resume=resume, overwrite=overwrite, tables=tables)
        result: Result = run(made, resume=resume, overwrite=overwrite, tables=tables)
        return result
    finally:
        close_process_group()


def settings_of(config: Path | None, given: dict[str, Any]) -> Any:
    """A file's settings, then the caller's on top; a recipe's own options find their place."""
    from dataclasses import fields

    from offramp.errors import UnknownName
    from offramp.training.recipes import recipe_options
    from offramp.training.settings import Settings, read_settings

    settings: dict[str, Any] = {} if config is None else read_settings(config)
    known, own = {field.name for field in fields(Settings)}, recipe_options()
    if unknown := [name for name in given if name not in known and name not in own]:
        raise UnknownName("setting", unknown[0], [*known, *own])
    settings |= {name: value for name, value in given.items() if name in known and value is not None}
    options = {name: value for name, value in given.items() if name in own and name not in known and value is not None}
    if options:
        settings["recipe_options"] = dict(settings.get("recipe_options") or {}) | options
    for name, what in (("backbone", "the encoder to train"), ("output", "the folder to write")):
        if name not in settings:
            raise BadValue(f"Give `{name}=`, {what}.")
    if isinstance(settings.get("exits"), int):
        settings["exits"] = [settings["exits"]]
    try:
        return Settings(**settings)
    except TypeError as err:
        raise BadValue(f"An option has the wrong kind of value: {err}.") from err


def convert(
    source: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    kind: str | None = None,
    policy: str | None = None,
    layers: int | None = None,
    pad_to: int | None = None,
    no_answer: bool = False,
    faithful: bool = False,
    overwrite: bool = False,
) -> Path:
    """Make a model folder from an original system's checkpoint (config.json and its state dict).

    Args:
        source: the original's folder.
        output: the model folder to write.
        kind: deebert, romebert, berxit, elasticbert, pabee or ebert; None: told by the keys.
        policy: what the model exits by; None: never, for no original stores a threshold.
        layers: of ElasticBERT, only its first layers, statically.
        pad_to: of EBERT, the length that its training padded rows to.
        no_answer: of EBERT on SQuAD 2.0, a context may have no answer.
        faithful: restore what an original did and nobody should want.
        overwrite: replace the model in `output`.

    >>> offramp.convert("deebert-checkpoint", output="my-model", policy="entropy:0.1")          # doctest: +SKIP
    """
    import logging

    from offramp.files.writing import check_free

    target = Path(output)
    check_free(target, overwrite)
    from offramp.originals.convert import ConvertOptions
    from offramp.originals.convert import convert as run

    options = ConvertOptions(layers, faithful, policy or "never", no_answer, pad_to)
    for note in run(Path(source), target, kind=kind, options=options, overwrite=overwrite):
        logging.getLogger("offramp").info("%s", note)
    return target
