"""A backbone and its exits as a stepper, in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from offramp.answers import AnswerType
from offramp.core.batch import Batch
from offramp.core.stepper import HIDDEN, ExitOutput, ExitPoint, Positions
from offramp.encoders import EncoderState, Family
from offramp.model.exits import Exits
from offramp.model.fingerprint import of_weights

__all__ = ["TorchStepper", "WidthPlugin", "scale_gradient"]


class WidthPlugin(Protocol):
    """Runs layers with a part of their width, row by row (EBERT's gates)."""

    @property
    def module(self) -> nn.Module:
        """Its weights."""
        ...

    @property
    def pads_to(self) -> int | None:
        """Tokens over which the embeddings' mean is taken, padding included (0: as the batch is); None: not at all."""
        ...

    def step(self, family: Family, encoder: nn.Module, state: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        ...


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
    width: WidthPlugin | None = None  # runs the layers in place of the family, each row with a part of them
    faithful: bool = False  # padding counts in a token's loss, as the originals have it

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """From shallow to deep."""
        return self.modules.points

    def untrained(self) -> tuple[int, ...]:
        """The layers whose heads were never trained."""
        return self.modules.untrained()

    def embed(self, batch: Batch) -> EncoderState:
        """Embed a batch, its padding cut to the longest row."""
        pad_to = None if self.width is None else self.width.pads_to
        uncut = self.faithful and self.answer_type.per_token
        return self.family.start(self.encoder, batch, pad_to, cut=not uncut)

    def advance(self, state: EncoderState, point: ExitPoint) -> tuple[EncoderState, ExitOutput]:
        """Run the layers up to the exit and let its head answer."""
        if self.width is None:
            state = self.family.step(self.encoder, state, point.layer)
        else:
            state = self.width.step(self.family, self.encoder, state, point.layer)
        deeper = len(self.exits) - point.number
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, 1 / (deeper + 1)))
        logits, uncertainty = self.ask(state, point)
        logits, tokens = self._read(logits, state)
        output = ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, state.kept, tokens)
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, deeper))
        return state, output

    def ask(self, state: EncoderState, point: ExitPoint) -> tuple[Tensor, Tensor | None]:
        """What an exit's head says of the rows that stand behind its layer, and LTE of that."""
        head = self.modules.at(point)
        shared = self.modules["shared"] if self.modules.shares_pooler[point.number - 1] else None
        features = head.features(state, shared)
        if "lte" not in self.modules:
            return head(features), None
        # on the last layer BERxiT's LTE reads the ramp's pooler
        judged = features if head.ramp is None else head.ramp.features(state)
        judged = judged[:, 0] if self.answer_type.per_token else judged
        return head(features), torch.sigmoid(self.modules["lte"](judged)).squeeze(-1)

    def _read(self, logits: Tensor, state: EncoderState) -> tuple[Tensor, Tensor | None]:
        """What policies see of rows, and every token's logits where each is answered; in training these alone."""
        if self.modules.training:
            if not self.answer_type.per_token:
                return logits, None
            tokens = logits if self.faithful else logits.masked_fill(~state.real[..., None], HIDDEN)
            return tokens, tokens
        summary, hidden = self.answer_type.read(logits, lambda: state.real, state.marks)
        return summary, logits if self.faithful and hidden is not None else hidden

    def keep(self, state: EncoderState, rows: Positions) -> EncoderState:
        """Go on with these rows, cut to the longest of them."""
        return self.family.keep(state, rows)

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
        gates = None if self.width is None else self.width.module
        return [("backbone", self.encoder), ("exits", self.modules), ("gates", gates)]

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
        inputs = batch.as_inputs()
        hidden, mask = self.encoder(**inputs)[0], inputs["attention_mask"]
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
