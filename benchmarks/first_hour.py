"""The first hour of a new user: a classifier that offramp took no part in is made faster, used, served and exported.

    python benchmarks/first_hour.py [tweets films] [--modes cli python] [--risk 0.02] [--folder DIR] [--node DIR]

Each trial fine-tunes a classifier with plain transformers (first_hour_data.py), then runs, from an empty folder, either
only commands or only Python: adapt, info, predict, one file, serve. Everything that is printed is recorded with its
time, in benchmarks/results/first_hour. The record also has the longest silence, repeated lines, predictions that differ
on texts that nothing has seen, and CPU seconds of the Hugging Face pipeline and of ordinary int8 (ONNX Runtime's
dynamic quantization) on the same texts. In DIR of --node, npm has installed onnxruntime-node and
@huggingface/tokenizers.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from first_hour_data import TRIALS, Trial, prepare
from packages import CACHE

RESULTS = Path(__file__).parent / "results" / "first_hour"
EXAMPLES = Path(__file__).parent.parent / "examples"
OFFRAMP = [sys.executable, "-m", "offramp"]
NUM_ONE_FILE, NUM_SERVED = 200, 40


@dataclass
class Transcript:
    """The lines that commands print, with the seconds since the start."""

    lines: list[str] = field(default_factory=list)
    silences: list[tuple[float, str]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    def run(self, *command: str, cwd: Path, until: str | None = None) -> subprocess.Popen[str]:
        """Run a command and record its lines; with `until`, return while it runs, after a line with this text."""
        shown = " ".join(command).replace(f"{sys.executable} -m offramp", "offramp").replace(sys.executable, "python")
        self.add(f"$ {shown}")
        process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        last = time.monotonic()
        assert process.stdout is not None
        for line in process.stdout:
            self.silences.append((time.monotonic() - last, line.strip()))
            last = time.monotonic()
            self.add(line.rstrip("\n"))
            if until is not None and until in line:
                return process
        if process.wait() != 0:
            raise SystemExit(f"{shown} ended with code {process.returncode}:\n" + "\n".join(self.lines[-20:]))
        self.silences.append((time.monotonic() - last, "the end of the command"))
        return process

    def add(self, line: str) -> None:
        """Record and print a line."""
        entry = f"{time.monotonic() - self.start:7.1f}  {line}"
        self.lines.append(entry)
        print(entry, flush=True)

    def repeated(self) -> list[str]:
        """Return lines that were printed more than once; progress has different numbers every time."""
        texts = [line[9:] for line in self.lines]
        return [text for text, count in Counter(texts).items() if count > 1 and text.strip()]


# -- the two ways -------------------------------------------------------------------------------------


def by_command_line(trial: Trial, folder: Path, risk: float, node: Path | None, transcript: Transcript) -> None:
    """Only commands."""
    options = ["--risk", f"{risk:g}", "--backend", "onnx", "--threads", "1", *trial.adapt]
    transcript.run(*OFFRAMP, "adapt", "my-classifier", "texts.txt", *options, "--output", "fast", cwd=folder)
    transcript.run(*OFFRAMP, "info", "fast", cwd=folder)
    transcript.run(*OFFRAMP, "predict", "fast", "fresh.csv", "--output", "predictions.csv", cwd=folder)
    transcript.run(*OFFRAMP, "export", "fast", "--one-file", cwd=folder)
    _one_file(folder, node, transcript)
    server = transcript.run(*OFFRAMP, "serve", "fast", "--port", "0", "--audit", "0.1", cwd=folder, until="Serving")
    _request(server, folder, transcript)


PYTHON = """\
import logging
import sys
from multiprocessing import Process

import offramp

logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)


def main(risk, max_length):
    fast = offramp.adapt(
        "my-classifier", "texts.txt", output="fast", risk=risk, backend="onnx", threads=1, max_length=max_length
    )
    print(fast)
    print(offramp.info("fast"))
    print(offramp.predict("fast", "fresh.csv", output="predictions.csv"))
    print(offramp.export("fast", one_file=True))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
"""
SERVE = """\
import offramp

