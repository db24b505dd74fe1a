"""Nothing between the two ends asks which kind of answer it is: files that name one are counted, and only get fewer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "offramp"
NAMES = re.compile(
    r"SPAN|REGRESSION|MULTI_LABEL|SINGLE_LABEL|Span\w*|Regression|MultiLabel|SingleLabel|is_(span|regression|multi_label)"
)
KINDS = {"question_answering", "regression", "multi_label_classification", "single_label_classification"}
# readers and metrics know what their data look like; converters what their original answered with
MAY = {
    "data/labels.py",
    "data/metrics.py",
    "data/custom_task.py",
    "data/rows.py",
    "data/source.py",
    "data/split.py",
    "data/squad.py",
    "data/task.py",
    "originals/convert/ebert.py",
}


def names_a_kind(file: Path) -> bool:
    """Whether its code (not its words) names a kind."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Name) and NAMES.fullmatch(node.id):
            return True
        if isinstance(node, ast.Attribute) and NAMES.fullmatch(node.attr):
            return True
        if isinstance(node, ast.alias) and NAMES.fullmatch(node.name.split(".")[-1]):
            return True
        if isinstance(node, ast.Constant) and node.value in KINDS:
            return True
    return False


def test_only_readers_name_a_kind():
    files = [file for file in SOURCE.rglob("*.py") if "answers" not in file.relative_to(SOURCE).parts[:1]]
    assert len(files) > 150
    found = {str(file.relative_to(SOURCE)) for file in files if names_a_kind(file)}
    assert found - MAY == set(), "a kind of answer belongs into answers/"
    assert MAY - found == set(), "these need not be listed any more"
