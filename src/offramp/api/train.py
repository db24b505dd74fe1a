"""`offramp.train` and `offramp.convert`: train models with exits, or convert published checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import BadValue

if TYPE_CHECKING:
    from offramp.training.results import TrainResult

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
    """Add exits to an encoder and train them with a published recipe.

    Args:
        backbone: an encoder, a fine-tuned classifier or an offramp model: a folder or a name on the Hugging Face Hub.
        output: the model folder to write.
        train_data: your own data in memory: a tuple of texts and labels, a pandas DataFrame, or a dataset.
        dev_data: development data, in the same form.
        config: YAML or JSON file with settings; settings passed as arguments override it.
        resume: continue the interrupted run in `output`.
        overwrite: replace the run in `output`.
        settings: every option of `offramp train`, with underscores (task, train_file, recipe, epochs, batch_size, …),
            options of the recipe included; `offramp train --help` lists them.

    Returns:
        The folder, the exit layers and the dev metrics of every exit; with `seeds` a list of such results.

    Examples:
        >>> offramp.train("bert-base-uncased", output="model", task="sst-2", data_dir="GLUE")
        >>> offramp.train("bert-base-uncased", output="model", train_data=(texts, labels),
        ...               dev_data=(dev_texts, dev_labels), recipe="deebert", epochs=2)
    """
    from offramp.extras import require

    require("train", "Training")
    from offramp.data.table import Columns
    from offramp.files.storage import check_local
    from offramp.training.data import Tables, table_in_memory
    from offramp.training.run import close_process_group
    from offramp.training.run import train as run
    from offramp.training.seeds import train_seeds

    paths = {"backbone": backbone, "output": output}
    options = {name: os.fspath(value) for name, value in paths.items() if value is not None} | settings
    run_settings = settings_of(None if config is None else Path(config), options)
    check_local(Path(run_settings.output))
    tables: Tables | None = None
    if (train_data is None) is not (dev_data is None):
        raise BadValue("`train_data=` and `dev_data=` must be set together.")
    if train_data is not None:
        for name in ("task", "train_file", "dev_file", "dataset", "data_dir"):
            if getattr(run_settings, name) is not None:
                raise BadValue(f"`{name}=` cannot be combined with `train_data=`; remove one of them.")
        columns = Columns(run_settings.text_column, run_settings.pair_column, run_settings.label_column)
        tables = table_in_memory(train_data, "train_data", columns), table_in_memory(dev_data, "dev_data", columns)
    try:
        if run_settings.seeds is not None:
            return train_seeds(run_settings, resume=resume, overwrite=overwrite, tables=tables)
        result: TrainResult = run(run_settings, resume=resume, overwrite=overwrite, tables=tables)
        return result
    finally:
        close_process_group()


def settings_of(config: Path | None, options: dict[str, Any]) -> Any:
    """Return the settings of a file, overridden by `options`; options of the recipe go to `recipe_options`."""
    from dataclasses import fields

    from offramp.errors import UnknownName
    from offramp.training.recipes import recipe_options
    from offramp.training.settings import Settings, read_settings

    settings: dict[str, Any] = {} if config is None else read_settings(config)
    names, recipe_names = {field.name for field in fields(Settings)}, set(recipe_options())
    if unknown := [name for name in options if name not in names | recipe_names]:
        raise UnknownName("setting", unknown[0], [*names, *recipe_names])
    present = {name: value for name, value in options.items() if value is not None}
    settings |= {name: value for name, value in present.items() if name in names}
    if for_recipe := {name: value for name, value in present.items() if name not in names}:
        settings["recipe_options"] = dict(settings.get("recipe_options") or {}) | for_recipe
    for name, description in (("backbone", "the encoder to train"), ("output", "the model folder to write")):
        if name not in settings:
            raise BadValue(f"`{name}=` is missing: {description}.")
    if isinstance(settings.get("exits"), int):
        settings["exits"] = [settings["exits"]]
    try:
        return Settings(**settings)
    except TypeError as err:
        raise BadValue(f"A setting has the wrong type: {err}.") from err


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
    """Convert a published system's checkpoint (config.json and state dict) to an offramp model folder.

    Args:
        source: folder of the checkpoint.
        output: the model folder to write.
        kind: "deebert", "romebert", "berxit", "elasticbert", "pabee" or "ebert"; None to detect it from the parameter
            names.
        policy: exit policy of the model; None for never, because these checkpoints store no threshold.
        layers: ElasticBERT: keep only the first layers, with one exit.
        pad_to: EBERT: length that training padded rows to.
        no_answer: EBERT on SQuAD 2.0: questions may have no answer in the context.
        faithful: reproduce known flaws of the original, such as an untrained last exit.
        overwrite: replace the model in `output`.

    Returns:
        The model folder.

    Examples:
        >>> offramp.convert("deebert-checkpoint", output="my-model", policy="entropy:0.1")
    """
    import logging

    from offramp.files.writing import check_output_path

    target = Path(output)
    check_output_path(target, overwrite)
    from offramp.originals.convert import ConvertOptions
    from offramp.originals.convert import convert as run

    options = ConvertOptions(layers, faithful, policy or "never", no_answer, pad_to)
    for note in run(Path(source), target, kind=kind, options=options, overwrite=overwrite):
        logging.getLogger("offramp").info("%s", note)
    return target
