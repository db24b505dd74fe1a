"""A backbone and its exits as a stepper, in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from offramp.answers import AnswerType
from offramp.answers.span import LOW, anywhere, summary
from offramp.core.stepper import Batch, ExitOutput, ExitPoint, Positions
from offramp.encoders import EncoderState, Family
from offramp.model.exits import Exits
from offramp.model.fingerprint import of_weights
from offramp.originals.width.gates import Gates
from offramp.originals.width.walk import walk

__all__ = ["TorchStepper", "scale_gradient"]


@dataclass(frozen=True)
class TorchStepper:
    """The seam over PyTorch modules: the family steps the encoder, the heads answer.

    With `equilibrium` (ElasticBERT's training) every layer gets the mean, not the sum, of the gradients of the exits
    behind it; the values are the same.
    """

    family: Family
    encoder: nn.Module
    modules: Exits
    answer_type: AnswerType
    equilibrium: bool = False
    gates: Gates | None = None
    faithful: bool = False  # a question's padding counts in its loss, as the originals have it

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """From shallow to deep."""
        return self.modules.points

    def untrained(self) -> tuple[int, ...]:
        """The layers whose heads were never trained."""
        return self.modules.untrained()

    def embed(self, batch: Batch) -> EncoderState:
        """Embed a batch, its padding cut to the longest row."""
        width = None if self.gates is None else self.gates.width
        pad_to = None if width is None or width.first == "real" else width.pad_to or 0
        return self.family.start(self.encoder, batch, pad_to, cut=not (self.faithful and self.answer_type.is_span))

    def advance(self, state: EncoderState, point: ExitPoint) -> tuple[EncoderState, ExitOutput]:
        """Run the layers up to the exit and let its head answer."""
        if self.gates is None:
            state = self.family.step(self.encoder, state, point.layer)
        else:
            state = walk(self.gates, self.family, self.encoder, state, point.layer)
        deeper = len(self.exits) - point.number
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, 1 / (deeper + 1)))
        logits, uncertainty = self.ask(state, point)
        tokens = None
        if self.answer_type.is_span:
            logits, tokens = self._spans(logits, state)
        said = ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, state.kept, tokens)
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, deeper))
        return state, said

    def ask(self, state: EncoderState, point: ExitPoint) -> tuple[Tensor, Tensor | None]:
        """What an exit's head says of the rows that stand behind its layer, and LTE of that."""
        head = self.modules.at(point)
        shared = self.modules["shared"] if self.modules.shares_pooler[point.number - 1] else None
        features = head.features(state, shared)
        if "lte" not in self.modules:
            return head(features), None
        # on the last layer BERxiT's LTE reads the ramp's pooler
        judged = features if head.ramp is None else head.ramp.features(state)
        judged = judged[:, 0] if self.answer_type.is_span else judged
        return head(features), torch.sigmoid(self.modules["lte"](judged)).squeeze(-1)

    def _spans(self, tokens: Tensor, state: EncoderState) -> tuple[Tensor, Tensor]:
        """What policies see of a row's tokens, and the tokens, padding hidden; in training these alone."""
        if not self.faithful:
            tokens = tokens.masked_fill(~state.real[..., None], LOW)
        if self.modules.training:
            return tokens, tokens
        return summary(tokens, anywhere(state.real) if state.marks is None else state.marks), tokens

    def keep(self, state: EncoderState, rows: Positions) -> EncoderState:
        """Go on with these rows, cut to the longest of them."""
        return self.family.keep(state, rows)

    def join(self, states: Sequence[EncoderState]) -> EncoderState:
        """Go on with the rows of all of them, padded to the longest."""
        return self.family.join(self.encoder, states)

    # -- what a runner needs beside stepping -----------------------------------------------------

    @property
    def backend(self) -> str:
        """Its name."""
        return "torch"

    @property
    def dtype(self) -> str:
        """Of the weights."""
        return str(next(self.encoder.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.encoder.parameters()).device

    @property
    def threads(self) -> int:
        """Of the CPU, in this process."""
        return torch.get_num_threads()

    def _modules(self) -> list[tuple[str, nn.Module | None]]:
        return [("backbone", self.encoder), ("exits", self.modules), ("gates", self.gates)]

    def weights(self) -> str:
        """The fingerprint of all weights, named as a model folder names them."""
        parts = {name: module for name, module in self._modules() if module is not None}
        return of_weights((f"{part}.{key}", value) for part in parts for key, value in parts[part].state_dict().items())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Evaluation mode without gradients; the modules' mode comes back."""
        before = [(module, module.training) for _, module in self._modules() if module is not None]
        for module, _ in before:
            module.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            for module, training in before:
                module.train(training)

    def plain(self, batch: Batch) -> Tensor:
        """The family's own forward pass, then the last exit's head."""
        mask = batch["attention_mask"].long()  # a Boolean one is not every encoder's
        hidden = self.encoder(
            **{key: value for key, value in batch.items() if key != "marks"} | {"attention_mask": mask}
        )[0]
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
        head = self.modules.at(self.exits[-1])
        shared = self.modules["shared"] if self.modules.shares_pooler[-1] else None
        return head(head.features(EncoderState(hidden, None, weights, None), shared))


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scale_gradient(hidden: Tensor, factor: float) -> Tensor:
    """The same values; the gradient that comes back through them is multiplied by `factor`."""
    scaled: Tensor = _Scale.apply(hidden, factor)  # type: ignore[no-untyped-call]
    return scaled
