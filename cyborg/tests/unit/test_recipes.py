# SPDX-License-Identifier: Apache-2.0
"""The recipe for a new field of devices names every module that a field is in."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
#: From the report of a host to the command line; drivers and agents fill the field.
PLACES: Final = (
    *(f"cyborg/{name}" for name in ("model", "db", "conductor", "api")),
    "client/cyborg_cli",
)


def test_recipe_of_a_device_field_names_each_place_of_a_field() -> None:
    _, _, rest = (ROOT / "CONTRIBUTING.rst").read_text().partition("\nA field of devices\n")
    recipe = rest.partition("\nA command\n")[0]
    files = [file for place in PLACES for file in (ROOT / place).rglob("*.py")]
    places = {
        str(file.relative_to(ROOT))
        for file in files
        if "migrations" not in file.parts and re.search(r"\bvendor_board_info\b", file.read_text())
    }
    assert set(re.findall(r"``((?:client|cyborg)/\S+\.py)``", recipe)) == places
    # The fifth place is the migration.
    assert len(places) == 4
    answers = (ROOT / "cyborg/api/controllers/v2/devices.py").read_text()
    assert len(re.findall(r"\bvendor_board_info\b", answers)) == 1
