"""Tasks as data: GLUE, ELUE, SQuAD, and where their rows are read."""

from __future__ import annotations

from offramp.registry import Registry
from offramp.tasks.elue import ELUE
from offramp.tasks.glue import GLUE
from offramp.tasks.squad import SQUAD
from offramp.tasks.task import Hub, Layout, Rows, Task

__all__ = ["TASKS", "Hub", "Layout", "Rows", "Task"]

TASKS: Registry[Task] = Registry("task", [*GLUE, *ELUE, *SQUAD])
