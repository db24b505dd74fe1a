"""Early exits for real rerankers: guarantees for the top 1, 5 and 10, queries that nobody used, and milliseconds.

    python benchmarks/ranking_data.py squad --data DATA --articles dev,6: --candidates 100 --output rankings.jsonl
    python benchmarks/rerank_results.py NAME RERANKER rankings.jsonl --work WORK [--template TEXT]
    python benchmarks/write_reranking.py

The rankings are used in their order: the first train the exits, the next select the exits, the next test the
guarantees, and the last are used for nothing else. Guarantees and milliseconds are for the first 50 and the first 100
candidates of each query (`--candidates`). Exits, graphs and traces stay in WORK, and a step whose files exist is
skipped. The record is results/rerank/NAME.json.

The guarantees compare with the full model in float32, and with `--against-int8` also with the full model in the same
int8. `--reference int8` compares with the latter alone, which takes less time.
The steps are those of `offramp adapt` for ONNX Runtime. They are separate here so that all guarantees share the
trained exits and one pass over the queries.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from scipy.stats import bootstrap

import offramp
from offramp import AdaptiveModel
from offramp.answers import RANKING
from offramp.answers.ranking_answers import relevance
from offramp.answers.ranking_scores import ndcg, reciprocal_rank
from offramp.calibration.choice import choose_with_guarantee
from offramp.calibration.estimate_errors import fit_errors
from offramp.calibration.placeholders import with_placeholders
from offramp.calibration.risks import Guarantee
from offramp.calibration.tuning.choosing import MARGIN, settings_to_test
from offramp.calibration.tuning.costs import Costs, measure
from offramp.calibration.tuning.group_search import search_groups
from offramp.calibration.tuning.threshold_grids import with_exits
from offramp.core.machine import cpu_name
from offramp.evaluation.traces.reading import read_trace
from offramp.evaluation.traces.recording import record
from offramp.evaluation.traces.trace import PER_EXAMPLE, PER_ROW, Trace
from offramp.exports.exporter import Exporter, GraphSource
from offramp.exports.options import ExportOptions, Texts
from offramp.model.attach import ExitOptions
from offramp.policies import Policy
from offramp.policies.grids import grid
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.new_exits import keep_exits, load_with_new_exits
from offramp.training.imitation.states import States, record_states
from rerank import overlap

RESULTS = Path(__file__).parent / "results" / "rerank"
PROFILED = 50  # candidates, for what the exits know and what int8 misses
TOPS, RISKS = (1, 5, 10), (0.02, 0.05)
FULL_INT8 = ("static", "token", "dynamic")
FIRST = (0.2, 0.3, 0.4, 0.6, 0.8)  # fractions of the candidates that the rival reranks
PARTS = ("training", "selection", "testing", "unused")


@dataclass(frozen=True)
class Study:
    """A reranker, its rankings, and the files of the steps."""

    args: argparse.Namespace

    @cached_property
    def rankings(self) -> dict[str, list[dict[str, Any]]]:
        """The rankings by their use."""
        lines = self.args.rankings.read_text("utf-8").splitlines()
        sizes = [getattr(self.args, part) for part in PARTS]
        stops = np.cumsum(sizes)
        if stops[-1] > len(lines):
            raise SystemExit(f"{stops[-1]} rankings are needed, {self.args.rankings} has {len(lines)}")
        bounds = zip(PARTS, stops - sizes, stops, strict=True)
        return {part: [json.loads(line) for line in lines[start:stop]] for part, start, stop in bounds}

    def examples(self, *parts: str, candidates: int | None = None) -> list[Any]:
        """Return rankings as examples, with their first candidates."""
        rankings = [ranking for part in parts for ranking in self.rankings[part]]
        candidates = candidates or max(self.args.candidates)
        return [(ranking["query"], *ranking["documents"][:candidates]) for ranking in rankings]

    @cached_property
    def model(self) -> AdaptiveModel:
        """The reranker with all exits, trained on the training rankings."""
        folder, args = self.args.work / "model", self.args
        if not folder.is_dir():
            model = self.untrained()
            states = self.states(model)
            start = time.process_time()
            heads = [model.exits.at(point) for point in model.exits.points[:-1]]
            epochs = imitate(heads, states, RANKING, ImitationOptions(args.epochs))
            seconds = time.process_time() - start
            queries = len(self.rankings["training"])
            facts = {"queries": queries, "rows": len(states.lengths), "epochs": epochs, "seconds": seconds}
            (args.work / "training.json").write_text(json.dumps(facts))
            model.save_pretrained(folder)
        model = AdaptiveModel.from_pretrained(folder).eval()
        return model

    def untrained(self) -> AdaptiveModel:
        """Return the reranker with new exits."""
        args = self.args
        torch.manual_seed(42)
        options = {"top_k": max(TOPS)} | ({} if args.template is None else {"template": args.template})
        exits = args.exits if args.exits in ("auto", "all") else [int(layer) for layer in args.exits.split(",")]
        heads = {"convolution": args.convolution, "interaction": args.interaction}
        attached = ExitOptions(exits, "attention", problem_type="ranking", **heads, answer_options=options)
        model = load_with_new_exits(args.reranker, attached)
        model.config.max_tokens = args.max_length
        return model

    def states(self, model: AdaptiveModel, part: str = "training") -> States:
        """Return the encoder states of rankings, computed in int8; they stay in WORK."""
        folder = self.args.work / ("states" if part == "training" else f"states-{part}")
        facts = folder / "rows.npz"
        if not facts.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            texts = RANKING.training_examples(self.examples(part), self.args.rows, 42)
            scales = RANKING.training_examples(self.examples("training")[:32], 256, 42)
            options = ExportOptions("onnx", self.args.int8, force=True, threads=1)
            exporter = Exporter(model, Texts(), options, quiet=True, shared=GraphSource(model, scales))
            states = record_states(model, texts, folder, exported=exporter.runner(exporter.make()))
            np.savez(facts, lengths=states.lengths, teacher=states.teacher.numpy(), rows=states.rows)
        saved = np.load(facts)
        shape = (int(saved["lengths"].sum()), len(model.exits.points) - 1, model.config.hidden_size)
        values = np.memmap(folder / "states", np.float16, "r", shape=shape)
        return States(values, saved["lengths"], torch.from_numpy(saved["teacher"]), saved["rows"])

    @cached_property
    def source(self) -> GraphSource:
        """The exported graph of the model with all exits."""
        scales = RANKING.training_examples(self.examples("training")[:32], 256, 42)
        return GraphSource(self.model, scales)

    def runner(self, int8: str, layers: Sequence[int] | None = None) -> offramp.Runner:
        """Return an ONNX Runtime model with these exits (default: all)."""
        model = self.model if layers is None else keep_exits(self.model, list(layers))
        options = ExportOptions("onnx", int8, force=True, threads=1)
        exporter = Exporter(model, Texts(), options, quiet=True, shared=self.source)
        return exporter.runner(exporter.make())

    @property
    def depth(self) -> int:
        """Layers of the reranker."""
        return self.model.config.num_layers

    @property
    def files(self) -> list[Path]:
        """The files with the scores of the full model and of the exits."""
        return [self.args.work / f"{name}.safetensors" for name in ("full", "exits")]

    def record_exits(self) -> None:
        """Record int8 outputs of all exits on all but the training rankings, unless that is done."""
        if not self.files[1].is_file():
            examples = self.examples("selection", "testing", "unused")
            record(self.runner(self.args.int8), examples, None, self.files[1], "rankings", progress=False)

    def trace(self) -> Trace:
        """Return int8 outputs of all exits, compared with the full model in float32, or in the same int8."""
        if self.args.reference == "int8":
            self.record_exits()
            exits = read_trace(self.files[1])
            return replace(exits, reference_logits=np.asarray(exits.logits[:, -1]))
        if not self.files[0].is_file():
            record_full(self.args, self.files[0], self.examples("selection", "testing", "unused"))
        self.record_exits()
        full, exits = map(read_trace, self.files)
        return replace(exits, reference_logits=np.asarray(full.logits[:, -1]))


def record_full(args: argparse.Namespace, file: Path, examples: Sequence[Any]) -> None:
    """Record the scores of the unchanged reranker in float32, on ONNX Runtime."""
    options = {} if args.template is None else {"template": args.template}
    with_head = AdaptiveModel.from_backbone(
        args.reranker, exits=[layers_of(args.reranker)], problem_type="ranking", answer_options=options
    ).eval()
    with_head.config.max_tokens = args.max_length
    exporter = Exporter(with_head, Texts(), ExportOptions("onnx", "none", force=True, threads=1), quiet=True)
    record(exporter.runner(exporter.make()), examples, None, file, "rankings", progress=False)


def layers_of(name: str) -> int:
    """Return the number of layers of a model."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(name).num_hidden_layers)


