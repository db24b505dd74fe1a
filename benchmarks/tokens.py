"""Token classification with early exits: CoNLL-2003, personal data, and a tagger without labels.

    python benchmarks/tokens.py train MiniLM --encoder all-MiniLM-L6-v2 --data DATA --work WORK --set conll

DATA is a folder with CoNLL2003 and PII. Each step writes a record into `benchmarks/results/tokens`; a step whose
record exists is skipped (`--again` repeats it). `write_tokens.py` turns the records into a page.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from offramp.answers import TOKEN
from offramp.answers.token_rows import text_of
from offramp.answers.token_scores import entity_f1, scores_by_type
from offramp.core.machine import cpu_name
from offramp.data.entities import Entities
from offramp.data.hashes import hash_texts
from offramp.data.table import Columns, Table, read_table
from offramp.training.holdout import read_hashes
from offramp.training.imitation.new_exits import keep_exits

RESULTS = Path(__file__).parent / "results" / "tokens"
SEED = 0
PASSES = 5
TEST_SENTENCES = 1000
BASELINE = "static"  # int8 of the model without early exits, the fastest on this CPU
CONVOLUTION = 128  # channels of the early exits of recipes


def read_set(name: str, data: Path) -> dict[str, Table]:
    """Return the training, development and test texts with their entities."""
    if name == "conll":
        files = {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}
        return {split: read_table(str(data / "CoNLL2003" / file), Columns()) for split, file in files.items()}
    if name == "sentences":
        return sentences(data)
    table = read_table(str(data / "PII" / "synth_dataset_v2.json"), Columns())
    order = list(range(len(table.texts)))
    random.Random(SEED).shuffle(order)
    parts = {"train": order[:1050], "dev": order[1050:1150], "test": order[1150:]}  # train with fewer --rows
    return {split: _part(table, rows) for split, rows in parts.items()}


def sentences(data: Path) -> dict[str, Table]:
    """Return sentences of MRPC without labels, for a tagger that somebody else trained."""
    file = data / "GLUE" / "MRPC" / "train.tsv"
    rows = [line.rstrip("\r").split("\t") for line in file.read_text("utf-8-sig").split("\n")[1:] if line.strip()]
    texts: list[Any] = list(dict.fromkeys(text for row in rows for text in row[3:5]))
    random.Random(SEED).shuffle(texts)
    table = Table("MRPC", texts, [Entities([])] * len(texts), list(range(1, len(texts) + 1)), None)
    parts = {"train": texts[:-TEST_SENTENCES], "dev": texts[:256], "test": texts[-TEST_SENTENCES:]}
    index = {text: row for row, text in enumerate(texts)}
    return {split: _part(table, [index[text] for text in part]) for split, part in parts.items()}


def _part(table: Table, rows: list[int]) -> Table:
    texts, labels = [table.texts[row] for row in rows], [table.labels[row] for row in rows]
    return Table(table.name, texts, labels, [table.lines[row] for row in rows], table.label_names)


def write_files(tables: dict[str, Table], folder: Path) -> dict[str, str]:
    """Write each split as JSON lines; return the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, table in tables.items():
        rows = []
        for text, entities in zip(table.texts, table.labels, strict=True):
            if isinstance(text, str):
                spans = [{"label": kind, "start": start, "end": end} for kind, start, end in entities]
                rows.append({"text": text, "spans": spans})
            else:
                rows.append({"tokens": list(text), "ner_tags": tags_of(text, entities)})
        files[split] = str(folder / f"{split}.jsonl")
        Path(files[split]).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return files


def tags_of(words: Any, entities: Any) -> list[str]:
    """Return the tag of each word."""
    tags, start = [], 0
    for word in words:
        tag = next((e for e in entities if e[1] <= start < e[2]), None)
        tags.append("O" if tag is None else f"{'B' if tag[1] == start else 'I'}-{tag[0]}")
        start += len(word) + 1
    return tags


