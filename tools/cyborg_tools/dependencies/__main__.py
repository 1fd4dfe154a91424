# SPDX-License-Identifier: Apache-2.0
"""Pin, list and audit the distributions that an installation of the service has.

constraints: write constraints.txt with the versions of this environment, and the hashes that the
package index has of their files. sbom: write a software
bill of materials (CycloneDX, JSON) of an installation. audit: ask OSV (https://osv.dev) for
advisories about the versions in constraints.txt; the exit status is 1 if there is one, and 77 if
OSV cannot be asked.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI

from cyborg_tools.dependencies import CONSTRAINTS, closure, missing

_HEADER = """\
# The releases with which .ci/run tests: what requirements.txt of service and client and the extras
# mysql, postgresql, nvidia and otel install, and what these need; with the hashes of the source and
# of the wheels for Linux and Python 3.11 or newer. Written by "tools/dependencies constraints".
"""
_NOT_CHECKED = 77
#: The answer of a package index as JSON (PEP 691).
_AS_JSON: Final = {"Accept": "application/vnd.pypi.simple.v1+json"}
_PLATFORMS: Final = ("any", "manylinux", "musllinux")
_PYTHONS: Final = frozenset({"py3", "cp311", "cp312", "cp313", "cp314"})


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/dependencies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("constraints", help="write constraints.txt")
    sbom = commands.add_parser("sbom", help="write a bill of materials")
    sbom.add_argument("output", type=Path, help="file to write")
    sbom.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter of the installation (default: this environment, with what tests need)",
    )
    commands.add_parser("audit", help="look for advisories")
    options = parser.parse_args()
    if options.command == "constraints":
        CONSTRAINTS.write_text(_HEADER + "".join(starmap(pin, closure().items())))
        return 0
    return audit() if options.command == "audit" else write_sbom(options.python, options.output)


def pin(name: str, version: str) -> str:
    """Return the line of constraints.txt, continued in one for each hash.

    Raises OSError if the package index cannot be asked, and LookupError if it has no file.
    """
    # pip has no command that prints the hashes of all files.
    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url)
    answer = requests.get(f"{index.rstrip('/')}/{name}/", headers=_AS_JSON, timeout=60)
    answer.raise_for_status()
    files = answer.json()["files"]
    hashes = sorted(
        file["hashes"]["sha256"] for file in files if is_installed_here(file["filename"], version)
    )
    if not hashes:
        raise LookupError(f"{index} has no file of {name} {version}")
    return (
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in hashes)]) + "\n"
    )


def is_installed_here(filename: str, version: str) -> bool:
    """Return whether a file of the package index is of this version, and of use to us.

    These are the source, and the wheels for Linux and the versions of Python that we support.
    """
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename)[1] == Version(version)
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return False
    return found == Version(version) and any(
        tag.platform.startswith(_PLATFORMS)
        and (tag.interpreter in _PYTHONS or (tag.abi == "abi3" and tag.interpreter[:2] == "cp"))
        for tag in tags
    )


def write_sbom(python: str, output: Path) -> int:
    """Write the bill of materials; return 1 if it does not list all that the service needs."""
    command = ["cyclonedx_py", "environment", "--of", "JSON", "-o", str(output), python]
    subprocess.run([sys.executable, "-m", *command], check=True)
    document = json.loads(output.read_text())
    absent = missing(document)
    if absent:
        print(f"{output} does not list {', '.join(absent)}.", file=sys.stderr)
        return 1
    print(f"{output} lists {len(document['components'])} distributions.")
    return 0


def audit() -> int:
    """Print the advisories about the versions in constraints.txt; return the exit status."""
    # Not the package index: a mirror may answer without advisories, which would look like none.
    command = ["pip_audit", "--vulnerability-service", "osv", "--timeout", "15", "--format", "json"]
    command += ["--progress-spinner", "off", "--no-deps", "--disable-pip", "-r", str(CONSTRAINTS)]
    ran = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    try:
        answers: list[dict[str, Any]] = json.loads(ran.stdout)["dependencies"]
    except ValueError:
        reason = (ran.stderr.strip().splitlines() or ["pip-audit gave no reason"])[-1]
        print(f"Advisories: not checked. {reason}")
        return _NOT_CHECKED
    unknown = [answer["name"] for answer in answers if "skip_reason" in answer]
    if unknown or not answers:
        print(f"Advisories: not checked for {', '.join(unknown) or 'any distribution'}.")
        return _NOT_CHECKED
    found = [(answer, advisory) for answer in answers for advisory in answer["vulns"]]
    for answer, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "no release"
        print(f"{answer['name']} {answer['version']}: {advisory['id']}, fixed by {fixed}")
    print(f"Advisories: {len(found)} about {len(answers)} distributions.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
