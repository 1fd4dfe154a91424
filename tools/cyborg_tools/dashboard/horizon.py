# SPDX-License-Identifier: Apache-2.0
"""Prepare Horizon's environment with the panels of this checkout, and run its server.

The environment is ``.dashboard-venv``, which ``tools/dashboard`` makes. It has no package of the
service, so that the panels cannot import one.
"""

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cyborg.tests.fixtures.loopback import Started

ROOT: Final = Path(__file__).resolve().parents[3]
ENVIRONMENT: Final = ROOT / ".dashboard-venv"
#: The panels.
PACKAGE: Final = ROOT / "dashboard" / "cyborg_dashboard"
_HERE: Final = Path(__file__).parent
#: The directories of the panels whose files Horizon reads from its own.
_COPIED: Final = ("enabled", "local_settings.d")
#: The commands of Django that make the static files.
_COMMANDS: Final = (("collectstatic", "--noinput", "--clear"), ("compress", "--force"))


class NotPrepared(Exception):
    """The environment does not exist, or its static files cannot be made."""


def prepare(theme: str, environment: Path = ENVIRONMENT) -> None:
    """Copy settings and enabled files to Horizon, and make its static files if they changed.

    The static files are those of one theme, ``default`` or ``dark``. Raises NotPrepared.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise NotPrepared(f"{environment} does not exist: run tools/dashboard.")
    (local,) = environment.glob("lib/python3.*/site-packages/openstack_dashboard/local")
    shutil.copyfile(_HERE / "local_settings.py", local / "local_settings.py")
    shutil.copytree(_HERE / "dark", environment / "themes" / "dark", dirs_exist_ok=True)
    for name in _COPIED:
        # Django reads every file of these directories: one that was renamed must go.
        for old in (local / name).glob("*_accelerator*.py"):
            old.unlink()
        for file in (PACKAGE / name).glob("_*_accelerator*.py"):
            shutil.copyfile(file, local / name / file.name)
    stamp, digest = environment / f"static-{theme}.sha256", _digest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    for command in _COMMANDS:
        ran = subprocess.run(
            [str(python), "-m", "django", *command],
            env=_variables(environment / "state", "", theme),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise NotPrepared(f"django {command[0]} fails:\n{ran.stdout}{ran.stderr}")
    stamp.write_text(digest)


class Horizon(Started):
    """A server of Horizon for one Keystone; sessions and the log are in ``directory``.

    Start raises NotPrepared if the server does not come up.
    """

    def __init__(self, directory: Path, keystone: str, theme: str = "default") -> None:
        self._directory = directory
        self._keystone = keystone
        self._theme = theme
        self._child: subprocess.Popen[str] | None = None
        self.log = directory / "horizon.log"
        #: Its URL without a trailing slash; set by ``start``.
        self.url = ""

    def start(self) -> None:
        """Prepare the environment, and answer from now on."""
        prepare(self._theme)
        state = self._directory / "sessions"
        state.mkdir(mode=0o700, exist_ok=True)
        with self.log.open("a") as log:
            self._child = subprocess.Popen(
                [str(ENVIRONMENT / "bin" / "python"), str(_HERE / "serve.py"), "0"],
                env=_variables(state, self._keystone, self._theme),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._child.stdout is not None
        self.url = self._child.stdout.readline().strip()
        if not self.url:
            self.stop()
            raise NotPrepared(f"Horizon did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the server; stopping twice does no harm."""
        if self._child is not None:
            self._child.terminate()
            self._child.communicate()
            self._child = None


def _variables(state: Path, keystone: str, theme: str) -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "NO_PROXY", "no_proxy")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "openstack_dashboard.settings",
        "CYBORG_HORIZON_STATE": str(state),
        "CYBORG_HORIZON_KEYSTONE": keystone,
        "CYBORG_HORIZON_THEME": theme,
        "CYBORG_HORIZON_SECRET": secrets.token_hex(32),
        "PYTHONUNBUFFERED": "1",
    }


def _digest() -> str:
    """Return a digest of what the static files are made from."""
    digest = hashlib.sha256(f"{ENVIRONMENT} {sys.version_info[:2]}".encode())
    for file in sorted(_sources()):
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    yield ENVIRONMENT / "cyborg-environment.sha256"
    yield _HERE / "local_settings.py"
    yield from (_HERE / "dark").iterdir()
    yield from (PACKAGE / "enabled").glob("*.py")
    yield from (file for file in (PACKAGE / "static").rglob("*") if file.is_file())
