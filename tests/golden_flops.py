"""ELUE's counter: the golden multiply-accumulates and parameters against ours, from configs of those shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import AlbertConfig, BertConfig, PreTrainedConfig

from golden_case import Case, Check, same
from offramp import AdaptiveModel
from offramp.encoders.elasticbert import ElasticBertConfig
from offramp.model.config import AdaptiveConfig
from offramp.model.exit_spec import ExitSpec
from offramp.originals.elue import macs_per_exit

Numbers = Sequence[int]


def shape(kind: type[PreTrainedConfig], row: Numbers, **more: int) -> PreTrainedConfig:
    """A backbone's config: layers, hidden size, heads, intermediate size."""
    layers, hidden, heads, inner = row
    return kind(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner, **more
    )


def adaptive(backbone: PreTrainedConfig, classes: int, exits: Sequence[int]) -> AdaptiveConfig:
    """Exits with poolers, as the originals have them."""
    return AdaptiveConfig(
        backbone=backbone, num_labels=classes, exits=[ExitSpec(layer, "pooler", "first") for layer in exits]
    )


def static(row: Numbers) -> AdaptiveConfig:
    """One exit behind the last layer."""
    layers, _, hidden, heads, inner, classes, vocab, positions, types = row
    sizes = {"vocab_size": vocab, "max_position_embeddings": positions, "type_vocab_size": types}
    outputs = {"num_output_layers": 1, "max_output_layers": layers}
    backbone = shape(ElasticBertConfig, (layers, hidden, heads, inner), **sizes, **outputs)
    return adaptive(backbone, classes, [layers])


def parameters(config: AdaptiveConfig) -> int:
    """Of the model itself, built without memory."""
    with torch.device("meta"):
        return sum(value.numel() for value in AdaptiveModel(config).parameters())


def plain(row: Numbers) -> int:
    """A plain BERT classifier."""
    layers, length, hidden, heads, inner, classes = row
    return int(
        macs_per_exit(adaptive(shape(BertConfig, (layers, hidden, heads, inner)), classes, [layers]), length)[-1]
    )


def albert(row: Numbers) -> int:
    """A plain ALBERT classifier."""
    layers, length, hidden, heads, inner, classes, embedding, groups = row
    backbone = shape(
        AlbertConfig,
        (layers, hidden, heads, inner),
        embedding_size=embedding,
        inner_group_num=groups,
        num_hidden_groups=1,
    )
    return int(macs_per_exit(adaptive(backbone, classes, [layers]), length)[-1])


def dynamic(row: Numbers) -> int:
    """A model with an exit on every layer, left at one of them."""
    layers, left, length, hidden, heads, inner, classes = row
    backbone = shape(
        ElasticBertConfig, (layers, hidden, heads, inner), num_output_layers=layers, max_output_layers=layers
    )
    return int(macs_per_exit(adaptive(backbone, classes, range(1, layers + 1)), length)[left - 1])


def checks_of_flops(case: Case) -> Iterator[Check]:
    """Every count exactly."""

    def rows(name: str) -> list[list[int]]:
        grid = case.take(f"{name}/grid")
        assert grid is not None
        return grid.tolist()

    def expected(name: str) -> Tensor:
        found = case.take(name)
        assert found is not None
        return found

    shapes = rows("static")
    got = [int(macs_per_exit(static(row), row[1])[-1]) for row in shapes]
    yield same("static/macs", torch.tensor(got), expected("static/macs"))
    yield same("static/params", torch.tensor([parameters(static(row)) for row in shapes]), expected("static/params"))
    for name, count in (("dynamic", dynamic), ("bert", plain), ("albert", albert)):
        yield same(f"{name}/macs", torch.tensor([count(row) for row in rows(name)]), expected(f"{name}/macs"))
    batches = case.take("batch/grid")
    assert batches is not None  # a batch costs its rows
    one = int(macs_per_exit(static([3, 16, 32, 4, 64, 2, 100, 64, 2]), 16)[-1])
    yield same("batch/macs", one * batches, expected("batch/macs"))
