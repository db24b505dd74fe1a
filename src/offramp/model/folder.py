"""What a model folder contains besides the model: its exports, and the code that lets transformers load it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offramp.answers import ANSWER_TYPES
from offramp.errors import OfframpError
from offramp.files.managed_files import EXPORT
from offramp.model.renamed import current_calibration
from offramp.policies import Policy, parse
from offramp.runtimes import graph_runtimes
from offramp.runtimes.segments import hash_sources

__all__ = [
    "AUTO_CLASSES",
    "AUTO_MAP",
    "EXPORT_FILE",
    "REMOTE_CODE",
    "REMOTE_CODE_FILE",
    "ExportSummary",
    "copy_exports",
    "exports_in",
    "hash_weight_files",
]

logger = logging.getLogger("offramp")

EXPORT_FILE = "offramp.json"
REMOTE_CODE_FILE = "modeling_offramp.py"
REMOTE_CODE = '''\
"""Loads this model in transformers with `trust_remote_code=True`; needs offramp (pip install offramp)."""

from offramp import AdaptiveConfig, AdaptiveModel

__all__ = ["AdaptiveConfig", "AdaptiveModel"]
'''
AUTO_CLASSES = ("AutoModel", *dict.fromkeys(f"AutoModel{kind.architecture}" for kind in ANSWER_TYPES.values()))
AUTO_MAP = {"AutoConfig": "modeling_offramp.AdaptiveConfig"}
AUTO_MAP |= dict.fromkeys(AUTO_CLASSES, "modeling_offramp.AdaptiveModel")


@dataclass(frozen=True)
class ExportSummary:
    """An export for the model card: its precision, its policy (None: the model's) and its calibration."""

    precision: str
    policy: Policy | None
    calibrated: dict[str, Any] | None


def exports_in(folder: Path, exits: Sequence[Any] | None = None) -> dict[str, ExportSummary]:
    """Return the exports in a model folder by backend, without those that are unreadable or of other weights or exits.

    `exits` are the exits in the model's config.
    """
    exports, weights = {}, None
    specs = {spec["layer"]: spec for spec in exits or ()}
    for runtime in graph_runtimes():
        try:
            saved = json.loads((folder / runtime.name / EXPORT_FILE).read_text("utf-8"))
            weights = hash_weight_files(folder) if weights is None else weights
            if weights and saved["source"] != weights:
                continue
            if specs and any(specs.get(spec["layer"]) != spec for spec in saved["exits"]):
                continue
            policy = None if saved["policy"] is None else parse(saved["policy"])
            calibrated = current_calibration(saved["calibrated"])
            if calibrated is not None:
                calibrated["sentence"]  # raises if it is missing
            exports[runtime.name] = ExportSummary(str(saved["precision"]), policy, calibrated)
        except (OSError, ValueError, LookupError, TypeError, OfframpError):
            continue
    return exports


def hash_weight_files(folder: Path) -> dict[str, str]:
    """Return the hashes of the weight files in a model folder, by name."""
    files = sorted([*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")])
    return {file.name: hash_sources(file) for file in files}


def copy_exports(source: Path, folder: Path) -> None:
    """Copy the exports of a model folder into one with the same weights; warn about exports of other weights."""
    weights = None
    for export in (source / runtime.name for runtime in graph_runtimes()):
        if not (export / EXPORT_FILE).is_file():
            continue
        weights = hash_weight_files(folder) if weights is None else weights
        try:
            exported = json.loads((export / EXPORT_FILE).read_text("utf-8"))["source"]
        except (OSError, ValueError, LookupError, TypeError):
            exported = None
        if exported != weights:
            logger.warning("%s was exported from other weights than those saved; export the model again.", export)
        elif source.resolve() != folder.resolve():
            (folder / export.name).mkdir(exist_ok=True)
            for file in export.iterdir():
                if EXPORT.fullmatch(file.name):
                    shutil.copyfile(file, folder / export.name / file.name)
