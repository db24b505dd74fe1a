"""CTranslate2: BERT, RoBERTa, XLM-RoBERTa and DistilBERT encoders in int8; the exit head runs in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.core.batch import Batch
from offramp.errors import BadModel
from offramp.evaluation.benchmark.engines.engine import FullModel
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["FAMILIES", "build", "open_model"]

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert")


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Convert the encoder."""
    from ctranslate2.converters import TransformersConverter
    from transformers.utils import logging

    family = model.config.backbone.model_type
    if family not in FAMILIES:
        raise BadModel(f"it has no converter for {family}; it supports {', '.join(FAMILIES)}.")
    source, target = folder / "ctranslate2-source", folder / "ctranslate2"
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # the converter loads the encoder with a pooler, which is not used
    logging.disable_progress_bar()
    try:
        model.backbone.save_pretrained(source)
        _complete_config(source / "config.json")
        model.runner().tokenizer.save_pretrained(source)
        TransformersConverter(str(source)).convert(str(target), quantization="int8")
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    return [Entry("CTranslate2 int8", "full", "ctranslate2", "int8", str(target))]


def _complete_config(file: Path) -> None:
    """Add a key that the converter reads, and that transformers 5 no longer writes."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config.setdefault("position_embedding_type", "absolute")
    file.write_text(json.dumps(config), encoding="utf-8")


def open_model(entry: Entry, runner: Any, threads: int | None) -> FullModel:
    """Load the converted encoder."""
    import ctranslate2

    stepper = runner.stepper
    encoder = ctranslate2.Encoder(
        str(entry.graph), compute_type="int8", inter_threads=1, intra_threads=threads or torch.get_num_threads()
    )
    has_types = runner.config.backbone.model_type == "bert"

    def view(values: Any) -> Any:
        return ctranslate2.StorageView.from_array(np.ascontiguousarray(values, np.int32))

    def full_model(batch: Batch) -> Tensor:
        types = batch.types.tolist() if has_types and batch.types is not None and batch.types.any() else None
        output = encoder.forward_batch(view(batch.ids), view(batch.lengths), types)
        hidden = torch.from_numpy(np.array(output.last_hidden_state))
        logits: Tensor = stepper.classify(hidden, batch.as_inputs()["attention_mask"])
        return logits

    return full_model
