"""Only `answers/` and the listed modules may refer to a specific answer type."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "offramp"
NAMES = re.compile(
    r"SPAN|REGRESSION|RANKING|TOKEN|MULTI_LABEL|SINGLE_LABEL|Span\w*|Regression|Ranking|Token(Classification|Answers?)|MultiLabel|SingleLabel"
    r"|is_(span|regression|multi_label)"
)
KINDS = {
    "question_answering",
    "regression",
    "ranking",
    "token_classification",
    "multi_label_classification",
    "single_label_classification",
}
# readers and metrics depend on the form of their data, converters on that of their original
ALLOWED = {
    "data/labels.py",
    "data/metrics.py",
    "data/custom_task.py",
    "data/rows.py",
    "data/source.py",
    "data/split.py",
    "data/squad.py",
    "data/task.py",
    "originals/convert/ebert.py",
    "serving/tracing.py",  # spans of OpenTelemetry
}


def names_answer_type(file: Path) -> bool:
    """Whether the code of a file (not its comments) names an answer type."""
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


def test_only_listed_modules_name_an_answer_type():
    files = [file for file in SOURCE.rglob("*.py") if "answers" not in file.relative_to(SOURCE).parts[:1]]
    assert len(files) > 150
    naming = {str(file.relative_to(SOURCE)) for file in files if names_answer_type(file)}
    assert naming - ALLOWED == set(), "code for an answer type belongs in answers/"
    assert ALLOWED - naming == set(), "remove these from ALLOWED"
