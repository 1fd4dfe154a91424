# SPDX-License-Identifier: Apache-2.0
"""Prometheus, as far as it looks at a page and understands it."""

import socket
from collections.abc import Callable
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Page:
    """A page of metrics; each question reads it anew."""

    def __init__(self, read: Callable[[], str]) -> None:
        self.read = read

    @classmethod
    def at(cls, url: str) -> "Page":
        """The one at a URL."""

        def read() -> str:
            answer = requests.get(url, timeout=60)
            answer.raise_for_status()
            return answer.text

        return cls(read)

    @property
    def names(self) -> set[str]:
        """The names of all metrics, as the catalogue has them."""
        names = set()
        for family in text_string_to_metric_families(self.read()):
            suffix = "_total" if family.type == "counter" else ""
            if not family.name.endswith("_created"):
                names.add(family.name + suffix)
        return names

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """All values with these labels."""
        return [
            sample
            for family in text_string_to_metric_families(self.read())
            for sample in family.samples
            if sample.name == name and sample.labels | labels == sample.labels
        ]

    def value(self, name: str, **labels: str) -> Any:
        """The one value with these labels; None when there is none."""
        found = self.samples(name, **labels)
        return found[0].value if len(found) == 1 else None
