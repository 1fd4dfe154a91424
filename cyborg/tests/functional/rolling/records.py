# SPDX-License-Identifier: Apache-2.0
"""What is on record of a release: envelopes of every verb, wire shapes and errors, as files.

``conductor.json`` and ``agent.json`` hold for each verb one request and its answer, the richest of
a performance, and one refusal of each kind that came up. ``shapes.txt`` and ``errors.txt`` are what
its readers know (``cyborg.tests.unit.model.shapes``).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.tests.functional.rolling.tape import Exchange
from cyborg.tests.unit.model.shapes import errors, shapes

RECORDED = Path(__file__).with_name("recorded")
#: The release before this one, with which this one runs side by side.
BEFORE = "18.0.0.0b1"
#: Its versions, as [upgrade_levels] names them.
LEVELS = {"conductor": "1.0", "agent": "1.0"}
#: The release to be put on record now.
RELEASE = os.environ.get("CYBORG_TEST_RECORD")
TOPICS = (CONDUCTOR_TOPIC, AGENT_TOPIC)


@dataclass(frozen=True)
class Record:
    """One release; ``verbs`` by topic, then name."""

    place: Path

    @cached_property
    def verbs(self) -> dict[str, dict[str, Any]]:
        return {one: json.loads(self._file(one).read_text()) for one in TOPICS}

    @cached_property
    def shapes(self) -> dict[str, str]:
        return _lines(self.place / "shapes.txt")

    @cached_property
    def errors(self) -> dict[str, str]:
        return _lines(self.place / "errors.txt")

    def write(self, exchanges: Sequence[Exchange], names: Mapping[str, str]) -> None:
        """Put this release on record; ``names`` are replaced by what they are called there."""
        self.place.mkdir(parents=True, exist_ok=True)
        for topic in TOPICS:
            text = json.dumps(_chosen(exchanges, topic), indent=1, sort_keys=True)
            for name, known in names.items():
                text = text.replace(name, known)
            self._file(topic).write_text(text + "\n")
        for file, known_words in (("shapes.txt", shapes()), ("errors.txt", errors())):
            lines = (f"{name} {text}\n" for name, text in sorted(known_words.items()))
            (self.place / file).write_text("".join(lines))

    def _file(self, topic: str) -> Path:
        return self.place / f"{topic.removeprefix('cyborg-')}.json"


def before() -> Record:
    """The release before this one."""
    return Record(RECORDED / BEFORE)


def _lines(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def _chosen(exchanges: Sequence[Exchange], topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in sorted(exchanges, key=_size):
        if one.topic == topic:
            said = {"context": one.context, "args": one.args, "answer": one.answer}
            verb = found.setdefault(one.verb, {"refusals": {}})
            if one.refusal is None:
                verb |= said
            else:
                verb["refusals"][one.refusal] = said
    return found


def _size(one: Exchange) -> int:
    return len(json.dumps([one.args, one.answer]))
