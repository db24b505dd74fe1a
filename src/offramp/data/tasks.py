"""The known tasks: GLUE, ELUE, SQuAD."""

from __future__ import annotations

from offramp.data.elue import ELUE
from offramp.data.glue import GLUE
from offramp.data.squad import SQUAD
from offramp.data.task import Task
from offramp.registry import Registry

__all__ = ["TASKS"]

TASKS: Registry[Task] = Registry("task", [*GLUE, *ELUE, *SQUAD])
