# SPDX-License-Identifier: Apache-2.0
"""Files and directories that the documents name are there."""

import re
from pathlib import Path

import pytest

from cyborg.tests.unit.documents.shell import ROOT
from cyborg.tests.unit.documents.test_blocks import DOCUMENTS

#: Below which directories of the repository a path is one of ours.
_OURS = "|".join(("api-ref", "devstack", "doc", "releasenotes", "tools", "cyborg"))
_ROOMS = "|".join(sorted(one.parent.name for one in (ROOT / "cyborg").glob("*/__init__.py")))
#: Where builds write, which no fresh clone has.
_MADE = re.compile(r"\w[\w-]*/build\b|etc/cyborg/.*\.sample")


def named(text: str) -> set[str]:
    """The paths in a text; those of the code may leave the package's name out."""
    found = set(re.findall(rf"``((?:{_OURS}|{_ROOMS})/[\w./-]+)``", text))
    return {path for path in found if not _MADE.match(path)}


def exists(path: str) -> bool:
    """A module of ours may be named without its suffix."""
    places = (ROOT / path, ROOT / "cyborg" / path, ROOT / "cyborg" / f"{path}.py")
    return any(place.exists() for place in places)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_documents_exist(path: Path):
    assert [one for one in sorted(named(path.read_text())) if not exists(one)] == []


def test_stale_path_is_found():
    text = "``tools/nothing``, ``doc/build/html``, ``conductor/arqs/bind.py``, ``model/nothing.py``"
    found = named(text)
    assert {one for one in found if not exists(one)} == {"tools/nothing", "model/nothing.py"}
