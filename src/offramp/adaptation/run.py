"""`adapt(model, texts, …)`: exits that imitate the model, the quickest of them, and a promise about its answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from offramp.adaptation.possible import possible
from offramp.adaptation.texts import Parts, read_parts, task_of
from offramp.adaptation.work import Work, work_beside
from offramp.calibration.choice import AUTO, CalibrationOptions, policies_for, promised
from offramp.calibration.judge import with_some_judge
from offramp.calibration.risks import Promise
from offramp.calibration.run import bound, whole_evidence
from offramp.calibration.tuning.choosing import TuneOptions, at_more_risk, candidates, judged_by, line_of, told
from offramp.calibration.tuning.costs import measure
from offramp.calibration.tuning.knobs import TUNABLE
from offramp.calibration.tuning.search import Candidate
from offramp.core.chunks import Text
from offramp.core.runner import Runner
from offramp.data.hashes import hashes_of
from offramp.data.reading import Source
from offramp.data.rows import TaskRows
from offramp.errors import BadInput, BadValue, OfframpError
from offramp.evaluation.evaluate import EvaluationOptions, obtain_trace, planned, scored
from offramp.evaluation.grids import grid
from offramp.evaluation.points import Scorer
from offramp.evaluation.traces.about import cpu_name, of_data
from offramp.export.options import ExportOptions, Texts
from offramp.files.writing import check_free, staged_folder, write_together
from offramp.model import card
from offramp.model.adaptive import AdaptiveModel
from offramp.model.attach import ExitOptions
from offramp.report.page import render
from offramp.runtimes.loading import load
from offramp.training.holdout import KNOWN, UNKNOWN, earlier_rows, read_hashes, write_hashes
from offramp.training.imitation.heads import ImitationOptions, imitate
from offramp.training.imitation.original import cut_to, with_new_exits
from offramp.training.imitation.states import States, record_states
from offramp.training.imitation.teacher import called

__all__ = ["AdaptOptions", "Adapted", "adapt"]

logger = logging.getLogger("offramp")

LEAST = 1.02  # times fewer layers: what saves less saves nothing
ORIGIN = "of yours that nothing else used"
UNSURE = f"{ORIGIN} (whether it was trained on some of them is not known)"
SCALES, CHECKED, TIMED = 256, 512, 512


@dataclass(frozen=True)
class AdaptOptions:
    """What is asked for beside the promise."""

    output: str
    exits: ExitOptions = field(default_factory=lambda: ExitOptions(heads="attention"))
    imitation: ImitationOptions = field(default_factory=ImitationOptions)
    tuning: TuneOptions = field(default_factory=lambda: TuneOptions("torch"))
    int8: str = "auto"
    max_length: int | None = None
    resume: bool = False
    overwrite: bool = False


class NoPromise(Exception):
    """Nothing was saved within the risk: what was written on the way is not kept."""


@dataclass(frozen=True)
class Adapted:
    """What was found; without layers nothing was written."""

    layers: tuple[int, ...]
    sentence: str
    measured: str = ""


def adapt(
    name: str, source: Source, promise: Promise, options: AdaptOptions, say: Callable[[str], None] = lambda line: None
) -> Adapted:
    """Make a faster model of a fine-tuned one and texts; no labels are needed."""
    output = Path(options.output)
    _check_place(output, name, source, options.overwrite)
    torch.manual_seed(options.imitation.seed)  # the heads begin as they are drawn
    model = with_new_exits(name, options.exits)
    _check(model, promise, options)
    cut = _cut_shorter(model, options.max_length)
    promise = replace(promise, reference=called(name), frozen=True)
    roles = read_hashes(Path(name))
    seen = np.concatenate([roles[role] for role in ("train", "dev") if role in roles] or [np.empty(0, np.uint64)])
    parts = read_parts(replace(source, inputs=_inputs(model)), promise, seen)
    model.config.inputs = _columns(model, parts, source)
    say(parts.told()[0].upper() + parts.told()[1:] + ".")
    work = work_beside(output, _about(model, parts, options), options.resume, options.overwrite)
    try:
        with staged_folder(output, options.overwrite) as new:
            made = Job(name, model, parts, promise, options, work, new, say, roles, cut).run()
    except NoPromise as no:
        made = Adapted((), str(no))
    except OfframpError:
        if not options.resume:
            work.remove()
        raise
    work.remove()
    return made


def _check_place(output: Path, name: str, source: Source, overwrite: bool) -> None:
    """Nothing that the run reads may lie where it writes."""
    for what, file in (("the model", Path(name)), ("the texts", Path(source.file))):
        if file.exists() and file.resolve().is_relative_to(output.resolve()):
            raise BadValue(f"{output} holds {what} that the run reads, which stays; name another folder with --output.")
    check_free(output, overwrite)


def _check(model: AdaptiveModel, promise: Promise, options: AdaptOptions) -> None:
    """Whatever is wrong with the options is said before anything is computed."""
    promise.check(model.config.answer_type, labelled=False)
    policy, backend = options.tuning.policy, options.tuning.backend
    if policy not in (AUTO, *TUNABLE):
        raise BadValue(f"Exits are chosen for a policy by threshold ({', '.join(TUNABLE)}), not for {policy!r}.")
    for one in policies_for(policy, model.config.shape):
        grid(one, with_some_judge(model.config.shape))  # says what is wrong with it
    if backend == "openvino" and options.int8 in ("token", "dynamic"):
        raise BadValue(f"OpenVINO has no fast kernels for {options.int8} scales; take --int8 static or none.")


def _cut_shorter(model: AdaptiveModel, asked: int | None) -> int | None:
    """Let texts be cut as asked for; the tokens, where that is shorter than the model itself cuts them."""
    own = model.runner().limit
    if asked is None:
        return None
    model.config.max_tokens = asked
    return asked if model.runner().limit < own else None  # a runner says what is wrong with it


def _inputs(model: AdaptiveModel) -> tuple[str, ...] | None:
    return None if model.config.inputs is None else tuple(model.config.inputs)


def _columns(model: AdaptiveModel, parts: Parts, source: Source) -> list[str]:
    """What a text and its partner are called; texts of the other kind than the model was trained on are refused."""
    pairs = not isinstance(parts.training[0], str)
    if model.config.reads_pairs not in (None, pairs):
        ours, theirs = ("pairs", "single texts") if pairs else ("single texts", "pairs")
        raise BadInput(f"{source.file} holds {ours}, and the model was trained on {theirs}.")
    if model.config.inputs is not None:
        return list(model.config.inputs)
    return [source.text_column or "text", *([source.pair_column or "pair"] if pairs else [])]


def _about(model: AdaptiveModel, parts: Parts, options: AdaptOptions) -> dict[str, Any]:
    """What a run that is resumed has to have in common with the one that was interrupted."""
    settings = {"exits": asdict(options.exits), "imitation": asdict(options.imitation), "length": options.max_length}
    each = {"training": parts.training, "choice": parts.choice, "test": parts.test}
    texts = {name: of_data(some, None, None) for name, some in each.items()}
    return {"model": model.runner().fingerprint, "texts": texts, **settings}


@dataclass(frozen=True)
class Job:
    """One run's parts."""

    name: str
    model: AdaptiveModel  # with an exit wherever one may be
    parts: Parts
    promise: Promise
    options: AdaptOptions
    work: Work
    new: Path  # the folder that becomes the output
    say: Callable[[str], None]
    roles: dict[str, NDArray[np.uint64]]
    cut: int | None = None  # tokens, where texts are cut shorter than the model itself cuts them

    def run(self) -> Adapted:
        """States, heads, exits, promise, report."""
        states = self._states()
        self._check_answers(states)
        self._heads(states)
        way = self._exported if self.options.tuning.backend != "torch" else self._in_torch
        layers = way()
        runner = load(self.new, self.options.tuning.backend, threads=self.options.tuning.threads)
        assert runner.config.calibrated is not None
        measured = self._report(runner)
        self._rename()
        return Adapted(tuple(layers), runner.config.calibrated["sentence"], measured)

    # -- learning --------------------------------------------------------------------------------

    def _states(self) -> States:
        states = self.work.states()
        if states is None:
            self.say(f"The encoder of {self.name} reads the texts to learn from, once.")
            states = record_states(self.model, self.parts.training, self.work.folder)
            self.work.keep_states(states)
        return states

    def _check_answers(self, states: States) -> None:
        """Refuse a model that says the same about everything."""
        answers = self.model.config.answer_type.answers(states.teacher.numpy())
        if not self.model.config.answer_type.is_regression and len(np.unique(answers, axis=0)) == 1:
            said = self.model.config.answer_type.say(answers[0], self.model.config.labels)
            raise BadInput(f"{self.name} answers all texts with {said}: there is nothing to tell apart.")

    def _heads(self, states: States) -> None:
        """Early exits learn to answer as the last one does."""
        heads = [self.model.exits.at(point) for point in self.model.exits.points[:-1]]
        kept = self.work.heads()
        if kept is None:
            began = time.monotonic()
            with tqdm(total=100, unit=" %", desc="exits", delay=2, leave=False, disable=None) as bar:

                def tell(share: float, loss: float) -> None:
                    bar.update(int(100 * share) - bar.n)

                epochs = imitate(heads, states, self.model.config.answer_type, self.options.imitation, tell)
            self.say(
                f"{len(heads)} exits learnt from its answers: {epochs:.1f} epochs, {time.monotonic() - began:.0f} s."
            )
            last = f"{self.model.config.num_layers}."
            kept = {key: value for key, value in self.model.exits.state_dict().items() if not key.startswith(last)}
            self.work.keep_heads(kept)
        self.model.exits.load_state_dict(kept, strict=False)  # the last exit is the model's own

    # -- choosing and promising ------------------------------------------------------------------

    def _in_torch(self) -> list[int]:
        """The layers of the exits that are kept; the model and its promise are written."""
        tuning, data, points = self.options.tuning, self._rows(self.parts.choice), self.model.exits.points
        if tuning.threads is not None:
            torch.set_num_threads(tuning.threads)
        runner = self.model.runner()
        trace = obtain_trace(runner, data, self._file("choice"))
        asked = grid(policies_for(tuning.policy, trace.shape)[0], with_some_judge(trace.shape))[0]
        costs = measure(runner, runner.stepper, data.rows.texts[:TIMED], tuning.batch, asked)
        early = range(len(points) - 1)
        found = candidates(trace, self.promise, costs, tuning, early)
        self.say("\n".join([told(costs), *(line_of(one, [point.layer for point in points]) for one in found[:3])]))
        if not found:
            raise NoPromise(" ".join([self._none(), *at_more_risk(trace, self.promise, costs, tuning, early)]))
        layers = [points[place].layer for place in found[0].places]
        self._promised(self._written(layers), found[0])
        return layers

    def _exported(self) -> list[int]:
        """The same on an export, whose graphs are written beside the model."""
        from offramp.calibration.tuning.run import cut, found_on, tested_on
        from offramp.export.making import Making

        tuning, whole = self.options.tuning, self.work.folder / "all"
        asked = ExportOptions(tuning.backend, self.options.int8, force=True, threads=tuning.threads)
        texts = Texts(self.parts.training[:SCALES], self.parts.choice[:CHECKED])  # none that the promise is tested on
        self.model.save_pretrained(whole)
        self.model.name_or_path = str(whole)
        making = Making(self.model, texts, asked, self.say)
        made = making.make()
        best, lines = found_on(making, made, self._rows(self.parts.choice), self.promise, tuning)
        self.say("\n".join(lines))
        if best is None:
            raise NoPromise(self._none())
        layers = [self.model.exits.points[place].layer for place in best.places]
        small = self._written(layers)
        try:
            self._promised(small, best)  # of torch, which the folder answers with as well
        except NoPromise as no:
            logger.warning("In torch: %s", no)
        making = Making(small, texts, cut(asked, made, layers), self.say)
        found = tested_on(making, best, self._rows(self.parts.test), self.promise, self._origin(), tuning)
        if found.policy is None:
            raise NoPromise(found.sentence)
        return layers

    def _written(self, layers: list[int]) -> AdaptiveModel:
        """The model with these exits, in its folder."""
        small = cut_to(self.model, layers)
        small.config.notes = self._notes()
        small.save_pretrained(self.new)
        small.name_or_path = small.config._name_or_path = str(self.new)
        seen = {"train": self.parts.training, "dev": self.parts.choice, "calibration": self.parts.test}
        hashes = {role: hashes_of(texts) for role, texts in seen.items()}
        for role in ("train", "dev"):
            hashes[role] = np.concatenate([hashes[role], self.roles.get(role, hashes[role][:0])])
        write_hashes(self.new, hashes, earlier_rows(Path(self.name)) if self.roles else UNKNOWN)
        return small

    def _promised(self, small: AdaptiveModel, best: Candidate) -> None:
        """Test on texts that nothing else used, and write policy, promise and card."""
        runner, data = small.runner(), self._rows(self.parts.test)
        trace = judged_by(obtain_trace(runner, data, self._file("test")), best.policy)
        policy, choice = promised(trace, self.promise, CalibrationOptions((best.policy.name,)), self._origin())
        if policy is None or choice["speedup"] < LEAST:
            said = f"{choice['sentence']} {possible(trace, self.promise, best.policy.name)}"
            raise NoPromise(f"{said} A second try needs other texts to test on.")
        config, evidence = bound(runner, policy, whole_evidence(choice, policy, trace))
        files = {self.new / "config.json": config.to_json_string(), self.new / card.EVIDENCE: evidence}
        write_together(card.new_card(config, self.new) | files)

    def _none(self) -> str:
        wish = f"{self.promise.about(self.model.config.answer_type)}"
        return f"No exits keep {wish} on the {len(self.parts.choice):,} texts that they are chosen on."

    def _origin(self) -> str:
        origin = ORIGIN if self._is_known() else UNSURE
        return origin if self.cut is None else f"{origin}, all of them cut at {self.cut} tokens"

    def _is_known(self) -> bool:
        """Whether all rows that the model was ever trained on are known here."""
        return bool(self.roles) and earlier_rows(Path(self.name)) == KNOWN

    def _rows(self, texts: list[Text]) -> TaskRows:
        return task_of(self.model.config, texts, f"texts for {called(self.name)}")

    def _file(self, name: str) -> Path:
        """Where a trace goes; what an interrupted run left of it may be of other heads."""
        file = self.work.folder / f"{name}.safetensors"
        file.unlink(missing_ok=True)
        return file

    # -- telling ---------------------------------------------------------------------------------

    def _notes(self) -> str:
        """What the card says beyond the promise."""
        known = "" if self._is_known() else " Which texts that model was trained on is not known here."
        return (
            f"## How it was made\n\nBy `offramp adapt` from {called(self.name)}, whose encoder and last exit are "
            f"unchanged, without labels: {self.parts.told()}.{known} `report.html` tells where texts leave and shows "
            "those on which the two differ."
        )

    def _report(self, runner: Runner) -> str:
        """The page about the texts that the promise was tested on; what was measured, in words."""
        data, original = self._rows(self.parts.test), self.model.runner()
        trace = obtain_trace(runner, data, self._file("report"))
        options = EvaluationOptions(live=True, tolerance=self.promise.tolerance)
        scorer = Scorer(trace, data.metrics, None, options.tolerance)
        results = scored(scorer, runner, data, planned(runner, options), options, against=original)
        results["model"]["name"] = str(self.options.output)
        results |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": ""}
        (self.new / "report.html").write_text(render(results), encoding="utf-8")
        live = results["live"][0]
        if live["measured_speedup"] < 1:
            logger.warning(
                "Leaving early does not pay here: it takes longer than the model itself. See --batch, --backend."
            )
        return (
            f"{live['measured_speedup']:.2f} × the speed of {called(self.name)} in torch float32, measured "
            f"in one run on {results['live_rows']:,} of these texts: {live['seconds']:.2f} s instead of "
            f"{results['plain_seconds']:.2f} s ({runner.backend}, {runner.dtype}, {runner.stepper.threads} "
            f"thread{'s' if runner.stepper.threads > 1 else ''}, {cpu_name()})."
        )

    def _rename(self) -> None:
        """The evidence is about the folder that this one becomes."""
        for file in (self.new / card.EVIDENCE, self.new / self.options.tuning.backend / card.EVIDENCE):
            if file.is_file():
                told = json.loads(file.read_text("utf-8"))
                told["model"]["name"] = str(self.options.output)
                file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