def step(name: str, again: bool, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the record of a step; run it if there is none."""
    file = RESULTS / f"{name}.json"
    if file.is_file() and not again:
        return dict(json.loads(file.read_text("utf-8")))
    start = time.time()
    record = run()
    record |= {
        "seconds": round(time.time() - start, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "offramp": offramp.__version__,
        "machine": cpu_name(),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return record


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune an encoder with a head per token after its last layer."""
    tables = read_set(args.set, args.data)
    files = write_files(tables, args.work / args.set)
    output = args.work / f"{args.name}-{args.set}"
    result = offramp.train(
        args.encoder,
        output=output,
        train_file=files["train"],
        dev_file=files["dev"],
        recipe=args.recipe,
        **({} if args.recipe == "plain" else {"exits": exits_of(args), "convolution": CONVOLUTION}),
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        batch_size=args.batch,
        max_length=128,
        calibration_split=0,
        bf16=args.bf16,
        train_rows=args.rows,
        resume=output.exists(),
    )
    return {
        "dev": result.dev,
        "encoder": Path(args.encoder).name,
        "recipe": args.recipe,
        "exits": list(result.layers),
        "epochs": args.epochs,
        "learning_rate": args.learning_rate,
        "rows": args.rows,
    }


def exits_of(args: argparse.Namespace) -> Any:
    """Return the layers that may get an exit, or "auto"."""
    return args.exits if args.exits == "auto" else [int(layer) for layer in args.exits.split(",")]


def adapt(args: argparse.Namespace) -> dict[str, Any]:
    """Add early exits to the tagger without labels, with a guarantee about texts with other entities."""
    tables = read_set(args.set, args.data)
    file = args.work / args.set / "texts.jsonl"
    output = args.work / f"{args.name}-{args.set}-fast{args.label}"
    tagger = args.tagger or args.work / f"{args.name}-{args.set}"
    texts = unlabelled(tables, tagger, args.fresh)[0][: args.texts]
    write_texts(file, texts)
    result = offramp.adapt(
        tagger,
        file,
        text_column="tokens",
        output=output,
        risk=args.risk,
        risk_type=args.risk_type or "disagreement",
        class_risk=args.class_risk or "auto",
        backend="onnx",
        threads=1,
        epochs=args.head_epochs,
        variations=args.variations,
        int8=args.int8,
        exits=exits_of(args),
        resume=(args.work / f".{output.name}.adapting").exists(),
        overwrite=output.exists(),
        ledger=args.work / "tests.jsonl",
    )
    return {
        "texts": len(texts),
        "risk": args.risk,
        "risk_type": args.risk_type or "disagreement",
        "holds": bool(result),
        "sentence": result.guarantee or result.reason,
        "training": {"epochs": args.head_epochs, "variations": args.variations},
        "layers": list(result.layers),
        "speedup": result.speedup,
        "speedup_over_int8": result.speedup_over_int8,
        "measured": result.measured,
    }


def tune(args: argparse.Namespace) -> dict[str, Any]:
    """Select the fastest of a tagger's own exits without labels, with the same guarantee."""
    output = args.work / f"{args.name}-{args.set}-fast{args.label}"
    if output.exists():
        shutil.rmtree(output)
    tagger = args.tagger or args.work / f"{args.name}-{args.set}"
    shutil.copytree(tagger, output, ignore=shutil.ignore_patterns("checkpoints*"))
    file = args.work / args.set / "texts.jsonl"
    tables = read_set(args.set, args.data)
    texts = unlabelled(tables, tagger, args.fresh)[0][: args.texts]
    write_texts(file, texts)
    if args.int8 != "auto":  # tune keeps the precision of an existing export
        scales = [text_of(text) for text in tables["dev"].texts[:256]]
        offramp.export(output, texts=scales, backend="onnx", int8=args.int8, force=True)
    result = offramp.tune(
        output,
        file,
        text_column="tokens",
        backend="onnx",
        risk=args.risk,
        count="rows",  # some texts recur, with other capitals
        threads=1,
        ledger=args.work / "tests.jsonl",
    )
    return {
        "texts": len(texts),
        "risk": args.risk,
        "holds": bool(result),
        "sentence": result.guarantee or result.reason,
        "layers": list(result.layers),
        "int8": args.int8,
    }


def export(args: argparse.Namespace) -> dict[str, Any]:
    """Export a tagger with some of its own exits in one precision, to calibrate it."""
    output = args.work / f"{args.name}-{args.set}-fast{args.label}"
    if output.exists():
        shutil.rmtree(output)
    tagger = args.tagger or args.work / f"{args.name}-{args.set}"
    shutil.copytree(tagger, output, ignore=shutil.ignore_patterns("checkpoints*"))
    scales = [text_of(text) for text in read_set(args.set, args.data)["train"].texts[:256]]
    result = offramp.export(output, texts=scales, backend="onnx", int8=args.int8, exits=exits_of(args), force=True)
    return {"layers": list(result.layers), "precision": result.precision, "agreement": result.agreement}


def unlabelled(tables: dict[str, Table], tagger: Path, fresh: int) -> tuple[list[Any], list[Any]]:
    """Return training texts to adapt with, first those that the tagger was not trained on, and `fresh` of the latter.

    The fresh texts are left out of the others.
    """
    hashes = read_hashes(tagger)
    seen = set() if "train" not in hashes else set(hashes["train"].tolist())
    texts = list(tables["train"].texts)
    random.Random(SEED).shuffle(texts)
    is_seen = [key in seen for key in hash_texts(texts).tolist()]
    unseen = [text for text, known in zip(texts, is_seen, strict=True) if not known]
    kept = max(0, len(unseen) - fresh)
    return [*unseen[:kept], *(text for text, known in zip(texts, is_seen, strict=True) if known)], unseen[kept:]


def write_texts(file: Path, texts: list[Any]) -> None:
    """Write texts or lists of words as JSON lines."""
    rows = [{"tokens": text if isinstance(text, str) else list(text)} for text in texts]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def calibrate(args: argparse.Namespace) -> dict[str, Any]:
    """Calibrate a copy of the adapted tagger on texts that neither step used."""
    source = args.work / f"{args.name}-{args.set}-fast{args.label}"
    folder = Path(f"{source}-{args.risk_type}")
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(source, folder)
    file = args.work / args.set / "fresh.jsonl"
    tagger = args.tagger or args.work / f"{args.name}-{args.set}"
    write_texts(file, unlabelled(read_set(args.set, args.data), tagger, args.fresh)[1])
    result = offramp.calibrate(
        folder,
        texts=file,
        text_column="tokens",
        backend="onnx",
        risk=args.risk,
        risk_type=args.risk_type,
        class_risk=args.class_risk or "auto",
        policy=args.policy or (),
        count="rows",  # some texts recur, with other capitals
        ledger=args.work / "tests.jsonl",
    )
    return {"risk": args.risk, "risk_type": args.risk_type, "holds": bool(result), "sentence": str(result)}


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Compare the adapted tagger with its full model on the test texts: entities, F1, seconds."""
    tables = read_set(args.set, args.data)
    test = tables["test"]
    texts, golds = test.texts[: args.texts], TOKEN.label_array(test.labels[: args.texts])
    folder = args.work / f"{args.name}-{args.set}-fast{args.label}{f'-{args.risk_type}' if args.risk_type else ''}"
    fast = offramp.load(folder, backend="onnx", threads=1)
    plain = args.tagger or args.work / f"{args.name}-{args.set}"
    full = offramp.AdaptiveModel.from_pretrained(folder).runner()
    exported = args.work / f"{args.name}-{args.set}-int8"
    if not exported.exists():
        model = offramp.AdaptiveModel.from_pretrained(full.name)
        keep_exits(model, [model.config.num_layers]).save_pretrained(exported, exports=False)
        scales = [text_of(text) for text in tables["dev"].texts[:256]]
        offramp.export(exported, texts=scales, backend="onnx", int8=BASELINE, force=True)
    int8 = offramp.load(exported, backend="onnx", threads=1)
    torch.set_num_threads(1)
    answers = {
        "full": full.answer(texts, policy="never"),
        "fast": fast.answer(texts),
        "int8": int8.answer(texts, policy="never"),
    }
    early = [point.layer for point in fast.stepper.exits[:-1]]
    answers |= {f"layer {layer}": fast.answer(texts, policy=f"layer:{layer}") for layer in early}
    expected = answers["full"].values
    words = [len(text_of(text).split()) for text in texts]
    lines = {}
    for name, answer in answers.items():
        lost = TOKEN.lost(answer.values, expected)
        lines[name] = {
            "f1": entity_f1(answer.values, golds) if args.tagger is None else None,
            "other_entities": int(TOKEN.differ(answer.values, expected).sum()),
            "lost_on_average": float(np.nanmean(lost)),
            "mean_layers": float(answer.layer.mean()),
            "mean_layers_of_words": float(np.average(answer.layer, weights=words)),
        }
    by_type = scores_by_type(answers["fast"].values, golds) if args.tagger is None else {}
    return {
        "texts": len(texts),
        "entities": int(sum(map(len, expected))),
        "results": lines,
        "by_type": by_type,
        "policy": str(fast.config.exit_policy),
        "precision": {"fast": fast.dtype, "int8": int8.dtype},
        "seconds_per_text": _time({"fast": fast, "int8": int8}, texts[: args.timed]),
        "timed": len(texts[: args.timed]),
        "tagger": Path(plain).name,
    }


def _time(runners: dict[str, Any], texts: list[Any]) -> dict[str, list[float]]:
    """Return CPU seconds per text of several passes, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(PASSES):
        for name, runner in runners.items():
            start = time.process_time()
            runner.answer(texts, policy=None if name == "fast" else "never")
            seconds[name].append((time.process_time() - start) / len(texts))
    return seconds


STEPS = {"train": train, "adapt": adapt, "tune": tune, "export": export, "calibrate": calibrate, "check": check}


def main() -> None:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("name", help="of the model in the records, such as MiniLM")
    parser.add_argument("--set", choices=("conll", "pii", "sentences"), default="conll")
    parser.add_argument("--encoder")
    parser.add_argument("--recipe", default="plain", help="plain: only the last exit")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--rows", type=int, help="training texts (default: all)")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--bf16", action="store_true", help="bfloat16, faster where the CPU has it")
    parser.add_argument("--tagger", type=Path, help="adapt this tagger instead of a trained one")
    parser.add_argument("--texts", type=int, help="number of texts (default: all)")
    parser.add_argument("--timed", type=int, default=1000, help="number of test texts that are timed")
    parser.add_argument("--risk-type", choices=("disagreement", "lost"), help="of a calibrated copy")
    parser.add_argument("--risk", type=float, default=0.02)
    parser.add_argument("--head-epochs", type=float, help="for training the exits")
    parser.add_argument("--variations", type=int)
    parser.add_argument("--int8", default="auto")
    parser.add_argument("--exits", default="auto", help="layers that may get an exit, such as 0,1,2")
    parser.add_argument("--label", default="", help="of another adaptation of the same tagger, such as -risk5")
    parser.add_argument("--fresh", type=int, default=2000, help="unlabelled texts to calibrate on, not to adapt with")
    parser.add_argument("--policy", help="to calibrate (default: the model's policy, else entropy)")
    parser.add_argument("--class-risk", type=float, help="limit for every type of entity")
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    kind = f"-{args.risk_type}" if args.risk_type else ""
    kind = "" if args.step == "adapt" else kind  # a label names another adaptation
    record = step(f"{args.step}-{args.name}-{args.set}{args.label}{kind}", args.again, lambda: STEPS[args.step](args))
    print(json.dumps(record, indent=1)[:2000])


if __name__ == "__main__":
    main()
