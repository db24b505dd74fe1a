"""Predict texts with `model.onnx`, a single graph with early exits, without offramp and PyTorch.

    pip install onnxruntime tokenizers numpy
    offramp export MODEL --one-file
    python one_file.py MODEL texts.txt

MODEL is the model folder, with onnx/model.onnx and tokenizer.json. Prints a JSON line per text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BATCH = 32


def main(folder: Path, file: Path) -> None:
    """Print the label, its probability and the exit layer of every line of a file."""
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    settings = session.get_modelmeta().custom_metadata_map  # labels, max_length, threshold, …
    labels = json.loads(settings["labels"])
    tokenizer = Tokenizer.from_file(str(folder / settings["tokenizer"]))
    tokenizer.enable_truncation(int(settings["max_length"]))
    tokenizer.enable_padding(pad_id=int(settings["pad_token_id"]))
    # a higher max_layers than the model has means no limit
    options = {"threshold": np.array(float(settings["threshold"]), np.float32), "max_layers": np.array(1000)}
    inputs = {node.name for node in session.get_inputs()}
    texts = [line.removesuffix("\r") for line in file.read_text("utf-8").removesuffix("\n").split("\n")]
    for start in range(0, len(texts), BATCH):
        encoded = tokenizer.encode_batch(texts[start : start + BATCH])
        tokens = {
            "input_ids": [row.ids for row in encoded],
            "attention_mask": [row.attention_mask for row in encoded],
            "token_type_ids": [row.type_ids for row in encoded],
        }
        feed = {name: np.array(rows) for name, rows in tokens.items() if name in inputs}
        logits, exit_layers = session.run(["logits", "exit_layer"], feed | options)
        scores = np.exp(logits - logits.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        for row, layer in zip(scores, exit_layers, strict=True):
            best = int(row.argmax())
            print(json.dumps({"label": labels[best], "score": round(float(row[best]), 6), "exit_layer": int(layer)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
