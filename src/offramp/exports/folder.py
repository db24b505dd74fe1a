"""The folder of an export in a model folder: the graphs and `offramp.json`, such as `onnx/offramp.json`.

The JSON file records what was exported from which weights, and the policy that was calibrated on the export: a
guarantee for one precision does not hold for another.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from offramp.core.machine import has_int8_dot_products
from offramp.core.runner import Runner
from offramp.core.stepper import exit_points_on
from offramp.errors import BadModel, BadValue, CannotWrite
from offramp.files.load_errors import loading
from offramp.files.managed_files import EXPORT
from offramp.files.writing import check_output_path, replace_files
from offramp.model import card, guarantee
from offramp.model.config import AdaptiveConfig
from offramp.model.folder import EXPORT_FILE, hash_weight_files
from offramp.model.renamed import current_calibration
from offramp.model.saved_config import check_calibrated
from offramp.model.tokenizer import load_tokenizer
from offramp.runtimes import RUNTIMES, graph_runtimes
from offramp.runtimes.segments import SegmentStepper

__all__ = [
    "Export",
    "apply_export",
    "check_export_folder",
    "describe_runtime",
    "load_export",
    "read_export",
    "resolve_runtime",
    "save_policy",
]

logger = logging.getLogger("offramp")

MAX_7_BIT_WEIGHT = 63  # safe on a CPU without 8-bit dot products (`products.py`)


@dataclass(frozen=True)
class Export:
    """The contents of `offramp.json`."""

    backend: str
    precision: str  # float32, int8-static, int8-mixed, int8-token, int8-dynamic
    exits: list[dict[str, Any]]  # as in the model's config
    files: list[str]  # one graph per exit
    source: dict[str, str]  # hashes of the exported weight files
    fresh: list[int]  # layers with an untrained head
    made: dict[str, Any]  # versions, CPU, date
    checked: dict[str, Any] | None = None  # agreement with torch per exit; null without texts
    policy: Any = None  # calibrated on this export; replaces the config's
    calibrated: Any = None
    max_tokens: int | None = None
    seen: list[int] = field(default_factory=list)  # hashes of the user's texts that were used to export

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def read_export(folder: Path, backend: str) -> Export:
    """Read an export; raise if it is damaged, incomplete, or made from other weights than those in the folder."""
    export_folder = folder / backend
    again = f"`offramp.export('{folder}', backend='{backend}', overwrite=True)`"
    if not export_folder.is_dir():
        raise BadModel(f"{folder} has no {backend} export; run `offramp.export('{folder}', backend='{backend}')`")
    try:
        saved = json.loads((export_folder / EXPORT_FILE).read_text("utf-8"))
        export = Export(**saved)
        export = replace(export, calibrated=current_calibration(export.calibrated))
    except FileNotFoundError as err:
        raise BadModel(
            f"{export_folder} has no {EXPORT_FILE}: it is not a complete offramp export. Move it away, then run "
            f"{again.replace(', overwrite=True', '')}"
        ) from err
    except (ValueError, TypeError) as err:
        raise BadModel(
            f"{export_folder / EXPORT_FILE} is damaged ({str(err).splitlines()[0]:.100}); run {again}"
        ) from err
    _check(export, export_folder, again)
    if export.calibrated is not None:
        try:
            check_calibrated(export.calibrated)
        except BadModel as err:
            raise BadModel(f"{export_folder / EXPORT_FILE}: {err}") from err
    missing = [name for name in export.files if not (export_folder / name).is_file()]
    if missing:
        raise BadModel(f"{export_folder} has no {missing[0]}; run {again}")
    weights = hash_weight_files(folder)
    if weights and weights != export.source:
        raise BadModel(f"The weights in {folder} have changed since {export_folder} was exported; run {again}")
    return export


def _check(export: Export, export_folder: Path, again: str) -> None:
    types: dict[str, Any] = {"backend": str, "precision": str, "exits": list, "files": list, "source": dict}
    types |= {"fresh": list, "made": dict, "checked": dict | None, "max_tokens": int | None, "seen": list}
    types |= {"policy": dict | None, "calibrated": dict | None}
    for entry in fields(Export):
        value = getattr(export, entry.name)
        if not isinstance(value, types.get(entry.name, object)):
            raise BadModel(f"{export_folder / EXPORT_FILE}: `{entry.name}` is {value!r:.60}; run {again}")
    if any(not isinstance(spec, dict) or type(spec.get("layer")) is not int for spec in export.exits):
        raise BadModel(f"{export_folder / EXPORT_FILE}: `exits` is {export.exits!r:.60}; run {again}")
    names_valid = all(isinstance(name, str) and EXPORT.fullmatch(name) for name in export.files)
    if not export.files or len(export.files) != len(export.exits) or not names_valid:
        raise BadModel(
            f"{export_folder / EXPORT_FILE} names {len(export.files)} graphs for {len(export.exits)} exits; run {again}"
        )


def load_export(
    name: str, backend: str, threads: int | None, max_length: int | None, hub_options: Mapping[str, Any]
) -> Runner:
    """Load an exported model; the torch weights are not read."""
    from offramp.model.loading import check_model_type

    folder = _local_folder(name, backend, hub_options)
    with loading(name):
        check_model_type(str(folder), {})
        config: AdaptiveConfig = AdaptiveConfig.from_pretrained(folder)
    export = read_export(folder, backend)
    config = apply_export(config, export, folder / backend)
    exported_for, (open_graph, runtime) = export.made.get("runtime"), resolve_runtime(backend)
    if exported_for != runtime:
        raise BadModel(
            f"{folder / backend} was exported for {exported_for}, but {runtime} is installed; run "
            f"`offramp.export('{folder}', backend='{backend}', overwrite=True)`"
        )
    if (
        export.precision.startswith("int8")
        and not has_int8_dot_products()
        and export.made.get("largest_weight") != MAX_7_BIT_WEIGHT
    ):
        logger.warning(
            "%s was exported on a CPU with 8-bit dot products, which this CPU lacks: sums may saturate. Export it "
            "again on this machine.",
            folder / backend,
        )
    files = tuple(folder / backend / file for file in export.files)
    graphs = tuple(open_graph(file, threads) for file in files)
    points = exit_points_on([spec.layer for spec in config.exit_specs])
    stepper = SegmentStepper(
        backend,
        export.precision,
        points,
        graphs,
        config.answer_type,
        files,
        describe_runtime(runtime, export.precision),
        tuple(export.fresh),
        threads or torch.get_num_threads(),
    )
    runner = Runner(str(folder), config, load_tokenizer(str(folder), config, {}), stepper, max_length)
    if config.calibrated:
        guarantee.drop_if_stale(config, name, runner.fingerprint, backend, export.precision)
    return runner


def describe_runtime(runtime: str, precision: str) -> str:
    """Return what predictions depend on besides the graphs: the runtime, and for int8 whether the CPU has VNNI."""
    if not precision.startswith("int8"):
        return runtime
    return f"{runtime}, {'with' if has_int8_dot_products() else 'without'} VNNI"


def _local_folder(name: str, backend: str, hub_options: Mapping[str, Any]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    with loading(name):
        from huggingface_hub import snapshot_download

        options = {key: value for key, value in hub_options.items() if key in ("revision", "token", "cache_dir")}
        patterns = ["*.json", "*.txt", "*.model", f"{backend}/*"]
        return Path(snapshot_download(name, allow_patterns=patterns, **options))


def apply_export(config: AdaptiveConfig, export: Export, export_folder: Path) -> AdaptiveConfig:
    """Return the model's config with the exits and the policy of an export."""
    config = copy.deepcopy(config)
    specs = {spec["layer"]: spec for spec in config.exits or ()}
    if any(specs.get(spec.get("layer")) != spec for spec in export.exits):
        raise BadModel(
            f"The model's exits or temperatures have changed since {export_folder} was exported; export it again with "
            "`overwrite=True`."
        )
    config.exits = list(export.exits)
    if export.policy is not None:
        config.policy, config.calibrated = export.policy, export.calibrated
        config.max_tokens = export.max_tokens or config.max_tokens
    try:
        config.resolve_policy()
    except BadValue as err:  # a threshold per exit, and not all exits were exported
        config.policy, config.calibrated = {"name": "never"}, None
        logger.warning("%s: the model's policy does not fit these exits (%s) No text exits early.", export_folder, err)
    return config


