"""A baseline: a minimal FastAPI server with a full-depth int8 graph in ONNX Runtime.

python benchmarks/plain_server.py GRAPH.onnx MODEL --port 8001
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from transformers import AutoTokenizer


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.graph, options)
    names = [node.name for node in session.get_inputs()]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    app = FastAPI()

    @app.post("/")
    def classify(body: dict[str, Any]) -> list[list[dict[str, float]]]:
        texts = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
        encoded = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="np")
        feed = {"input_ids": encoded["input_ids"].astype(np.int64), "mask": encoded["attention_mask"].astype(bool)}
        logits = session.run(["logits"], {name: value for name, value in feed.items() if name in names})[0]
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return [[{"score": float(score)} for score in row] for row in probabilities]

    @app.get("/ready")
    def ready() -> str:
        return "ready"

    uvicorn.run(app, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
