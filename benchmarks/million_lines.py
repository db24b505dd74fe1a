"""Memory of `offramp predict` on a file with a million lines, compared with ten thousand.

The model is tiny and random, so that mostly reading, sorting, batching and writing are measured. The command runs in a
separate process; its peak memory is measured by the operating system.

    python benchmarks/million_lines.py [--lines 1000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from transformers import BertConfig

from offramp import AdaptiveModel
from offramp.core.machine import cpu_name
from offramp.model.config import AdaptiveConfig
from offramp.policies import Patience
from setting import make_tokenizer, read_texts


def make_model(folder: Path, texts: list[str]) -> None:
    """Save a model with two layers of hidden size 32 and an exit on each."""
    torch.manual_seed(0)
    backbone = BertConfig(
        vocab_size=8000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = AdaptiveModel(AdaptiveConfig(backbone=backbone, policy=Patience(1).to_dict()))
    model.tokenizer = make_tokenizer(texts)
    model.save_pretrained(folder)


def write_lines(file: Path, texts: list[str], lines: int) -> None:
    """Write the texts repeatedly until the file has this many lines."""
    with file.open("w", encoding="utf-8") as out:
        for line in range(lines):
            out.write(texts[line % len(texts)] + "\n")


def run(model: Path, file: Path, answers: Path) -> dict[str, float]:
    """Run the command; return seconds and peak memory in MB."""
    command = [
        sys.executable,
        "-m",
        "offramp",
        "predict",
        str(model),
        str(file),
        "--output",
        str(answers),
        "--overwrite",
    ]
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"offramp predict failed with status {status}")
    return {"seconds": time.perf_counter() - start, "peak_mb": usage.ru_maxrss / 1024}


def main() -> None:
    """Measure a short and a long file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = read_texts(None, 5000)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", texts)
        for lines in (10_000, args.lines):
            write_lines(folder / "lines.txt", texts, lines)
            row = {"lines": lines} | run(folder / "model", folder / "lines.txt", folder / "answers.jsonl")
            with (folder / "answers.jsonl").open("rb") as answers:
                row["answers"] = sum(1 for _ in answers)
            rows.append(row)
            speed = lines / row["seconds"]
            print(f"{lines:>9,} lines: {row['seconds']:7.1f} s, {speed:9,.0f} lines/s, peak {row['peak_mb']:,.0f} MB")
    if args.json:
        about = {"date": date.today().isoformat(), "cpu": cpu_name(), "torch": torch.__version__}
        args.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
