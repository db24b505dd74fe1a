"""The documentation site: it builds strictly, has every page, and documents every public name."""

from __future__ import annotations

import inspect
import re

import pytest
import yaml

import offramp
from offramp.cli.main import COMMANDS
from tests.pages import DOCS

ROOT = DOCS.parent
FUNCTIONS = [name for name in offramp.__all__ if inspect.isfunction(getattr(offramp, name))]
CLASSES = [name for name in offramp.__all__ if inspect.isclass(getattr(offramp, name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_the_site_builds_strictly_with_every_page_and_command(site):
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert pages == {page.relative_to(site) for page in site.rglob("*.html")} - {
        site.joinpath("404.html").relative_to(site)
    }
    commands = (site / "reference" / "cli.html").read_text("utf-8")
    assert all(f'id="offramp-{name}"' in commands for name in COMMANDS)
    assert "--risk-type" in commands and "default: 0.02" in commands
    api = (site / "reference" / "api.html").read_text("utf-8")
    assert all(f'id="offramp.{name}"' in api for name in {*FUNCTIONS, *CLASSES} - {"OfframpError"})


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for link in re.findall(
            r'(?:<link [^>]*href|<script[^>]* src|<img [^>]*src)="([^"]+)"', page.read_text("utf-8")
        ):
            assert not link.startswith(("http:", "https:", "//")), (page.name, link)


def test_every_page_is_in_the_navigation_and_in_the_readme():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = set(re.findall(r"[\w/-]+\.md", str(navigation)))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    readme = (ROOT / "README.md").read_text("utf-8")
    generated = {"index.md", "reference/cli.md", "reference/api.md"}
    assert all(f"](docs/{page})" in readme for page in listed - generated)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_document_arguments_result_and_an_example(name):
    function = getattr(offramp, name)
    docstring = inspect.getdoc(function) or ""
    for part in ("Args:", "Returns:", ">>> "):
        assert part in docstring, part
    arguments = docstring.partition("Args:")[2]
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^ +\**{parameter}[ :]", arguments, re.MULTILINE), parameter


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_and_their_methods_have_docstrings(name):
    kind = getattr(offramp, name)
    assert inspect.getdoc(kind)
    own = {key: value for key, value in vars(kind).items() if not key.startswith("_")}
    missing = [key for key, value in own.items() if inspect.isfunction(value) and not value.__doc__]
    missing += [key for key, value in own.items() if isinstance(value, property) and not value.__doc__]
    assert missing == []
