"""The stepper of the PyTorch backend: an encoder and its exit heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from offramp.answers import AnswerType
from offramp.core.batch import Batch
from offramp.core.stepper import PADDING_LOGIT, ExitOutput, ExitPoint, RowIndices
from offramp.encoders import EncoderState, Family
from offramp.model.exits import Exits
from offramp.model.fingerprint import hash_weights

__all__ = ["TorchStepper", "WidthPlugin", "scale_gradient"]


class WidthPlugin(Protocol):
    """Runs layers with pruned heads and channels per row (EBERT's gates)."""

    @property
    def module(self) -> nn.Module:
        """The module with the weights."""
        ...

    @property
    def pad_to(self) -> int | None:
        """Length for the mean of padded embeddings (0: the batch's length); None: the mean is not needed."""
        ...

    def step(self, family: Family, encoder: nn.Module, state: EncoderState, depth: int) -> EncoderState:
        """Run the layers up to `depth`."""
        ...


@dataclass(frozen=True)
class TorchStepper:
    """Runs an encoder layer by layer, and its exit heads.

    With `equilibrium` (ElasticBERT's gradient equilibrium) every layer receives the mean instead of the sum of the
    gradients of deeper exits; outputs are the same.
    """

    family: Family
    encoder: nn.Module
    heads: Exits
    answer_type: AnswerType
    equilibrium: bool = False
    width: WidthPlugin | None = None  # runs the layers instead of the family, with pruning
    faithful: bool = False  # reproduces the original implementations, where padding counts in a token's loss

    @property
    def exits(self) -> tuple[ExitPoint, ...]:
        """The exits from shallow to deep."""
        return self.heads.points

    def untrained_layers(self) -> tuple[int, ...]:
        """Return the layers of exits whose heads have not been trained."""
        return self.heads.untrained_layers()

    def embed(self, batch: Batch) -> EncoderState:
        """Embed a batch, trimmed to the longest row."""
        pad_to = None if self.width is None else self.width.pad_to
        keep_padding = self.faithful and self.answer_type.per_token
        return self.family.start(self.encoder, batch, pad_to, trim=not keep_padding)

    def advance(self, state: EncoderState, point: ExitPoint) -> tuple[EncoderState, ExitOutput]:
        """Run the layers up to the exit, then its head."""
        if self.width is None:
            state = self.family.step(self.encoder, state, point.layer)
        else:
            state = self.width.step(self.family, self.encoder, state, point.layer)
        deeper = len(self.exits) - point.number
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, 1 / (deeper + 1)))
        logits, uncertainty = self.run_head(state, point)
        logits, tokens = self._read(logits, state)
        output = ExitOutput(point.number, point.layer, self.answer_type, logits, uncertainty, state.kept, tokens)
        if self.equilibrium:
            state = replace(state, hidden=scale_gradient(state.hidden, deeper))
        return state, output

    def run_head(self, state: EncoderState, point: ExitPoint) -> tuple[Tensor, Tensor | None]:
        """Return the logits of an exit head and the learning-to-exit module's uncertainty, if the model has one."""
        head = self.heads.at(point)
        shared = self.heads["shared"] if self.heads.shares_pooler[point.number - 1] else None
        features = head.features(state, shared)
        if "lte" not in self.heads:
            return head(features), None
        # on the last layer BERxiT's LTE module reads the ramp's pooler
        lte_input = features if head.ramp is None else head.ramp.features(state)
        lte_input = lte_input[:, 0] if self.answer_type.per_token else lte_input
        return head(features), torch.sigmoid(self.heads["lte"](lte_input)).squeeze(-1)

    def _read(self, logits: Tensor, state: EncoderState) -> tuple[Tensor, Tensor | None]:
        """Return the logits per row, which policies read, and per token; in training only those that the loss takes."""
        if self.heads.training:
            if not self.answer_type.per_token:
                return logits, None
            tokens = logits if self.faithful else logits.masked_fill(~state.real[..., None], PADDING_LOGIT)
            return tokens, tokens
        summary, hidden = self.answer_type.summarize_logits(logits, lambda: state.real, state.marks)
        return summary, logits if self.faithful and hidden is not None else hidden

    def keep(self, state: EncoderState, rows: RowIndices) -> EncoderState:
        """Return the state of the given rows, trimmed to the longest."""
        return self.family.keep(state, rows)

    # -- the rest of the `Backend` interface -----------------------------------------------------

    @property
    def backend(self) -> str:
        """The backend's name."""
        return "torch"

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return str(next(self.encoder.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.encoder.parameters()).device

    @property
    def threads(self) -> int:
        """The number of CPU threads of this process."""
        return torch.get_num_threads()

    def _modules(self) -> list[tuple[str, nn.Module | None]]:
        gates = None if self.width is None else self.width.module
        return [("backbone", self.encoder), ("exits", self.heads), ("gates", gates)]

    def weights_fingerprint(self) -> str:
        """Return a hash of all weights, under their names in a model folder."""
        states = {name: module.state_dict() for name, module in self._modules() if module is not None}
        return hash_weights((f"{name}.{key}", value) for name, state in states.items() for key, value in state.items())

    def copy_weights(self) -> None:
        """Copy the weights into memory, so that a server no longer depends on the file that they are mapped from.

        If `model.safetensors` is overwritten, mapped weights change; if it is truncated, the process ends.
        """
        modules = [module for _, module in self._modules() if module is not None]
        weights = {id(part): part for module in modules for part in (*module.parameters(), *module.buffers())}
        copies: dict[Any, Tensor] = {}  # by address, so that tied weights stay tied
        for part in weights.values():
            address = part.data_ptr(), part.shape, part.stride()
            if address not in copies:
                copies[address] = part.detach().clone()
            part.data = copies[address]

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Switch to evaluation mode without gradients, and restore the modules' modes afterwards."""
        before = [(module, module.training) for _, module in self._modules() if module is not None]
        for module, _ in before:
            module.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            for module, training in before:
                module.train(training)

    def full_model(self, batch: Batch) -> Tensor:
        """Return the full model's logits, from the encoder's own forward pass and the last exit head."""
        inputs = batch.as_inputs()
        return self.classify(self.encoder(**inputs)[0], inputs["attention_mask"])

    def hidden_states(self, batch: Batch) -> tuple[list[Tensor], Tensor, ExitOutput]:
        """Return the states at the early exits, the token mask, and the last exit's output; early heads do not run."""
        *early, last = self.exits
        state, states = self.embed(batch), []
        for point in early:
            state = self.family.step(self.encoder, state, point.layer)
            states.append(state.hidden)
        real = state.real
        _, output = self.advance(state, last)
        return states, real, output

    def classify(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of the last exit head on the encoder's output, (rows, tokens, hidden size)."""
        weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1).to(hidden.dtype)
        head = self.heads.at(self.exits[-1])
        shared = self.heads["shared"] if self.heads.shares_pooler[-1] else None
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
    """Return the same values; their gradient is multiplied by `factor`."""
    scaled: Tensor = _Scale.apply(hidden, factor)  # type: ignore[no-untyped-call]
    return scaled