def view(trace: Trace, top_k: int, candidates: int | None = None) -> Trace:
    """Return the trace with rankings of the first candidates (default: all), compared by their top k."""
    if candidates is not None:
        group = np.asarray(trace.group)
        rows = np.flatnonzero(np.arange(len(group)) - np.searchsorted(group, group) < candidates)
        names = [name for name in PER_ROW if name not in PER_EXAMPLE]
        arrays = {name: getattr(trace, name) for name in names}
        trace = replace(trace, **{name: array[rows] for name, array in arrays.items() if array is not None})
    options = trace.about["model"]["options"] | {"top_k": top_k}
    about = trace.about | {"model": trace.about["model"] | {"options": options}}
    part = replace(trace, about=about)
    reference = replace(part, logits=np.asarray(part.reference_logits)[:, None]).answers_at(0)
    return replace(part, reference=reference)


def missing(trace: Trace, policy: Policy) -> tuple[np.ndarray, float]:
    """Return the missing fraction of the top k of each query, and the mean layers per document."""
    replayed = trace.replay(policy)
    return RANKING.changes(replayed.answers, trace.expected), float(replayed.layer.mean())


def interval(values: np.ndarray) -> list[float]:
    """Return the 95 % interval of a mean, over queries; without a single loss, that of a fraction of 0."""
    if not values.any():
        return [0.0, 1 - 0.025 ** (1 / len(values))]
    result = bootstrap((values,), np.mean, confidence_level=0.95, method="percentile", rng=np.random.default_rng(0))
    return [float(result.confidence_interval.low), float(result.confidence_interval.high)]


