# SPDX-License-Identifier: Apache-2.0
"""Files of the repository that show what a test saw: compared with it, or written anew from it."""

import os
import re
from pathlib import Path
from typing import Final

#: Whoever changed what is shown, and meant to, sets it once.
REWRITE: Final = os.environ.get("CYBORG_TEST_REWRITE") == "1"


def advice(flaw: str, tests: str) -> str:
    """What to do about a file that differs; ``tests`` is what writes it, below cyborg/tests."""
    return (
        f"{flaw} If the code is right, write it anew with\n"
        f"CYBORG_TEST_REWRITE=1 pytest -n 0 cyborg/tests/{tests}\n"
        "and see that what is said about it still holds."
    )


class Part:
    """A part of a page, between two patterns."""

    def __init__(self, page: Path, begin: str, end: str) -> None:
        self._page = page
        self._form = re.compile(
            rf"(?P<before>.*\n{begin})(?P<text>.*?)(?P<after>{end}.*)", re.DOTALL
        )

    @property
    def text(self) -> str:
        """What stands there."""
        return self._found["text"]

    @property
    def after(self) -> str:
        """The rest of the page."""
        return self._found["after"]

    def is_shown(self, text: str) -> bool:
        """Whether this is what stands there; it does once it is written anew."""
        if REWRITE:
            self._page.write_text(self._found["before"] + text + self._found["after"])
        return self.text == text

    @property
    def _found(self) -> re.Match[str]:
        found = self._form.fullmatch(self._page.read_text())
        assert found is not None, f"{self._page.name} has no place for {self._form.pattern}"
        return found


def lines_of(file: Path, lines: list[str]) -> list[str]:
    """The lines of a file, which are ``lines`` once it is written anew."""
    if REWRITE:
        file.write_text("\n".join([*lines, ""]))
    return file.read_text().splitlines()