offramp.serve("fast", port=0, audit=0.1, announce=lambda line: print(line, flush=True))
"""


def by_python(trial: Trial, folder: Path, risk: float, node: Path | None, transcript: Transcript) -> None:
    """Only Python."""
    (folder / "hour.py").write_text(PYTHON)
    (folder / "serve.py").write_text(SERVE)
    transcript.run(sys.executable, "-u", "hour.py", f"{risk:g}", *trial.adapt[1:2], cwd=folder)
    _one_file(folder, node, transcript)
    _request(transcript.run(sys.executable, "serve.py", cwd=folder, until="Serving"), folder, transcript)


def _fresh_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "fresh.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _one_file(folder: Path, node: Path | None, transcript: Transcript) -> None:
    """Run the single graph without offramp, in Python and in Node, and compare it with `predict`."""
    texts = [" ".join(row["text"].split()) for row in _fresh_rows(folder)[:NUM_ONE_FILE]]
    (folder / "some.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    commands = [[sys.executable, str(EXAMPLES / "one_file.py")]]
    if node is not None:
        script = folder / "one_file.mjs"
        script.write_text((EXAMPLES / "one_file.mjs").read_text())
        (folder / "node_modules").symlink_to(node.resolve() / "node_modules")
        commands.append(["node", script.name])
    expected = subprocess.run(
        [*OFFRAMP, "predict", "fast", "some.txt"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for command in commands:
        done = subprocess.run([*command, "fast", "some.txt"], cwd=folder, capture_output=True, text=True, check=True)
        pairs = list(zip(map(json.loads, done.stdout.splitlines()), map(json.loads, expected), strict=True))
        other = sum(one["exit_layer"] != two["exit_layer"] or one["label"] != two["label"] for one, two in pairs)
        name = Path(command[-1]).name
        transcript.add(f"$ {name} fast some.txt: {len(pairs)} texts, {other} other labels or exit layers than predict")


def _request(server: subprocess.Popen[str], folder: Path, transcript: Transcript) -> None:
    """Send texts to a server, then stop it."""
    url = re.search(r"http://\S+:\d+", transcript.lines[-1])
    assert url is not None
    body = json.dumps({"inputs": [row["text"] for row in _fresh_rows(folder)[:NUM_SERVED]]}).encode()
    request = urllib.request.Request(url[0], body, {"content-type": "application/json"})
    reply = None
    while reply is None:
        try:
            reply = json.loads(urllib.request.urlopen(request, timeout=60).read())
        except urllib.error.HTTPError as err:
            if err.code != 503:  # the model is loading
                raise
            time.sleep(0.2)
    first = json.dumps(reply[0])
    transcript.add(f"$ curl {url[0]} -d '{{\"inputs\": […]}}': {len(reply)} predictions, such as {first}")
    server.send_signal(signal.SIGTERM)
    assert server.stdout is not None
    for line in server.stdout:
        transcript.add(line.rstrip("\n"))
    server.wait()


# -- what it is worth ---------------------------------------------------------------------------------


def measure(folder: Path, trial: Trial) -> dict[str, Any]:
    """Return predictions that differ and CPU seconds on the fresh texts: pipeline, ordinary int8 and offramp."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    import offramp

    torch.set_num_threads(1)
    texts = [row["text"] for row in _fresh_rows(folder)]
    model = AutoModelForSequenceClassification.from_pretrained(folder / "my-classifier").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "my-classifier", model_max_length=trial.max_length)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    runner = offramp.load(folder / "fast")
    ordinary = _ordinary_int8(model, tokenizer, folder, trial.max_length)
    functions: dict[str, Any] = {
        "pipeline": lambda rows: [entry["label"] for entry in classify(list(rows), batch_size=32, truncation=True)],
        "int8": ordinary,
        "offramp": lambda rows: [answer.label for answer in runner.predict(rows, progress=False)],
    }
    labels, seconds = {}, {}
    for name, function in functions.items():
        function(texts[:32])
        start = time.process_time()
        labels[name] = function(texts)
        seconds[name] = time.process_time() - start
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        written = [row["label"] for row in csv.DictReader(file)]
    differ = {
        name: sum(one != two for one, two in zip(labels["pipeline"], other, strict=True)) / len(texts)
        for name, other in (labels | {"predictions.csv": written}).items()
    }
    return {"texts": len(texts), "cpu_seconds": seconds, "differ": differ}


def _ordinary_int8(model: Any, tokenizer: Any, folder: Path, max_length: int) -> Any:
    """Return a function that predicts with the exported and dynamically quantized model, in batches of 32."""
    import onnxruntime
    import torch
    from onnxruntime.quantization import quantize_dynamic

    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tokenizer(["a text", "another text"], return_tensors="pt", padding=True)
    plain, int8 = folder / "ordinary.onnx", folder / "ordinary-int8.onnx"
    torch.onnx.export(
        model,
        tuple(example[name] for name in names),
        plain,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "rows", 1: "tokens"} for name in names},
        dynamo=False,
    )
    quantize_dynamic(plain, int8, per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(int8, options)

    def predict(texts: list[str]) -> list[str]:
        labels = []
        for start in range(0, len(texts), 32):
            batch = tokenizer(
                list(texts[start : start + 32]),
                truncation=True,
                max_length=max_length,
                padding=True,
                return_tensors="np",
            )
            logits = session.run(None, {name: batch[name] for name in names})[0]
            labels += [model.config.id2label[int(index)] for index in logits.argmax(1)]
        return labels

    return predict


def run_trial(trial: Trial, mode: str, risk: float, root: Path, node: Path | None) -> None:
    """Run a trial from an empty folder and write its record and transcript."""
    from offramp.core.machine import cpu_name

    prepare(trial, root / trial.name)
    folder = root / f"{trial.name}-{mode}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("my-classifier", "texts.txt", "fresh.csv"):
        (folder / name).symlink_to((root / trial.name / name).resolve())
    transcript = Transcript()
    {"cli": by_command_line, "python": by_python}[mode](trial, folder, risk, node, transcript)
    minutes = (time.monotonic() - transcript.start) / 60
    silence, before = max(transcript.silences)
    lines = [line[9:] for line in transcript.lines]
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(start)) for start in ("CPU time", "Wrote"))
    summary = lines[first:last]
    record = {
        "trial": trial.name,
        "mode": mode,
        "risk": risk,
        "minutes": round(minutes, 1),
        "longest_silence": {"seconds": round(silence, 1), "before": before},
        "repeated": transcript.repeated(),
        "summary": summary,
        "pytorch_threads": 1,
        **measure(folder, trial),
        "cpu": cpu_name(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = f"{trial.name}-{mode}-{100 * risk:g}"
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (RESULTS / f"{name}.txt").write_text("\n".join(transcript.lines) + "\n", "utf-8")
    print(json.dumps(record, indent=1, ensure_ascii=False))


def main() -> None:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", default=list(TRIALS), help="tweets, films")
    parser.add_argument("--modes", nargs="+", choices=["cli", "python"], default=["cli", "python"])
    parser.add_argument("--risk", type=float, default=0.02)
    parser.add_argument("--folder", type=Path, default=CACHE / "first-hour")
    parser.add_argument("--node", type=Path)
    options = parser.parse_args()
    for name in options.trials:
        for mode in options.modes:
            run_trial(TRIALS[name], mode, options.risk, options.folder, options.node)


if __name__ == "__main__":
    main()
