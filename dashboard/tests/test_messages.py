# SPDX-License-Identifier: Apache-2.0
"""The texts that people see are marked, and translators get a catalogue of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cyborg.tests.fixtures import programs
from cyborg_tools.dashboard import messages
from cyborg_tools.dashboard.horizon import PACKAGE

#: Functions whose arguments are marked texts, or texts for the log.
_MARKS: Final = frozenset({"_", "ngettext", "ngettext_lazy", "gettext", "warning", "info"})
#: What people see of forms, tables and panels.
_SHOWN: Final = (
    *("label", "verbose_name", "verbose_name_plural", "help_text"),
    *("heading", "explanation", "submit", "done", "page_title", "cancel_label", "noun"),
    "PANEL_GROUP_NAME",
)
_SENTENCE: Final = re.compile(r"[A-Z][a-z]+ [a-z]+")
#: In templates: what is marked, what is no text, and attributes that are read aloud or shown.
_MARKED: Final = re.compile(
    r"{% blocktrans.*?{% endblocktrans %}|{% comment.*?{% endcomment %}|{#.*?#}|{%.*?%}|{{.*?}}",
    re.DOTALL,
)
_ATTRIBUTES: Final = re.compile(r'\b(?:aria-label|title|placeholder|alt|value)="([^"]*)"')
_TAG: Final = re.compile(r"<[^>]*>", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
#: Units of measurement, and names, which are the same in all languages.
_UNTRANSLATED: Final = frozenset({"JSON"})


def unmarked_in_code(source: str) -> Iterator[str]:
    """Yield the texts of a module that people see and no function marks."""
    tree = ast.parse(source)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in _MARKS:
            skipped.update(ast.walk(node))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and node not in skipped else None
        if isinstance(text, str) and _SENTENCE.search(text):
            yield text
        for name, value in _assigned(node):
            text = value.value if isinstance(value, ast.Constant) else None
            if name in _SHOWN and isinstance(text, str) and text:
                yield f"{name}={text}"


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for each, value in pairs:
                yield _name(each), value


def _name(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def unmarked_in_template(source: str) -> Iterator[str]:
    """Yield the words of a template that people see and no tag marks."""
    rest = _MARKED.sub("", source)
    for text in [*_ATTRIBUTES.findall(rest), _TAG.sub("\n", rest)]:
        for word in _WORD.findall(text):
            if word not in _UNTRANSLATED:
                yield word


def test_every_text_of_the_code_is_marked() -> None:
    found = {
        str(file.relative_to(PACKAGE)): texts
        for file in PACKAGE.rglob("*.py")
        if (texts := list(unmarked_in_code(file.read_text())))
    }
    assert found == {}


def test_every_text_of_the_templates_is_marked() -> None:
    found = {
        str(file.relative_to(PACKAGE)): words
        for file in PACKAGE.rglob("*.html")
        if (words := list(unmarked_in_template(file.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("column = Column(verbose_name='Host')", ["verbose_name=Host"]),
        ("heading, other = 'Host', 1", ["heading=Host"]),
        ("messages.error(request, f'The host {name} is gone')", ["The host "]),
        ("messages.error(request, _('The host is gone'))", []),
        ("LOG.warning('The host is gone')", []),
        ("'''What it does.'''", []),
    ],
)
def test_unmarked_text_of_code_is_found(source: str, texts: list[str]) -> None:
    assert list(unmarked_in_code(source)) == texts


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("<p>Free</p>", ["Free"]),
        ('<p aria-label="Free">{{ free }}</p>', ["Free"]),
        ('<p class="wide">{% trans "Free" %}</p>', []),
        ("{% blocktrans count n=n %}One{% plural %}Many{% endblocktrans %}", []),
    ],
)
def test_unmarked_text_of_templates_is_found(source: str, words: list[str]) -> None:
    assert list(unmarked_in_template(source)) == words


def test_catalogue_has_the_texts_of_code_and_templates(tmp_path: Path) -> None:
    programs.require(programs.GETTEXT)
    catalogue = messages.extracted()
    for text in (
        'msgid "Create Device Profile"',
        'msgid "Line %(number)d: %(pair)s does not have the form KEY=VALUE."',
        'msgid "Devices That Need Attention"',
        'msgid_plural "%(amount)s servers have units of it."',
        'msgid_plural "%d further servers fit now."',
        "#: content/own/views.py",
    ):
        assert text in catalogue
    assert str(tmp_path.parent) not in catalogue
