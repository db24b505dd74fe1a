"""Run golden cases of the original systems through `convert` and the public API.

    python tests/conformance.py DIR

DIR is a folder of cases, or one case. Prints a line per check, then which arrays of `expected` are not
checked yet and why, and last `N passed, M failed`. Ends with 1 if anything failed.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor
from transformers import AutoModel

import offramp  # noqa: F401 -- registers ElasticBERT with the Auto classes
from golden_case import Case, Check, claim, close, same
from golden_data import checks_of_data
from golden_ebert import checks_of_ebert, checks_of_ebert_flops
from golden_ebert_training import checks_of_ebert_training
from golden_flops import checks_of_flops
from golden_losses import checks_of_losses
from golden_squad import checks_of_squad_post
from golden_training import checks_of_training
from offramp import AdaptiveModel, policies
from offramp.answers import SINGLE_LABEL
from offramp.core.batch import Batch
from offramp.data.metrics import score
from offramp.errors import BadValue
from offramp.evaluation.cost import layer_cost
from offramp.originals.convert import detect
from offramp.policies import Policy

HIGHWAYS = ("deebert", "romebert", "berxit")

# what later work brings, by the array's name or its beginning
NOT_YET = {
    "loss/alternate-lte-even-one-row": "the original pairs every layer with every other there; offramp does not",
    "batch4/": "one counter for a whole batch is a defect that offramp does not offer; rows decide alone here",
}
FORMULAS = "the original formula's own NaNs; `exact` is what offramp gives"


def checks_of_model(case: Case) -> Iterator[Check]:
    """Every exit's answer, then every run under its policy, by rows and together."""
    kind, runs = case.about["kind"], case.about["runs"]
    found = detect(case.checkpoint).name
    yield claim("kind detected", found == ("deebert" if kind == "romebert" else kind), found)
    model = case.model()
    with torch.no_grad():
        out = model(**case.batch, output_exits=True)
    logits = out.exit_logits.transpose(0, 1)  # (exits, rows, classes)
    if (wanted := case.take("logits")) is not None:
        yield close("logits", logits, wanted)
    if (wanted := case.take("entropy")) is not None:
        yield close("entropy", SINGLE_LABEL.entropy(logits), wanted)
    if (wanted := case.take("lte")) is not None:
        yield close("lte", out.exit_uncertainty.T, wanted)
    # entropy on a regression is refused unless faithful, whosever it is
    judged = case.about["task"] == "regression" and any(run.get("policy") == "entropy" for run in runs.values())
    faithful = case.model(faithful=True) if kind in HIGHWAYS or judged else None
    if faithful is not None and kind in HIGHWAYS:
        yield from checks_of_ramp(case, faithful)
    for name, run in runs.items():
        if f"{name}/exit_layer" in case.expected and name != "batch4":
            yield from checks_of_run(case, name, run, model, faithful)
    if (wanted := case.take("each_layer/score")) is not None:
        each = torch.stack([score_of(case, one) for one in logits])
        yield close("each_layer/score", each, wanted.float())
    yield from checks_of_losses(case, model)
    yield from checks_of_training(case)


def score_of(case: Case, logits: Tensor) -> Tensor:
    """The originals' score of answers: F1 for two classes, accuracy for more, Spearman for a regression."""
    labels = case.inputs["labels"].numpy()
    if case.about["task"] == "regression":
        return torch.tensor(score(["spearmanr"], logits[:, 0].numpy(), labels)["spearmanr"], dtype=torch.float32)
    metric = "f1" if case.about["num_labels"] == 2 else "acc"
    return torch.tensor(score([metric], logits.argmax(-1).numpy(), labels)[metric], dtype=torch.float32)


