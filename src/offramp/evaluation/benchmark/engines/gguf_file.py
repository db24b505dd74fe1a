"""Write a BERT encoder as a GGUF file, the format of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["write_gguf"]

LAYER = {  # names in GGUF files, and in transformers
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}


def write_gguf(encoder: Any, file: Path, precision: str) -> None:
    """Write the encoder without a tokenizer; token ids are its input.

    The precision of matrix products is q8_0 (int8 with a scale per 32 weights) or bf16; the rest is float32.

    llama.cpp has only the first token type; its embedding is added to the positions.
    """
    import gguf

    config = encoder.config
    writer = gguf.GGUFWriter(file, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.NONE)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_token_type_count(1)
    weights = {name: value.detach().float().numpy() for name, value in encoder.state_dict().items()}

    kind = gguf.GGMLQuantizationType[precision.upper()]

    def add(name: str, values: NDArray[Any]) -> None:
        if values.ndim == 2 and name.startswith("blk") and values.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    add("token_embd.weight", weights["embeddings.word_embeddings.weight"])
    types = weights["embeddings.token_type_embeddings.weight"]
    add("position_embd.weight", weights["embeddings.position_embeddings.weight"] + types[:1])
    for part in ("weight", "bias"):
        add(f"token_embd_norm.{part}", weights[f"embeddings.LayerNorm.{part}"])
        for layer in range(config.num_hidden_layers):
            for name, original in LAYER.items():
                add(f"blk.{layer}.{name}.{part}", weights[f"encoder.layer.{layer}.{original}.{part}"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