def measured_costs(study: Study, trace: Trace) -> Costs:
    """Return the time of every segment on this machine."""
    policy = grid("top-k", with_placeholders(trace.model_spec))[0]
    runner, undivided = study.runner(study.args.int8), study.runner(study.args.int8, [study.depth])
    return measure(runner, undivided.stepper, study.examples("selection")[:20], 32, policy)


def choose(study: Study, trace: Trace, costs: Costs) -> list[dict[str, Any]]:
    """Return the exits and margins of every guarantee, and what became of it on unused queries."""
    sizes = np.cumsum([0, *(len(study.rankings[part]) for part in PARTS[1:])])
    settings = []
    for candidates, top_k in product(study.args.candidates, TOPS):
        seen = view(trace, top_k, candidates)
        parts = [seen.take(np.arange(start, stop)) for start, stop in pairwise(sizes)]
        for risk in RISKS:
            guarantee = Guarantee(risk=risk, top_k=top_k, test="binomial" if top_k == 1 else "betting")
            asked = {"candidates": candidates, "top_k": top_k, "risk": risk}
            settings.append(asked | guaranteed(parts, guarantee, costs, study))
            print(json.dumps({key: value for key, value in settings[-1].items() if key != "errors"}), flush=True)
    return settings


def guaranteed(parts: Sequence[Trace], guarantee: Guarantee, costs: Costs, study: Study) -> dict[str, Any]:
    """Select exits, test the guarantee, and look at the unused queries."""
    selection, testing, unused = parts
    early = range(len(selection.points) - 1)
    ranked = search_groups("top-k", selection, guarantee, costs, MARGIN, early)
    if not ranked:
        return {"refused": "no exits within the risk on the selection queries"}
    exits = ranked[0].exit_indices
    layers = [selection.points[index].layer for index in exits]
    tested, settings = settings_to_test(with_exits(testing, exits), ranked[0].policy)
    choice = choose_with_guarantee(tested, guarantee, settings, "that were not used to train or select the exits")
    if choice.policy is None:
        return {"layers": layers, "refused": choice.evidence["sentence"]}
    lost, depth = missing(with_exits(unused, exits), choice.policy)
    lost_full, _ = missing(unused, offramp.policies.Never())
    policy: Any = choice.policy
    return {
        "layers": layers,
        "margin": policy.threshold,
        "errors": list(policy.errors),
        "guarantee": choice.evidence["sentence"],
        "fewer_layers": study.depth / depth,
        "missing": float(lost.mean()),
        "missing_interval": interval(lost),
        "changed": float((lost > 0).mean()),
        "missing_int8": float(lost_full.mean()),  # at full depth
    }