def checks_of_ramp(case: Case, faithful: AdaptiveModel) -> Iterator[Check]:
    """The last layer's highway: the last exit's ramp; in a faithful DeeBERT or RomeBERT an exit before the last."""
    with torch.no_grad():
        *_, state = _states(faithful, case.batch)
        head = faithful.exits.head(case.depth).ramp
        assert head is not None
        ramp = head(head.features(state)).unsqueeze(0)
        every = faithful(**case.batch, output_exits=True).exit_logits
    if case.about["kind"] != "berxit":
        yield claim("the ramp is an exit of its own", torch.equal(every[:, -2], ramp[0]))
    if (wanted := case.take("highway_logits")) is not None:
        yield close("highway_logits", ramp, wanted)
    if (wanted := case.take("highway_entropy")) is not None:
        yield close("highway_entropy", SINGLE_LABEL.entropy(ramp), wanted)


def policy_of(run: dict[str, Any]) -> Policy:
    """The design's policy for a run of the original."""
    given = run.get("threshold", 0.0)
    # the originals write "never" as a negative threshold; ours is 0, below which nothing lies either
    threshold = tuple(max(0.0, one) for one in given) if isinstance(given, list) else max(0.0, given)
    if run["policy"] == "entropy":
        return policies.Entropy(threshold)
    if run["policy"] == "lte":
        return policies.Learned(threshold)
    if run["policy"] == "patience":
        if run["patience"] == 0:  # the original's word for no early exit
            return policies.Never()
        return policies.Patience(run["patience"], run.get("regression_threshold"))
    raise ValueError(f"unknown policy {run['policy']!r} in case.json")


def answer(model: AdaptiveModel, case: Case, policy: Policy, size: int) -> tuple[Tensor, Tensor]:
    """Exit layers and logits of all rows, in batches of `size`."""
    rows = len(case.batch["input_ids"])
    with torch.no_grad():
        outs = [
            model(**{key: value[start : start + size] for key, value in case.batch.items()}, policy=policy)
            for start in range(0, rows, size)
        ]
    return torch.cat([out.exit_layer for out in outs]), torch.cat([out.logits for out in outs])


def checks_of_run(
    case: Case, name: str, run: dict[str, Any], model: AdaptiveModel, faithful: AdaptiveModel | None
) -> Iterator[Check]:
    """Exit layers exactly, answers, and what the original reported of the run."""
    policy = policy_of(run)
    layers, logits = case.take(f"{name}/exit_layer"), case.take(f"{name}/logits")
    assert layers is not None
    if case.about["task"] == "regression" and policy.name == "entropy":
        try:
            answer(model, case, policy, len(layers))
            yield claim(f"{name} refused", False)
        except BadValue:
            yield claim(f"{name} refused", True)
        sane = None
    else:
        sane = model
    marked = case.take(f"{name}/last_highway")
    for label, chosen in (("", sane), (" faithful", faithful)):
        if chosen is None:
            continue
        wanted = logits
        if not label and marked is not None and logits is not None:  # those rows get the final classifier here
            wanted = torch.where(marked.bool().unsqueeze(-1), case.expected["logits"][-1], logits)
        for size in (1, len(layers)):
            got_layers, got_logits = answer(chosen, case, policy, size)
            yield same(f"{name}/exit_layer{label}, batch {size}", got_layers, layers)
            if wanted is not None:
                yield close(f"{name}/logits{label}, batch {size}", got_logits, wanted)
    if (asked := case.take(f"{name}/score")) is not None:
        yield close(f"{name}/score", score_of(case, got_logits), asked.float())
    yield from checks_of_cost(case, name, got_layers, case.depth)


def checks_of_cost(case: Case, name: str, layers: Tensor, depth: int) -> Iterator[Check]:
    """The original's histogram and the numbers that it made of it."""
    cost = layer_cost(layers, depth)
    if (wanted := case.take(f"{name}/counter")) is not None:
        yield same(f"{name}/counter", torch.tensor(cost.rows_per_layer[1:]), wanted)
    for array, got in (
        ("saving", cost.layers_run),
        ("average_layer", cost.mean_layers),
        ("speed_up", cost.speedup),
        ("saved", cost.saved),
    ):
        if (wanted := case.take(f"{name}/{array}")) is not None:
            yield close(f"{name}/{array}", torch.tensor(got).view(wanted.shape), wanted.float())


