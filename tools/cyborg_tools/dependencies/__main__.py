# SPDX-License-Identifier: Apache-2.0
"""Pin, list and audit the distributions that an installation of the service has.

constraints: write constraints.txt with the versions of this environment. sbom: write a software
bill of materials (CycloneDX, JSON) of an installation. audit: ask OSV (https://osv.dev) for
advisories about the versions in constraints.txt; the exit status is 1 if there is one, and 77 if
OSV cannot be asked.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyborg_tools.dependencies import CONSTRAINTS, closure, missing

_HEADER = """\
# The releases with which .ci/run tests: what requirements.txt and the extras mysql, postgresql,
# nvidia and otel install, and what these need. Written by "tools/dependencies constraints".
"""
_NOT_CHECKED = 77


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
        CONSTRAINTS.write_text(_HEADER + "".join(f"{n}=={v}\n" for n, v in closure().items()))
        return 0
    return audit() if options.command == "audit" else write_sbom(options.python, options.output)


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