def check_export_folder(export_folder: Path, overwrite: bool) -> None:
    """Raise if the folder exists and is not an offramp export."""
    check_output_path(export_folder, overwrite)
    if export_folder.is_dir() and any(export_folder.iterdir()) and not (export_folder / EXPORT_FILE).is_file():
        raise CannotWrite(f"{export_folder} has no {EXPORT_FILE}: it is not an offramp export. Move it away first.")


def save_policy(folder: Path, backend: str, config: AdaptiveConfig, evidence: str | None = None) -> None:
    """Save the policy, its guarantee and the evidence of a calibration with its export."""
    export = read_export(folder, backend)
    export = replace(export, policy=config.policy, calibrated=config.calibrated, max_tokens=config.max_tokens)
    export_folder = folder / backend
    files = {export_folder / EXPORT_FILE: export.to_json()}
    replace_files(files if evidence is None else files | {export_folder / card.EVIDENCE: evidence})
    replace_files(card.new_card(AdaptiveConfig.from_pretrained(folder), folder))


def resolve_runtime(backend: str) -> tuple[Any, str]:
    """Return the function of a backend that opens a graph, and the version of its library."""
    runtime = RUNTIMES[backend]
    if not runtime.runs_graphs:
        raise BadValue(
            f"Backend {backend} does not run exported graphs. "
            f"Available: {', '.join(runtime.name for runtime in graph_runtimes())}."
        )
    return runtime.open_graph, runtime.version()