def checks_of_static(case: Case) -> Iterator[Check]:
    """ElasticBERT's first k layers with pooler k − 1; a saved static model as it is."""
    found = detect(case.checkpoint).name
    yield claim("kind detected", found == case.about["kind"], found)
    rows = len(case.batch["input_ids"])
    for array in sorted(name for name in case.expected if re.fullmatch(r"static-\d+/logits", name)):
        layers = int(array.split("/")[0].removeprefix("static-"))
        wanted = case.take(array)
        assert wanted is not None
        whole = layers == case.depth
        with torch.no_grad():
            out = (case.model() if whole else case.model(layers=layers))(**case.batch)
        yield close(array, out.logits.reshape(wanted.shape), wanted)
        yield claim(f"{array} costs {layers} layers", out.exit_layer.tolist() == [layers] * rows)
        yield from checks_of_losses(case, case.model() if whole else case.model(layers=layers), f"static-{layers}")
    yield from checks_of_training(case)


def checks_of_released(case: Case) -> Iterator[Check]:
    """The released body: through the Auto class whole and in part, and through convert."""
    folder = case.folder / "checkpoint"
    found = detect(case.checkpoint).name
    yield claim("kind detected", found == "elasticbert", found)
    converted = case.model()
    with torch.no_grad():
        states = list(_states(converted, case.batch))
        pooled = [converted.exits.head(i).features(state) for i, state in enumerate(states, 1)]
        whole = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(**case.batch)
    if (wanted := case.take("pooled")) is not None:
        yield close("pooled, Auto class", whole.pooled.transpose(0, 1), wanted)
        yield close("pooled, converted", torch.stack(pooled), wanted)
    if (wanted := case.take("cls")) is not None:
        yield close("cls", torch.stack([state.hidden[:, 0] for state in states]), wanted)
    if (wanted := case.take("hidden")) is not None:
        yield _real_states(case, states, wanted)
    for name, run in case.about["runs"].items():
        layers = run.get("layers", run.get("num_hidden_layers"))
        outputs = run.get("num_output_layers", 1)
        with torch.no_grad():
            part = AutoModel.from_pretrained(
                folder, num_hidden_layers=layers, num_output_layers=outputs, dtype=torch.float32
            ).eval()(**case.batch)
        for array, got in (("pooled", part.pooled.transpose(0, 1)), ("cls", part.last_hidden_state[:, 0])):
            if (wanted := case.take(f"{name}/{array}")) is not None:
                yield close(f"{name}/{array}", got.reshape(wanted.shape), wanted)


def _states(model: AdaptiveModel, batch: dict[str, Tensor]) -> Iterator[Any]:
    stepper = model.stepper
    state = stepper.embed(Batch.from_tensors(**batch))
    for point in stepper.exits:
        state, _ = stepper.advance(state, point)
        yield state


def _real_states(case: Case, states: list[Any], wanted: Tensor) -> Check:
    """Hidden states of the first rows, up to each row's own length (padding means nothing)."""
    real = case.batch["attention_mask"][: wanted.shape[1]].bool()  # (rows, length)
    got = torch.zeros_like(wanted)
    length = states[0].hidden.shape[1]
    got[:, :, :length] = torch.stack([state.hidden[: wanted.shape[1]] for state in states])
    return close("hidden", got[:, real], wanted[:, real])


def checks_of_entropy(case: Case) -> Iterator[Check]:
    """Entropy of ordinary and extreme logits: what it should be, never NaN, never negative."""
    for name in ("ordinary", "edge"):
        got = SINGLE_LABEL.entropy(case.inputs[f"{name}/logits"])
        if (wanted := case.take(f"{name}/exact")) is not None:
            yield close(f"{name}/exact", got, wanted.float())
        yield claim(f"{name} is not negative", bool((got >= 0).all()))


