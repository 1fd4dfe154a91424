# SPDX-License-Identifier: Apache-2.0
"""Requests and answers as samples: JSON texts in which nothing differs from run to run."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

from cyborg.tests.functional.life.http import Client

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_DURATION: Final = re.compile(r'(?<="seconds": )[0-9.]+|(?<= \()[0-9.]+(?= s\))')
_MOMENT: Final = "2026-11-23T09:30:00"
#: Made-up uuids are derived from where they were seen first.
_NAMESPACE: Final = UUID("6f9f5c43-3c3f-4dc0-8d0c-2f8d0a1b7c11")


@dataclass(frozen=True)
class Exchange:
    """One request: method, path without mount point and version, microversion, and its answer."""

    method: str
    path: str
    version: str | None
    status: int


class Recorder:
    """Sends requests and keeps them as texts by file name, for one run.

    ``names`` are words of this run and what stands for them. Uuids are other ones, the same for the
    same in all samples; times are all one time, in their form, and durations are two seconds.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.texts: dict[str, str] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._names = names
        self._uuids: dict[str, str] = {}
        self._new: Counter[str] = Counter()

    def ask(
        self, name: str, client: Client, request: str, body: Any = None, *, status: int = 200
    ) -> Any:
        """Send ``METHOD /path``, and keep body and answer as far as there are any."""
        method, _, path = request.partition(" ")
        answer = client.send(method, path, body, status)
        self.exchanges[name] = Exchange(method, path, client.version, status)
        if body is not None:
            self.keep(f"{name}-req", body)
        if answer is not None:
            self.keep(f"{name}-resp", answer)
        return answer

    def keep(self, file: str, content: Any) -> None:
        """Keep a JSON value as the sample of this name."""
        text = json.dumps(content, indent=4, ensure_ascii=False)
        for word, other in self._names.items():
            text = text.replace(word, other)
        text = _DURATION.sub("2.0", _TIME.sub(_time, text))
        self.texts[file] = _UUID.sub(lambda found: self._uuid(file, found[0]), text) + "\n"

    def _uuid(self, file: str, found: str) -> str:
        if found not in self._uuids:
            self._new[file] += 1
            self._uuids[found] = str(uuid5(_NAMESPACE, f"{file} {self._new[file]}"))
        return self._uuids[found]


def _time(found: re.Match[str]) -> str:
    return f"{_MOMENT}{re.sub('[0-9]', '0', found[1] or '')}+00:00"