def profile(study: Study, trace: Trace) -> dict[str, Any]:
    """Return how well each exit knows the full model's top 10, and what int8 alone changes, on unused queries."""
    queries, trace = len(study.rankings["unused"]), view(trace, 10, PROFILED)
    unused = trace.take(np.arange(len(trace) - queries, len(trace)))
    errors, group = fit_errors(unused), np.asarray(unused.group)
    spread = float(np.std(relevance(np.asarray(unused.reference_logits))))
    exits = []
    for index, point in enumerate(unused.points[:-1]):
        estimates, scores = relevance(unused.logits[:, index]), relevance(np.asarray(unused.reference_logits))
        overlaps: dict[str, list[float]] = {str(first): [] for first in (10, 15, 20, 30)}
        for query in range(queries):
            rows = np.flatnonzero(group == query)
            top = np.argsort(-scores[rows], kind="stable")[:10]
            order = np.argsort(-estimates[rows], kind="stable")
            for first in overlaps:
                overlaps[first].append(len(np.intersect1d(top, order[: int(first)])) / len(top))
        means = {first: float(np.mean(values)) for first, values in overlaps.items()}
        exits.append({"layer": point.layer, "error": errors[index] / spread, "top_10_among_first": means})
    return {"exits": exits, "int8": int8_alone(study, trace) if study.args.reference == "float32" else {}}


def int8_alone(study: Study, trace: Trace) -> dict[str, dict[str, float]]:
    """Return what the methods of int8 miss of the full model's top k at full depth, on unused queries."""
    queries = len(study.rankings["unused"])
    missing_by_method: dict[str, dict[str, float]] = {}
    for int8 in FULL_INT8[:2]:
        file = study.args.work / f"full-{int8}.safetensors"
        if not file.is_file():
            runner = study.runner(int8, [study.depth])
            examples = study.examples("unused", candidates=PROFILED)
            record(runner, examples, None, file, "rankings", progress=False)
        reference = np.asarray(trace.take(np.arange(len(trace) - queries, len(trace))).reference_logits)
        full = replace(read_trace(file), reference_logits=reference)
        never = offramp.policies.Never()
        missing_by_method[int8] = {str(top_k): float(missing(view(full, top_k), never)[0].mean()) for top_k in TOPS}
    return missing_by_method


