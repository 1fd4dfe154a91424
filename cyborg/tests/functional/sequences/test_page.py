# SPDX-License-Identifier: Apache-2.0
"""Each diagram of the page is that of a run, and its text speaks of each transaction in it."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg
from cyborg.tests import committed
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.functional.sequences.story import Story, recorded_site

PAGE = Path(cyborg.__file__).parents[1] / "doc/source/contributor/sequences.rst"
HOW = committed.advice("The page does not show what happens.", "functional/sequences")
_INDENT = "   "


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService, conf: cfg.ConfigOpts
) -> Mapping[str, str]:
    """The diagrams of one run."""
    files = tmp_path_factory.mktemp("story")
    with new_environment(files, placement) as (environment, nova, _):
        site = recorded_site(environment, conf, files)
        try:
            return Story(site, placement, nova).tell()
        finally:
            site.processes.stop()


def drawn(name: str) -> committed.Part:
    """A diagram in the page."""
    begin = rf"\.\. recorded: {name}\n\n\.\. code-block:: text\n\n"
    return committed.Part(PAGE, begin, r"\n\n\S")


def test_page_shows_and_explains_recorded_sequences(told: Mapping[str, str]) -> None:
    for name, diagram in told.items():
        lines = [f"{_INDENT}{line}".rstrip() for line in diagram.splitlines()]
        page = drawn(name)
        assert page.is_shown("\n".join(lines)), f"{name}: {HOW}"
        text, _, _ = page.after.partition("\n.. recorded:")
        explained: set[int] = set()
        for first, last in re.findall(r"``tx (\d+)``(?:\s+to\s+``tx (\d+)``)?", text):
            explained |= set(range(int(first), int(last or first) + 1))
        # A crash at each transaction is explained.
        assert explained == {int(one) for one in re.findall(r"\btx (\d+):", page.text)}, name
    recorded = re.findall(r"^\.\. recorded: (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert recorded == list(told)
