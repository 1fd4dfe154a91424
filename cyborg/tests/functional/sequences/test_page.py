# SPDX-License-Identifier: Apache-2.0
"""Each diagram of the page is that of a run, and its text speaks of each transaction in it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg
from cyborg.db import schema
from cyborg.testing.glance import SimulatedGlance
from cyborg.testing.mortals import Ground
from cyborg.testing.nova import SimulatedNova
from cyborg.testing.placement import PlacementService
from cyborg.tests.functional.schema.databases import empty_database
from cyborg.tests.functional.sequences.story import Site, Story

PAGE = Path(cyborg.__file__).parents[1] / "doc/source/contributor/sequences.rst"
REWRITE = os.environ.get("CYBORG_TEST_REWRITE") == "1"
HOW = (
    "The page does not show what happens. If the code is right, write the diagrams anew with\n"
    "CYBORG_TEST_REWRITE=1 pytest -n 0 cyborg/tests/functional/sequences\n"
    "and see that what is said about them still holds."
)
_INDENT = "   "


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService, conf: cfg.ConfigOpts
) -> Mapping[str, str]:
    """The diagrams of one run."""
    files = tmp_path_factory.mktemp("story")
    with empty_database(files) as db, SimulatedNova() as nova, SimulatedGlance() as glance:
        schema.upgrade(db)
        ground = Ground(
            database_url=db.engine.url.render_as_string(hide_password=False),
            state_path=files / "state",
            placement=placement.adapter(),
            nova=nova.adapter(),
            glance=glance.adapter(),
        )
        site = Site(ground, conf, files)
        try:
            return Story(site, placement, nova).tell()
        finally:
            site.end()
            ground.close()


def drawn(name: str) -> re.Match[str]:
    """A diagram in the page as ``text`` between what is ``before`` and ``after`` it."""
    found = re.fullmatch(
        rf"(?P<before>.*\n\.\. recorded: {name}\n\n\.\. code-block:: text\n\n)"
        r"(?P<text>.*?)(?P<after>\n\n\S.*)",
        PAGE.read_text(),
        re.DOTALL,
    )
    assert found is not None, f"The page has no place for {name}."
    return found


@pytest.mark.parametrize("name", ["discover", "enable", "bind", "attach", "detach"])
def test_the_page_shows_what_happens(name: str, told: Mapping[str, str]) -> None:
    lines = [f"{_INDENT}{line}".rstrip() for line in told[name].splitlines()]
    recorded = "\n".join(lines)
    if REWRITE:
        page = drawn(name)
        PAGE.write_text(page["before"] + recorded + page["after"])
    assert drawn(name)["text"] == recorded, HOW


@pytest.mark.parametrize("name", ["discover", "enable", "bind", "attach", "detach"])
def test_the_text_tells_what_a_crash_means_at_each_transaction(name: str) -> None:
    page = drawn(name)
    text, _, _ = page["after"].partition("\n.. recorded:")
    told: set[int] = set()
    for first, last in re.findall(r"``tx (\d+)``(?:\s+to\s+``tx (\d+)``)?", text):
        told |= set(range(int(first), int(last or first) + 1))
    assert told == {int(one) for one in re.findall(r"\btx (\d+):", page["text"])}
