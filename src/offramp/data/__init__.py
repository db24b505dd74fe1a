"""Tasks as data: GLUE, ELUE, SQuAD, and where their rows are read."""

from __future__ import annotations

from offramp.data.elue import ELUE
from offramp.data.glue import GLUE
from offramp.data.squad import SQUAD
from offramp.data.task import Hub, Layout, Rows, Task
from offramp.registry import Registry

__all__ = ["TASKS", "Hub", "Layout", "Rows", "Task"]

TASKS: Registry[Task] = Registry("task", [*GLUE, *ELUE, *SQUAD])
