# SPDX-License-Identifier: Apache-2.0
"""The texts of the panels that people see, as a catalogue for translators.

Django's own command reads them, because it knows the marks of its templates. It needs the programs
of GNU gettext.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from cyborg_tools.dashboard.horizon import ENVIRONMENT, PACKAGE, NotPrepared

#: Where the catalogue is expected: beside the directories of the languages.
FILE: Final = PACKAGE / "locale" / "django.pot"
_COMMAND: Final = ("makemessages", "--all", "--keep-pot", "--no-wrap", "--verbosity=0")


def extracted(package: Path = PACKAGE, environment: Path = ENVIRONMENT) -> str:
    """Return the catalogue of all marked texts of a package; raises NotPrepared."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise NotPrepared(f"{environment} does not exist: run tools/dashboard.")
    with tempfile.TemporaryDirectory() as directory:
        # The command writes below the directory that it reads.
        copy = Path(directory, package.name)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
        (copy / "locale").mkdir()
        ran = subprocess.run(
            [str(python), "-m", "django", *_COMMAND],
            cwd=copy,
            env={"PATH": os.environ["PATH"], "HOME": directory, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise NotPrepared(f"django makemessages fails:\n{ran.stdout}{ran.stderr}")
        return (copy / "locale" / FILE.name).read_text()


def main() -> int:
    """Write the catalogue; return the exit status."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(extracted())
    print(FILE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
