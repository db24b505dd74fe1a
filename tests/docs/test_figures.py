"""Every measured figure in README.md and docs/ has a script, a date, and a record or a results page.

A figure is a number with ×, ms, "texts per second" or "requests per second"; in results pages, also a percentage in a
table. It belongs to the section that it stands in. The section must name the script that measured or wrote it and the
date; or it must link to a results page that contains the same number. What this cannot check: that a record was made by
the current version of the code, and figures that are written as words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pages import DOCS

ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {str(file.relative_to(ROOT)): file for file in [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]}
NUMBER = r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(rf"({NUMBER}) ?(?:×(?! ?[\dδ`])|ms\b|(?:texts|requests) per second)")
PERCENTAGE = re.compile(rf"^\|.*?({NUMBER}) ?%", re.MULTILINE)
SCRIPT = re.compile(r"\b((?:benchmarks|examples)/\w+\.py)\b")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
MARKER = re.compile(r"(<!-- \w+: )written by (benchmarks/\w+\.py) -->")
LINK = re.compile(r"\]\(([^)#]*results/[\w-]+\.md|(?:\.\./)*results/[\w-]+\.md)")


@dataclass(frozen=True)
class Section:
    """A page's text under one heading, and the text before its first one."""

    page: str
    title: str
    text: str
    intro: str

    @property
    def is_result(self) -> bool:
        return self.page.startswith("docs/results/")

    def figures(self) -> list[str]:
        found = FIGURE.findall(self.text)
        return found + (PERCENTAGE.findall(self.text) if self.is_result else [])

    def scripts(self) -> set[str]:
        return set(SCRIPT.findall(self.text + (self.intro if self.is_result else "")))

    def is_dated(self) -> bool:
        """The summary at the top of a results page has the dates of the sections below."""
        text = PAGES[self.page].read_text("utf-8") if self.is_result and not self.title else self.text
        return bool(DATE.search(text + (self.intro if self.is_result else "")))

    def quoted_pages(self) -> str:
        """The text of the results pages that the section, or the top of its page, links to."""
        folder = PAGES[self.page].parent
        return "".join((folder / link).read_text("utf-8") for link in LINK.findall(self.text + self.intro))

    def without_record(self) -> list[str]:
        """The figures without a script and a date that a linked results page does not contain either."""
        if self.scripts() and self.is_dated():
            return []
        pages = self.quoted_pages()
        return [
            figure for figure in self.figures() if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|\.\d)", pages)
        ]


def sections() -> list[Section]:
    found = []
    for name, file in PAGES.items():
        intro, *parts = re.split(r"^## ", file.read_text("utf-8"), flags=re.MULTILINE)
        found.append(Section(name, "", intro, intro))
        found += [Section(name, part.splitlines()[0], part, intro) for part in parts]
    return found


WITH_FIGURES = [section for section in sections() if section.figures()]


def test_there_are_figures():
    assert len(WITH_FIGURES) > 30 and sum(len(section.figures()) for section in WITH_FIGURES) > 500


@pytest.mark.parametrize("page", sorted({section.page for section in WITH_FIGURES}))
def test_every_figure_has_a_script_a_date_or_a_results_page(page):
    without = {section.title: section.without_record() for section in WITH_FIGURES if section.page == page}
    assert not {title: figures for title, figures in without.items() if figures}


def test_the_scripts_exist_and_read_or_write_a_record():
    """One of a section's scripts names a file or folder in benchmarks/results; scripts of examples print figures."""
    records = {path.name for path in RESULTS.iterdir()} | {path.stem for path in RESULTS.iterdir()}
    for section in WITH_FIGURES:
        scripts, recorded = section.scripts(), False
        for script in scripts:
            words = set(re.findall(r"[\w.-]+", (ROOT / script).read_text("utf-8"))) | {Path(script).stem}
            recorded |= script.startswith("examples/") or bool(words & records)
        assert recorded or not scripts, f"{section.page}, {section.title}: no record of {', '.join(scripts)}"


def test_marked_blocks_are_written_by_the_script_that_they_name():
    marked = [(name, MARKER.search(line)) for name, file in PAGES.items() for line in file.read_text().splitlines()]
    found = [(name, match) for name, match in marked if match]
    assert len(found) >= 5
    for name, match in found:
        assert match[1] in (ROOT / match[2]).read_text("utf-8"), (name, match[0])
        assert PAGES[name].read_text("utf-8").count(match[0]) == 1


def test_a_figure_without_a_record_is_found():
    assert Section("README.md", "", "9876.5 × ([speed](docs/results/speed.md)).", "").without_record() == ["9876.5"]
    assert Section("README.md", "", "It is 9876.5 × as fast.", "").without_record() == ["9876.5"]
    assert Section("README.md", "", "9876.5 × (`benchmarks/load.py`, 2026-11-17).", "").without_record() == []
    assert not Section("README.md", "", "An encoder of 6 × 384 at a risk of 2 %.", "").figures()
