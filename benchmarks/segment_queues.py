"""Whether queues between the segments would pay in the server.

    python benchmarks/segment_queues.py MODEL --data-dir GLUE [--backend onnx] [--threads 1]

The server runs a batch to its end, with fewer and fewer rows; it could also hold the rows that stay until enough of
them wait at the same exit. Texts come in the order of the dev file, as many as the budget of padded tokens takes, and
there are always more: the best that can happen to queues, since nobody pays for waiting. Both ways in turn, the
quickest of five; answers must be the same. The fixed part of each segment, in rows, comes from batches of 1 to 16 equal
rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offramp
from offramp import loop
from offramp.batching import Tokens
from offramp.policies import Policy
from offramp.runner import Runner
from offramp.tasks.rows import DataOptions, rows_for
from offramp.traces.about import cpu_name

RESULTS = Path(__file__).parent / "results" / "segment-queues.json"
Batch = dict[str, torch.Tensor]


def batches(runner: Runner, texts: list[str], budget: int) -> list[Batch]:
    """Texts as they come, so many padded tokens at a time."""
    tokens = Tokens(runner.tokenizer, runner.limit, runner.config.reads_pairs)
    ids, types = tokens.read(list(texts), 0)
    found: list[list[int]] = []
    rows: list[int] = []
    longest = 0
    for row, length in enumerate(ids.lengths.tolist()):
        if rows and max(longest, length) * (len(rows) + 1) > budget:
            found.append(rows)
            rows, longest = [], 0
        rows = [*rows, row]
        longest = max(longest, length)
    made = []
    for some in [*found, rows]:
        table, real = ids.padded(np.array(some), runner.tokenizer.pad_token_id or 0)
        made.append({"input_ids": torch.from_numpy(table), "attention_mask": torch.from_numpy(real)})
        if types is not None:
            made[-1]["token_type_ids"] = torch.from_numpy(types.padded(np.array(some), 0)[0])
    return made


def to_the_end(runner: Runner, some: list[Batch], policy: Policy) -> torch.Tensor:
    """As the server does it."""
    return torch.cat([loop.run(runner.stepper, batch, policy).layer for batch in some])


def with_queues(runner: Runner, some: list[Batch], policy: Policy) -> torch.Tensor:
    """The deepest segment for which enough rows wait, else the next texts; at the end what is left, shallow first."""
    stepper, points = runner.stepper, runner.stepper.exits
    waiting: list[list[Any]] = [[] for _ in points]  # flights before each exit
    landed, first, todo = [], 0, list(some)
    enough = float(np.mean([len(batch["input_ids"]) for batch in some]))

    def rows(place: int) -> int:
        return sum(len(flight.rows) for flight in waiting[place])

    while todo or any(waiting[1:]):
        ready = [place for place in range(1, len(points)) if rows(place) >= enough]
        if not ready and todo:
            batch = todo.pop(0)
            numbers = np.arange(first, first + len(batch["input_ids"]))
            place, flight = 0, loop.start(stepper, batch, numbers)
            first += len(numbers)
        else:
            place = ready[-1] if ready else next(place for place in range(1, len(points)) if waiting[place])
            flight = loop.join(stepper, waiting[place])
            waiting[place] = []
        left, group = loop.step(stepper, flight, points[place], policy, place == len(points) - 1)
        landed += [] if group is None else [group]
        if left is not None:
            waiting[place + 1].append(left)
    return loop.collect(landed).layer


def seconds(work: Callable[[], Any]) -> float:
    """Of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fixed_parts(runner: Runner, text: str) -> list[float]:
    """Of each segment: how many rows' worth of time it takes before the first row (a / b of a + b · rows)."""
    counts = [1, 2, 4, 8, 16]
    found = np.zeros((len(runner.stepper.exits), len(counts)))
    for column, count in enumerate(counts):
        (batch,) = batches(runner, [text] * count, 10**9)
        for turn in range(12):
            state = runner.stepper.embed(batch)
            for place, point in enumerate(runner.stepper.exits):
                start = time.perf_counter()
                state, _ = runner.stepper.advance(state, point)
                took = time.perf_counter() - start
                found[place, column] = took if turn == 0 else min(found[place, column], took)
    fits = [np.polyfit(counts, row, 1, w=1 / np.array(counts)) for row in found]
    return [float(at / each) for each, at in fits]


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    runner = offramp.load(args.model, backend=args.backend, threads=args.threads)
    found = rows_for(args.model, runner.config, DataOptions(task="sst-2", data_dir=args.data_dir), "dev")
    texts = [str(text) for text in found.rows.texts][:436]
    told: dict[str, Any] = {"date": date.today().isoformat(), "cpu": cpu_name(), "model": Path(args.model).name}
    told |= {"backend": args.backend, "threads": args.threads, "texts": len(texts), "budgets": {}}
    with runner.stepper.answering():
        policy = runner.config.exit_policy
        told["fixed_rows"] = fixed_parts(runner, texts[0])
        for budget in (256, 512, 1024, 2048):
            some = batches(runner, texts, budget)
            ways = {"to the end": to_the_end, "queues": with_queues}
            layers = {name: way(runner, some, policy) for name, way in ways.items()}
            times = [[seconds(partial(way, runner, some, policy)) for way in ways.values()] for _ in range(5)]
            best = dict(zip(ways, np.min(times, 0).tolist(), strict=True))
            best["rows of a batch"] = len(texts) / len(some)
            best["other layers"] = int((layers["to the end"] != layers["queues"]).sum())
            told["budgets"][str(budget)] = best
            print(budget, best, f"{best['to the end'] / best['queues']:.3f}", flush=True)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
