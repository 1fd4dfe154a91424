# SPDX-License-Identifier: Apache-2.0
"""``tools/dependencies``: the distributions that an installation of the service has."""

import configparser
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[3]
#: The releases with which .ci/run tests; tools/environment.py installs these.
CONSTRAINTS: Final = ROOT / "constraints.txt"
#: The distributions of this repository, which have no hash on a package index.
OWN: Final = frozenset({"openstack-cyborg", "openstack-cyborg-cli"})
#: The extras of setup.cfg that run in production.
EXTRAS: Final = ("mysql", "postgresql", "nvidia", "otel")


def required() -> list[Requirement]:
    """Return what the service, the extras for production and the client ask for from an index."""
    files = ("requirements.txt", "client/requirements.txt")
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines += [line for extra in EXTRAS for line in setup["extras"][extra].splitlines()]
    words = (line.partition("#")[0].strip() for line in lines)
    requirements = [Requirement(word) for word in words if word]
    return [wanted for wanted in requirements if canonicalize_name(wanted.name) not in OWN]


def closure() -> dict[str, str]:
    """Return name and installed version of what ``required`` needs, directly or indirectly.

    Raises importlib.metadata.PackageNotFoundError if one of them is not installed.
    """
    versions: dict[str, str] = {}
    pending = required()
    visited: set[tuple[str, frozenset[str]]] = set()
    while pending:
        wanted = pending.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        versions[name] = distribution.version
        for line in distribution.requires or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                pending.append(needed)
    return dict(sorted(versions.items()))


def missing(sbom: Mapping[str, list[Mapping[str, str]]]) -> list[str]:
    """Return the names of ``closure`` that a CycloneDX document does not list."""
    listed = {canonicalize_name(component["name"]) for component in sbom.get("components", [])}
    return [name for name in closure() if name not in listed]
