# SPDX-License-Identifier: Apache-2.0
"""Copy the checkout for a guest, which must not see what other programs write meanwhile."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: The file that each virtual environment has.
_ENVIRONMENT: Final = "pyvenv.cfg"


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of a checkout with the bytecode of the service; every user can read it.

    It has the files that git tracks or would add. Without git it has all but hidden directories
    and virtual environments.
    """
    with tempfile.TemporaryDirectory(prefix="cyborg-kernel-") as work:
        # A guest runs parts of tests as the user nobody.
        Path(work).chmod(0o755)
        tree = Path(work, "checkout")
        for name in _listed(root):
            source, target = root / name, tree / name
            # A file that was removed is still listed, and so is the directory of another checkout.
            if source.is_file() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        # What a guest compiles is lost with it.
        compiler = [sys.executable, "-m", "compileall", "-q", "cyborg", "client/cyborg_cli"]
        subprocess.run(compiler, cwd=tree, check=True)
        yield tree


def _listed(root: Path) -> list[str]:
    """Return the files of a checkout relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return _found(root)
    return [name for name in ran.stdout.split("\0") if name]


def _found(root: Path) -> list[str]:
    files: list[str] = []
    for path in root.iterdir():
        if not path.is_dir() or path.is_symlink():
            files.append(path.name)
        elif not (path.name.startswith(".") or (path / _ENVIRONMENT).exists()):
            files += [f"{path.name}/{name}" for name in _found(path)]
    return files
