# SPDX-License-Identifier: Apache-2.0
"""Blocks of the documents, so that tests run the very text that operators copy."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

INSTALL = Path(__file__).resolve().parents[4] / "doc" / "source" / "install"
#: The page of the web servers, and the path below which they serve.
WEB_SERVERS = "web-servers"
PREFIX = "/accelerator"


def block(page: str, name: str) -> str:
    """The text of the code block of an installation page that has this ``:name:``."""
    text = (INSTALL / f"{page}.rst").read_text()
    (found,) = re.findall(
        rf"^\.\. code-block:: \w+\n(?:   :\w+: .*\n)*?   :name: {name}\n(?:   :\w+: .*\n)*"
        r"\n((?:(?:   .*)?\n)+)",
        text,
        re.MULTILINE,
    )
    return f"{dedent(found).strip()}\n"


def filled(page: str, name: str, values: Mapping[str, object]) -> str:
    """A block with other directories and ports; each of them must be in it."""
    text = block(page, name)
    for old, new in values.items():
        assert old in text, f"{old} is not in block {name} of {page}.rst"
        text = text.replace(old, str(new))
    return text