def checks_of_counts(case: Case) -> Iterator[Check]:
    """DeeBERT's cost: one count per forward pass."""
    for name, run in case.about["runs"].items():
        yield from checks_of_cost(case, name, case.inputs[f"{name}/exits"], run["num_layers"])


def checker(case: Case) -> Callable[[Case], Iterator[Check]] | str:
    """The function that checks a case, or why there is none yet."""
    kind, variant = case.about["kind"], case.about.get("variant", "")
    if kind == "elue-data":
        return checks_of_data
    if kind == "elue-flops":
        return checks_of_flops
    has_checkpoint = (case.folder / "checkpoint").is_dir()
    if kind == "ebert" and case.about.get("task") == "flops":
        return checks_of_ebert_flops
    if kind == "ebert" and case.about.get("task") == "squad" and not has_checkpoint:
        return checks_of_squad_post
    if kind == "ebert" and has_checkpoint:
        return lambda case: itertools.chain(checks_of_ebert(case), checks_of_ebert_training(case))
    if kind in HIGHWAYS and not has_checkpoint:
        return checks_of_entropy if any("exact" in name for name in case.expected) else checks_of_counts
    if kind == "elasticbert" and variant in ("static", "released"):
        return checks_of_static if variant == "static" else checks_of_released
    if has_checkpoint and kind in (*HIGHWAYS, "pabee", "elasticbert"):
        return checks_of_model
    return f"kind {kind!r} is not known"


def why_not(name: str, case: Case) -> str:
    """Why an array is not checked."""
    for start, why in (NOT_YET | case.differs).items():
        if name.startswith(start):
            return why
    if name.endswith(("entropy_plogp", "entropy_lse")):
        return FORMULAS
    return "no check for it"


def run_case(folder: Path) -> tuple[int, int, dict[str, list[str]]]:
    """Print a case's checks; how many passed and failed, and what is left unchecked, by reason."""
    with tempfile.TemporaryDirectory() as scratch:
        return checked(Case(folder, Path(scratch)))


def checked(case: Case) -> tuple[int, int, dict[str, list[str]]]:
    """The same, with a folder to write into."""
    chosen = checker(case)
    if isinstance(chosen, str):
        return 0, 0, {chosen: sorted(case.expected)}
    passed = failed = 0
    try:
        for name, fits, detail in chosen(case):
            print(f"{'ok  ' if fits else 'FAIL'} {case.folder.name}: {name} ({detail})")
            passed, failed = passed + fits, failed + (not fits)
    except Exception as err:  # a case that breaks is a failed case, and the others still run
        print(f"FAIL {case.folder.name}: {type(err).__name__}: {err}")
        failed += 1
    left: dict[str, list[str]] = {}
    for name in sorted(set(case.expected) - case.used):
        left.setdefault(why_not(name, case), []).append(name)
    return passed, failed, left


def short(names: list[str]) -> str:
    """Array names with their tails folded: grad/all/* instead of each parameter."""
    folded = dict.fromkeys("/".join(name.split("/")[:2]) + ("/*" if name.count("/") > 1 else "") for name in names)
    return ", ".join(folded)


def main(arguments: list[str]) -> int:
    """Run every case under the folder."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    torch.set_num_threads(1)  # tiny models
    gc.freeze()  # every training ends with a full collection, which need not walk the libraries
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    root = Path(arguments[0])
    folders = sorted(path.parent for path in root.glob("**/case.json"))
    if not folders:
        print(f"No case.json under {root}.", file=sys.stderr)
        return 2
    passed = failed = 0
    unchecked: list[str] = []
    for folder in folders:
        good, bad, left = run_case(folder)
        passed, failed = passed + good, failed + bad
        unchecked += [f"not checked: {folder.name}: {short(names)} ({why})" for why, names in left.items()]
    print("\n".join(unchecked))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
