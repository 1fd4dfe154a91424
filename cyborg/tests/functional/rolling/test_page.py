# SPDX-License-Identifier: Apache-2.0
"""The page of the internal API shows the verbs and the shapes that there are."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import cyborg
from cyborg.conductor.app import Settings
from cyborg.rpc.command import newest
from cyborg.rpc.verbs import AGENT, CONDUCTOR
from cyborg.tests import committed
from cyborg.tests.functional.rolling import page
from cyborg.tests.unit.rpc.endpoints import COMMANDS, verbs

DOC = Path(cyborg.__file__).parents[1] / "doc" / "source"
PAGE = DOC / "contributor" / "internal-api.rst"
HOW = committed.advice("The page does not show what there is.", "functional/rolling/test_page.py")


def shown(name: str) -> committed.Part:
    """A part of the page."""
    return committed.Part(PAGE, rf"\.\. begin: {name}\n\n", rf"\n\n\.\. end: {name}\n")


@pytest.mark.parametrize("name", [*page.PARTS, "shapes"])
def test_page_shows_verbs_and_shapes(name: str) -> None:
    text = page.shapes() if name == "shapes" else page.part(name)
    assert shown(name).is_shown(text), HOW


def test_every_verb_has_a_purpose() -> None:
    of_topic = {topic: {"ping"} for topic in COMMANDS}
    for topic, named in page.PARTS.values():
        of_topic[topic] |= named.keys()
        assert all(vars(command)["__doc__"] for command in named.values())
    assert of_topic == {topic: verbs(topic) for topic in COMMANDS}


def test_every_argument_is_explained() -> None:
    glossary = PAGE.read_text().partition("\nArguments\n")[2].partition("\n===")[0]
    explained = set(re.findall(r"^``(\w+)``$", glossary, re.MULTILINE))
    assert explained == {
        one.name
        for named in COMMANDS.values()
        for command in named.values()
        for one in fields(command)
    }


def test_page_has_timeout_of_agent_calls() -> None:
    assert f"{Settings.agent_timeout:.0f} seconds" in " ".join(PAGE.read_text().split())


def test_table_has_versions_of_this_release() -> None:
    text = (DOC / "admin" / "rolling-upgrade.rst").read_text()
    *_, last = re.findall(r"^(\d+\.\S+)\s+(\d+\.\d+)\s+(\d+\.\d+)$", text, re.MULTILINE)
    assert last[1:] == (newest(CONDUCTOR), newest(AGENT))
