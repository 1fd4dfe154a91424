# SPDX-License-Identifier: Apache-2.0
"""The permissions at RabbitMQ that the installation guide gives to each role."""

import re
from pathlib import Path

import cyborg

GUIDE = Path(cyborg.__file__).parents[1] / "doc/source/install/by-hand.rst"
#: A line of the guide: the command, the role, and its regular expressions.
_LINE = re.compile(r"rabbitmqctl (set_(?:topic_)?permissions) -p \S+ cyborg-(\w+) (.+)")


def commands() -> list[tuple[str, str, list[str]]]:
    """The command, the role and the regular expressions of each line of the guide."""
    found = []
    for line in GUIDE.read_text().replace("\\\n", " ").splitlines():
        if match := _LINE.search(line):
            command, role, rest = match.groups()
            words = re.findall(r'"([^"]*)"|(\S+)', rest)
            found.append((command, role, [quoted or plain for quoted, plain in words]))
    return found
