"""What an export leaves in a model's folder: the graphs and a small JSON beside them, `onnx/offramp.json`.

The JSON says what was exported from which weights; it also holds the policy that was calibrated on the export, since
what was promised of one precision is not true of another.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from offramp.core.machine import has_int8_products
from offramp.core.runner import Runner
from offramp.core.stepper import points_on
from offramp.errors import BadModel, BadValue, CannotWrite
from offramp.files.faults import loading
from offramp.files.writing import check_free, write_together
from offramp.model import guarantee
from offramp.model.config import AdaptiveConfig
from offramp.model.renamed import current_calibration
from offramp.model.tokenizer import load_tokenizer
from offramp.runtimes import RUNTIMES, graph_runtimes
from offramp.runtimes.segments import SegmentStepper, hash_of

__all__ = [
    "FILE",
    "OURS",
    "Export",
    "check_place",
    "keep_policy",
    "load_export",
    "narrowed",
    "read_export",
    "runtime_of",
    "source_of",
    "tested_on",
]

logger = logging.getLogger("offramp")

SAFE = 63  # of a weight, on a CPU without instructions for 8-bit products (`products.py`)
FILE = "offramp.json"
OURS = re.compile(r"offramp\.json|calibration\.json|exit-\d+\.onnx|model\.onnx")  # what an export leaves


@dataclass(frozen=True)
class Export:
    """What `offramp.json` says."""

    backend: str
    precision: str  # float32, int8-static, int8-token, int8-dynamic
    exits: list[dict[str, Any]]  # as the model's config has them; the graphs are cut there
    files: list[str]  # a graph per exit
    source: dict[str, str]  # the weights that it was made of: files and their hashes
    fresh: list[int]  # layers whose heads were never trained
    made: dict[str, Any]  # by which versions, on which CPU, when
    checked: dict[str, Any] | None = None  # every exit's agreement with torch on real texts; null: there were none
    policy: Any = None  # in place of the config's, chosen on this export
    calibrated: Any = None
    max_tokens: int | None = None
    seen: list[int] = field(default_factory=list)  # hashes of the user's own texts that scales or precision came from

    def written(self) -> str:
        """As a file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def source_of(folder: Path) -> dict[str, str]:
    """The weights in a model's folder by name, with their hashes."""
    files = sorted([*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")])
    return {file.name: hash_of(file) for file in files}


def read_export(folder: Path, backend: str) -> Export:
    """What was exported, whole and from the weights that lie in the folder now."""
    place = folder / backend
    again = f"`offramp.export('{folder}', backend='{backend}', overwrite=True)`"
    if not place.is_dir():
        raise BadModel(f"{folder} has no {backend} export; make one: `offramp.export('{folder}', backend='{backend}')`")
    try:
        saved = json.loads((place / FILE).read_text("utf-8"))
        export = Export(**saved)
        export = replace(export, calibrated=current_calibration(export.calibrated))
    except FileNotFoundError as err:
        raise BadModel(
            f"{place} holds no {FILE}: it is not an export of ours, or a part of one. Move it away, then "
            f"{again.replace(', overwrite=True', '')}"
        ) from err
    except (ValueError, TypeError) as err:
        raise BadModel(f"{place / FILE} is damaged ({str(err).splitlines()[0]:.100}); {again}") from err
    _check(export, place, again)
    missing = [name for name in export.files if not (place / name).is_file()]
    if missing:
        raise BadModel(f"{place} lacks {missing[0]}; {again}")
    there = source_of(folder)
    if there and there != export.source:
        raise BadModel(f"{folder}: its weights have changed since {place} was exported from them; {again}")
    return export


def _check(export: Export, place: Path, again: str) -> None:
    kinds: dict[str, Any] = {"backend": str, "precision": str, "exits": list, "files": list, "source": dict}
    kinds |= {"fresh": list, "made": dict, "checked": dict | None, "max_tokens": int | None, "seen": list}
    kinds |= {"policy": dict | None, "calibrated": dict | None}
    for one in fields(Export):
        value = getattr(export, one.name)
        if not isinstance(value, kinds.get(one.name, object)):
            raise BadModel(f"{place / FILE}: `{one.name}` is {value!r:.60}; {again}")
    if any(not isinstance(spec, dict) or type(spec.get("layer")) is not int for spec in export.exits):
        raise BadModel(f"{place / FILE}: `exits` is {export.exits!r:.60}; {again}")
    names_fit = all(isinstance(name, str) and OURS.fullmatch(name) for name in export.files)
    if not export.files or len(export.files) != len(export.exits) or not names_fit:
        raise BadModel(f"{place / FILE} names {len(export.files)} graphs for {len(export.exits)} exits; {again}")


def load_export(
    name: str, backend: str, threads: int | None, max_length: int | None, hub_options: Mapping[str, Any]
) -> Runner:
    """An exported model, ready to answer; torch's weights are not read."""
    from offramp.model.adaptive import check_kind

    folder = _at_hand(name, backend, hub_options)
    with loading(name):
        check_kind(str(folder), {})
        config: AdaptiveConfig = AdaptiveConfig.from_pretrained(folder)
    export = read_export(folder, backend)
    config = narrowed(config, export, folder / backend)
    made, (open_graph, runtime) = export.made.get("runtime"), runtime_of(backend)
    if made != runtime:
        raise BadModel(
            f"{folder / backend} was written for {made} and compared there, and this is {runtime}; "
            f"`offramp.export('{folder}', backend='{backend}', overwrite=True)`"
        )
    if export.precision.startswith("int8") and not has_int8_products() and export.made.get("largest_weight") != SAFE:
        logger.warning(
            "%s was written for a CPU with instructions for 8-bit products, and this one has none: its sums may "
            "saturate. Export it again here.",
            folder / backend,
        )
    files = tuple(folder / backend / file for file in export.files)
    graphs = tuple(open_graph(file, threads) for file in files)
    points = points_on([spec.layer for spec in config.exit_specs])
    stepper = SegmentStepper(
        backend,
        export.precision,
        points,
        graphs,
        config.answer_type,
        files,
        tested_on(runtime, export.precision),
        tuple(export.fresh),
        threads or torch.get_num_threads(),
    )
    runner = Runner(str(folder), config, load_tokenizer(str(folder), config, {}), stepper, max_length)
    if config.calibrated:
        guarantee.drop_if_stale(config, name, runner.fingerprint, backend, export.precision)
    return runner


def tested_on(runtime: str, precision: str) -> str:
    """What an export's answers depend on beside its graphs: int8 kernels without VNNI may saturate."""
    if not precision.startswith("int8"):
        return runtime
    return f"{runtime}, {'with' if has_int8_products() else 'without'} VNNI"


def _at_hand(name: str, backend: str, hub_options: Mapping[str, Any]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    with loading(name):
        from huggingface_hub import snapshot_download

        options = {key: value for key, value in hub_options.items() if key in ("revision", "token", "cache_dir")}
        patterns = ["*.json", "*.txt", "*.model", f"{backend}/*"]
        return Path(snapshot_download(name, allow_patterns=patterns, **options))


def narrowed(config: AdaptiveConfig, export: Export, place: Path) -> AdaptiveConfig:
    """The model's config with the exits that were exported, and the policy that was chosen for them."""
    config = copy.deepcopy(config)
    own = {spec["layer"]: spec for spec in config.exits or ()}
    if any(own.get(spec.get("layer")) != spec for spec in export.exits):
        raise BadModel(
            f"{place}: the model's exits or temperatures have changed since; export it again (`overwrite=True`)."
        )
    config.exits = list(export.exits)
    if export.policy is not None:
        config.policy, config.calibrated = export.policy, export.calibrated
        config.max_tokens = export.max_tokens or config.max_tokens
    try:
        config.choose()
    except BadValue as err:  # a threshold per exit, of exits that were not exported
        config.policy, config.calibrated = {"name": "never"}, None
        logger.warning("%s: the model's policy does not fit its exits here (%s) Nobody leaves early.", place, err)
    return config


def check_place(place: Path, overwrite: bool) -> None:
    """Refuse to replace a folder that is not an export of ours."""
    check_free(place, overwrite)
    if place.is_dir() and any(place.iterdir()) and not (place / FILE).is_file():
        raise CannotWrite(f"{place} holds no {FILE}: it is not an export of ours and stays. Move it away first.")


def keep_policy(folder: Path, backend: str, config: AdaptiveConfig, evidence: str, evidence_name: str) -> None:
    """Write what was calibrated on an export beside it."""
    export = read_export(folder, backend)
    export = replace(export, policy=config.policy, calibrated=config.calibrated, max_tokens=config.max_tokens)
    place = folder / backend
    write_together({place / FILE: export.written(), place / evidence_name: evidence})


def runtime_of(backend: str) -> tuple[Any, str]:
    """How a backend opens a graph, and the runtime's version."""
    runtime = RUNTIMES[backend]
    if not runtime.runs_graphs:
        raise BadValue(
            f"The backend {backend} runs no exported graphs; {', '.join(one.name for one in graph_runtimes())} do."
        )
    return runtime.open_graph, runtime.version()
