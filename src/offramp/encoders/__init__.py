"""The supported encoder families; one file per architecture."""

from __future__ import annotations

from offramp.encoders.albert import Albert
from offramp.encoders.bert import Bert, DistilBert, Electra, Roberta, XlmRoberta
from offramp.encoders.deberta import DebertaV2
from offramp.encoders.elasticbert import ElasticBert
from offramp.encoders.family import EncoderState, Family, HeadModules, HeadSpec
from offramp.encoders.modernbert import ModernBert
from offramp.encoders.mpnet import MPNet
from offramp.registry import Registry

__all__ = ["FAMILIES", "EncoderState", "Family", "HeadModules", "HeadSpec"]

FAMILIES: Registry[Family] = Registry(
    "backbone family",
    [
        Bert(),
        Roberta(),
        XlmRoberta(),
        Albert(),
        ElasticBert(),
        DistilBert(),
        Electra(),
        DebertaV2(),
        ModernBert(),
        MPNet(),
    ],
)