def compare_with_float32(study: Study, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what int8 and the settings miss of the top k of float32, on the unused queries."""
    full = read_trace(study.args.work / "full-unused.safetensors")
    trace, queries = view(study.trace(), 10, PROFILED), len(study.rankings["unused"])
    unused = trace.take(np.arange(len(trace) - queries, len(trace)))
    unused = replace(unused, reference_logits=np.asarray(full.logits[:, -1]))
    rows = []
    for top_k in TOPS:
        seen = view(unused, top_k)
        never, _ = missing(seen, offramp.policies.Never())
        row: dict[str, Any] = {
            "top_k": top_k,
            "int8": float(never.mean()),
            "int8_interval": interval(never),
            "exits": {},
        }
        for entry in settings:
            if entry["top_k"] == top_k and entry["candidates"] == PROFILED and "margin" in entry:
                policy = offramp.policies.TopK(top_k, entry["margin"], tuple(entry["errors"]))
                indices = [index for index, point in enumerate(seen.points) if point.layer in entry["layers"]]
                lost, _ = missing(with_exits(seen, indices), policy)
                row["exits"][str(entry["risk"])] = {"missing": float(lost.mean()), "interval": interval(lost)}
        rows.append(row)
    return rows


def alternatives(study: Study, trace: Trace) -> list[dict[str, Any]]:
    """Return fixed numbers of survivors that miss at most 2 % of the top 10, and what they miss of unused queries.

    Exits and numbers are chosen on the selection and test queries.
    """
    from rerank_policies import Schedule, schedules

    sizes = np.cumsum([0, *(len(study.rankings[part]) for part in PARTS[1:])])
    seen = view(trace, 10, PROFILED)
    known, unused = seen.take(np.arange(sizes[2])), seen.take(np.arange(sizes[2], sizes[3]))
    best: tuple[float, Schedule, tuple[int, ...]] | None = None
    for exits, schedule in schedules(known, PROFILED, 10):
        lost, depth = missing(with_exits(known, exits), schedule)
        if lost.mean() <= 0.02 and (best is None or depth < best[0]):
            best = depth, schedule, exits
    if best is None:
        return []
    lost, depth = missing(with_exits(unused, best[2]), best[1])
    facts = {"layers": [seen.points[index].layer for index in best[2]], "survivors": list(best[1].survivors)}
    return [facts | {"missing": float(lost.mean()), "fewer_layers": study.depth / depth}]


def measure_time(
    study: Study, settings: list[dict[str, Any]], against_int8: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return overlap and milliseconds of all contestants, live, on some of the unused queries."""
    full = {int8: study.runner(int8, [study.depth]) for int8 in FULL_INT8}
    full["none"] = study.runner("none", [study.depth])
    runners: dict[tuple[int, ...], offramp.Runner] = {}
    rows = []
    chosen = [(entry, "") for entry in settings if "margin" in entry]
    chosen += [(entry, " of int8") for entry in against_int8 if "margin" in entry]
    for entry, _ in chosen:
        layers = tuple(entry["layers"])
        if layers not in runners:
            runners[layers] = study.runner(study.args.int8, layers)
    for candidates in study.args.candidates:
        rankings = [
            (ranking["query"], ranking["documents"][:candidates], ranking["relevant"][:candidates])
            for ranking in study.rankings["unused"][: study.args.timed]
        ]
        best = fastest(full, rankings[:2])
        contestants: dict[str, Any] = {
            f"full depth, int8-{int8}": (full[int8], candidates, "never") for int8 in FULL_INT8
        }
        contestants["full depth, float32"] = (full["none"], candidates, "never")
        for fraction in FIRST:
            count = max(10, round(fraction * candidates))
            contestants[f"first {count}"] = (full[best], count, "never")
        for entry, reference in chosen:
            if entry["candidates"] != candidates:
                continue
            policy = offramp.policies.TopK(entry["top_k"], entry["margin"], tuple(entry["errors"]))
            name = f"early exits, top {entry['top_k']}, {100 * entry['risk']:g} %{reference}"
            contestants[name] = (runners[tuple(entry["layers"])], candidates, policy)
        rows += timed(contestants, rankings, full["none"], study.args.rounds, {"candidates": candidates, "best": best})
    return rows


def fastest(full: dict[str, offramp.Runner], rankings: Sequence[Any]) -> str:
    """Return the fastest int8 method at full depth."""
    seconds = dict.fromkeys(FULL_INT8, np.inf)
    for _ in range(2):
        for int8 in FULL_INT8:
            start = time.process_time()
            for query, documents, _ in rankings:
                full[int8].rank(query, documents, policy="never")
            seconds[int8] = min(seconds[int8], time.process_time() - start)
    return min(seconds, key=lambda int8: seconds[int8])


def timed(
    contestants: dict[str, Any],
    rankings: Sequence[Any],
    reference: offramp.Runner,
    rounds: int,
    facts: dict[str, Any],
) -> list[dict[str, Any]]:
    """Run all contestants query by query, in turns."""
    seconds = {name: np.full((len(rankings), rounds), np.inf) for name in contestants}
    answers: dict[str, list[Any]] = {name: [] for name in contestants}
    for row, (query, documents, _) in enumerate(rankings):
        for turn in range(rounds):
            for name, (runner, count, policy) in contestants.items():
                if turn and name == "full depth, float32":
                    continue  # slow, and only for scale
                start = time.process_time()
                results = runner.rank(query, documents[:count], policy=policy)
                seconds[name][row, turn] = time.process_time() - start
                if not turn:
                    answers[name].append(results)
    expected = answers["full depth, float32"]
    grades = RANKING.label_array([relevant for _, _, relevant in rankings])
    rows = []
    for name in contestants:
        overlaps = {
            str(top_k): float(np.mean([overlap(*pair, top_k) for pair in zip(answers[name], expected, strict=True)]))
            for top_k in TOPS
        }
        orders = [[entry["corpus_id"] for entry in results] for results in answers[name]]
        values = np.full((len(orders), 1 + max(map(len, orders))), -1)
        values[:, 0] = 10
        for line, order in zip(values, orders, strict=True):
            line[1 : 1 + len(order)] = order
        rows.append(
            facts
            | {
                "name": name,
                "milliseconds": 1000 * float(seconds[name].min(1).mean()),
                "p95": 1000 * float(np.quantile(seconds[name].min(1), 0.95)),
                "overlap": overlaps,
                "ndcg_at_10": float(ndcg(values, grades).mean()),
                "mrr_at_10": float(reciprocal_rank(values, grades).mean()),
                "queries": len(rankings),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def save_model(study: Study, settings: Sequence[dict[str, Any]], folder: Path) -> None:
    """Save the reranker with the exits of a guarantee, exported, for `load.py` and `rerank_clients.py`.

    The guarantee is the last one that holds: that of the largest k and risk.
    """
    entry = [entry for entry in settings if "margin" in entry][-1]
    model = keep_exits(study.model, entry["layers"])
    model.config.policy = offramp.policies.TopK(entry["top_k"], entry["margin"], tuple(entry["errors"])).to_dict()
    model.save_pretrained(folder)
    texts = [{"query": query, "documents": documents} for query, *documents in study.examples("training")[:4]]
    offramp.export(folder, texts, backend="onnx", int8=study.args.int8, force=True)
    print(f"Wrote {folder}: top {entry['top_k']}, risk {entry['risk']}, exits on layers {entry['layers']}")


def main() -> None:
    """Run the steps that are not done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("reranker")
    parser.add_argument("rankings", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for exits and traces")
    parser.add_argument("--template")
    parser.add_argument("--exits", default="auto")
    parser.add_argument("--convolution", type=int, default=128)
    parser.add_argument("--interaction", type=int, default=0)
    parser.add_argument("--int8", default="token")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=12_000, help="rows that train the exits")
    parser.add_argument("--epochs", type=float)
    for part, count in zip(PARTS, (400, 80, 200, 200), strict=True):
        parser.add_argument(f"--{part}", type=int, default=count, help="rankings (default: %(default)s)")
    parser.add_argument("--candidates", type=int, nargs="+", default=[50, 100])
    parser.add_argument(
        "--reference", choices=["float32", "int8"], default="float32", help="precision of the full model in guarantees"
    )
    parser.add_argument("--against-int8", action="store_true")
    parser.add_argument("--timed", type=int, default=30, help="unused rankings that are timed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", type=Path, help="folder for the model of the last guarantee that holds")
    parser.add_argument(
        "--only",
        choices=["states", "full", "float32", "exits", "trace", "settings"],
        help="one of the first steps, of which `full` may run beside the others (`float32`: only on the unused "
        "rankings, for a comparison with float32 besides `--reference int8`), or all but the timing",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    study = Study(args)
    if args.only == "full":
        record_full(args, study.files[0], study.examples("selection", "testing", "unused"))
        return
    if args.only == "states":
        for part in PARTS[:2]:
            study.states(study.untrained(), part)
        return
    if args.only == "exits":
        assert study.model
        return
    if args.only == "float32":
        record_full(args, args.work / "full-unused.safetensors", study.examples("unused", candidates=PROFILED))
        return
    if args.only == "trace":
        study.record_exits()
        return
    file = RESULTS / f"{args.name}.json"
    result: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def save(**more: Any) -> None:
        result.update(more)
        file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")

    if "settings" not in result:
        trace = study.trace()
        training = json.loads((args.work / "training.json").read_text("utf-8"))
        rankings = {part: len(study.rankings[part]) for part in PARTS}
        facts = {"name": args.name, "reranker": Path(args.reranker).name, "depth": study.depth, "int8": args.int8}
        facts["reference"] = args.reference
        facts |= {"exits": [point.layer for point in trace.points], "rankings": rankings, "training": training}
        facts |= {"date": date.today().isoformat(), "cpu": cpu_name(), "onnxruntime": onnxruntime.__version__}
        facts |= {"hidden_size": study.model.config.hidden_size, "tokens": float(trace.lengths.mean())}
        settings = choose(study, trace, measured_costs(study, trace))
        save(**facts, settings=settings, schedules=alternatives(study, trace), profile=profile(study, trace))
    if args.against_int8 and "against_int8" not in result:
        trace = study.trace()
        own = replace(trace, reference_logits=np.asarray(trace.logits[:, -1]))  # int8 at full depth
        save(against_int8=choose(study, own, measured_costs(study, own)))
    if (args.work / "full-unused.safetensors").is_file():
        save(against_float32=compare_with_float32(study, result["settings"]))
    if args.save is not None:
        save_model(study, result["settings"], args.save)
    if "times" not in result and args.only is None:
        times = measure_time(study, result["settings"], result.get("against_int8", []))
        machine = {"cpu": cpu_name(), "date": date.today().isoformat(), "load": os.getloadavg()[1]}
        save(times=times, timed=machine, rounds=args.rounds)


if __name__ == "__main__":
    main()
