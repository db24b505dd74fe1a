"""How the server should batch: texts of like lengths together, and whether queues between the segments would pay.

    python benchmarks/serving_batches.py MODEL --data-dir GLUE [--backend onnx] [--threads 1]

*First come*: texts in the order of the dev file, as many as the budget of padded tokens takes. *Like lengths*: the
server's own choice among so many that wait. *Queues*: a batch runs with fewer and fewer rows to its end; it could also
hold the rows that stay until enough of them wait at the same exit. There are always more texts, the best case for
queues, since nobody pays for waiting. All ways in turn, the quickest of five; answers must be the same. The fixed
part of each segment, in rows, comes from batches of 1 to 16 equal rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

import offramp
from offramp.core import loop
from offramp.core.chunks import Ragged, Tokens
from offramp.core.runner import Runner
from offramp.data.rows import DataOptions, rows_for
from offramp.core.machine import cpu_name
from offramp.policies import Policy
from offramp.serving.requests import RequestOptions, Ticket, Waiting, alike

RESULTS = Path(__file__).parent / "results" / "serving-batches.json"
Batch = dict[str, torch.Tensor]


def first_come(lengths: list[int], budget: int) -> list[list[int]]:
    """Rows as they come, so many padded tokens at a time."""
    found: list[list[int]] = [[]]
    longest = 0
    for row, length in enumerate(lengths):
        if found[-1] and max(longest, length) * (len(found[-1]) + 1) > budget:
            found.append([])
            longest = 0
        found[-1].append(row)
        longest = max(longest, length)
    return found


def like_lengths(lengths: list[int], budget: int, waiting: int) -> list[list[int]]:
    """As the server takes them, while so many wait."""
    ticket = cast(Ticket, SimpleNamespace(asked=RequestOptions()))
    rows = [Waiting(ticket, row, length) for row, length in enumerate(lengths)]
    there, found = rows[:waiting], []
    coming = iter(rows[waiting:])
    while there:
        taken = alike(there, budget, 0.0)
        found.append([one.row for one in taken])
        there = [one for one in there if one.row not in found[-1]] + list(islice(coming, len(taken)))
    return found


def batches(runner: Runner, ids: Ragged, types: Ragged | None, parts: list[list[int]]) -> list[Batch]:
    """Rows as the model takes them, sorted by length inside a batch."""
    made = []
    for some in parts:
        order = np.array(sorted(some, key=lambda row: ids.lengths[row]))
        table, real = ids.padded(order, runner.tokenizer.pad_token_id or 0)
        made.append({"input_ids": torch.from_numpy(table), "attention_mask": torch.from_numpy(real)})
        if types is not None:
            made[-1]["token_type_ids"] = torch.from_numpy(types.padded(order, 0)[0])
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
        ids, types = Tokens(runner.tokenizer, runner.limit, runner.config.reads_pairs).read([text] * count, 0)
        (batch,) = batches(runner, ids, types, [list(range(count))])
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
        ids, types = Tokens(runner.tokenizer, runner.limit, runner.config.reads_pairs).read(list(texts), 0)
        lengths = ids.lengths.tolist()
        for budget in (128, 256, 512, 1024, 2048):
            parts = {"first come": first_come(lengths, budget)}
            parts |= {f"like lengths of {count}": like_lengths(lengths, budget, count) for count in (16, 64, 128)}
            made = {name: batches(runner, ids, types, some) for name, some in parts.items()}
            ways = {name: partial(to_the_end, runner, some, policy) for name, some in made.items()}
            ways["queues"] = partial(with_queues, runner, made["first come"], policy)
            same = torch.equal(ways["first come"](), ways["queues"]())
            times = np.min([[seconds(way) for way in ways.values()] for _ in range(5)], 0)
            speeds = {name: len(texts) / took for name, took in zip(ways, times.tolist(), strict=True)}
            told["budgets"][str(budget)] = speeds | {"same": same}
            print(budget, told["budgets"][str(budget)], flush=True)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
