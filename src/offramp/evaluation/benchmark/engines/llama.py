"""llama.cpp: BERT encoders in q8_0 and bf16, on packed sequences without padding; the exit head runs in torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offramp.core.batch import Batch
from offramp.core.machine import half_precision
from offramp.errors import BadModel
from offramp.evaluation.benchmark.engines.engine import FullModel
from offramp.evaluation.benchmark.engines.gguf_file import write_gguf
from offramp.evaluation.benchmark.entry import Entry

__all__ = ["LlamaEncoder", "build", "open_model"]

MAX_PACKED = 256  # tokens in one call, unless a text is longer: attention is computed between all of them
MAX_SEQUENCES = 64


def build(model: Any, texts: Any, folder: Path) -> list[Entry]:
    """Convert the encoder."""
    backbone = model.config.backbone
    if backbone.model_type != "bert":
        raise BadModel(f"it has no architecture for {backbone.model_type}; of offramp's families it runs bert here.")
    if backbone.hidden_act != "gelu":
        raise BadModel(f"its BERT has GELU, this encoder {backbone.hidden_act}.")
    if model.config.reads_pairs:
        raise BadModel("its BERT has no second token type, which pairs of texts need.")
    entries = []
    for precision in ("q8_0", *(["bf16"] if half_precision()["bfloat16"] else [])):
        file = folder / f"llama-{precision}.gguf"
        write_gguf(model.backbone, file, precision)
        entries.append(Entry(f"llama.cpp {precision}", "full", "llama.cpp", precision, str(file)))
    return entries


def open_model(entry: Entry, runner: Any, threads: int | None) -> FullModel:
    """Load the converted encoder."""
    encoder = LlamaEncoder(str(entry.graph), runner.config.hidden_size, runner.limit, threads)
    stepper = runner.stepper

    def full_model(batch: Batch) -> Tensor:
        mask = batch.as_inputs()["attention_mask"]
        hidden = torch.zeros(*batch.ids.shape, encoder.size)
        hidden[mask.bool()] = torch.from_numpy(encoder(batch.ids.numpy(), batch.lengths))
        logits: Tensor = stepper.classify(hidden, mask)
        return logits

    return full_model


class LlamaEncoder:
    """A context of llama.cpp that returns the hidden states of tokens."""

    def __init__(self, file: str, size: int, max_length: int, threads: int | None):
        import llama_cpp

        self.library, self.size, self.limit = llama_cpp, size, max(MAX_PACKED, max_length)
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)  # else a line per tensor
        llama_cpp.llama_log_set(self.silent, None)
        model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        if model is None:
            raise BadModel(f"llama.cpp cannot load {file}.")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = self.limit
        options.n_seq_max, options.kv_unified = MAX_SEQUENCES, True  # any sequence may have all tokens of a call
        options.n_threads = options.n_threads_batch = threads or torch.get_num_threads()
        options.embeddings, options.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_NONE
        self.context = llama_cpp.llama_init_from_model(model, options)
        if self.context is None:
            raise BadModel("llama.cpp cannot create a context.")
        self.batch = llama_cpp.llama_batch_init(self.limit, 0, 1)

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the hidden states of the rows' tokens, one row after another, (tokens, hidden size)."""
        packs: list[list[NDArray[np.int64]]] = [[]]
        for row, length in zip(ids, lengths, strict=True):
            used = sum(map(len, packs[-1]))
            if packs[-1] and (used + length > self.limit or len(packs[-1]) == MAX_SEQUENCES):
                packs.append([])
            packs[-1].append(row[:length])
        return np.concatenate([self._encode(pack) for pack in packs])

    def _encode(self, rows: list[NDArray[np.int64]]) -> NDArray[np.float32]:
        batch, index = self.batch, 0
        for sequence, row in enumerate(rows):
            for position, token in enumerate(row.tolist()):
                batch.token[index], batch.pos[index] = token, position
                batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, sequence, 1
                index += 1
        batch.n_tokens = index
        if self.library.llama_encode(self.context, batch) != 0:
            raise BadModel("llama.cpp cannot encode a batch.")
        values = self.library.llama_get_embeddings(self.context)
        address = ctypes.cast(values, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (index, self.size)).copy()
