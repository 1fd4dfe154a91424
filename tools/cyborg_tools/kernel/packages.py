# SPDX-License-Identifier: Apache-2.0
"""Debian packages: install some, and unpack others without installing them."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from cyborg import exception
from cyborg_tools.program import BrokenEnvironment

#: What the guest or its preparation runs, by package of Debian.
REQUIRED: Final = (
    "qemu-system-x86",
    "busybox-static",
    "cpio",
    "kmod",
    "pciutils",
    "mdevctl",
    "nvme-cli",
    "gcc",
    "make",
    "libelf1",
    "dmsetup",
    "iproute2",
)
#: What apt-get says when an index or an archive of packages does not answer.
_NO_ANSWER: Final = re.compile("Failed to fetch|Unable to fetch|failed to download")
#: Seconds.
_LOCK_TIMEOUT: Final = 300
_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Lines of the output of a command that fails which its error shows.
_LAST_LINES: Final = 8


class NotPossibleHere(Exception):
    """This machine lacks something that only an administrator can add; the text says what."""


class Run(Protocol):
    """Run a command and return its standard output."""

    def __call__(self, *argv: str) -> str: ...


def execute(*argv: str) -> str:
    """Run a command in the C locale and return its standard output.

    Raises exception.ConfigError with the end of the output when the command fails.
    """
    # Run level 1: Debian starts no service that it installs.
    settings = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    environment = {**os.environ, **settings}
    result = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines()[-_LAST_LINES:]
        raise exception.ConfigError(reason="\n  ".join((f"{argv[0]} fails:", *lines)))
    return result.stdout


def os_release() -> Mapping[str, str]:
    """Return the fields of os-release(5), none where this file does not exist."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


class Packages:
    """The package manager of this machine; ``directory`` keeps the lists for unpacking.

    ``release`` has the fields of os-release(5), ``root`` says that this process may install.
    """

    def __init__(
        self, directory: Path, run: Run, *, root: bool, release: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory
        self._run = run
        self._root = root
        self._release = os_release() if release is None else release
        self._current = False

    @property
    def backports(self) -> str:
        """Return the name of the suite with newer packages for this release."""
        return f"{self._release.get('VERSION_CODENAME', '')}-backports"

    def install(self, names: Sequence[str]) -> list[str]:
        """Install the packages that are missing, and return their names.

        Raises NotPossibleHere where that takes another user or another distribution, and
        BrokenEnvironment when the index does not answer.
        """
        if self._release.get("ID") != "debian" or platform.machine() != "x86_64":
            raise NotPossibleHere("the guests need a Debian 12 or newer on x86-64.")
        missing = [name for name in names if name not in self._installed()]
        if missing and not self._root:
            raise NotPossibleHere(
                f"packages are missing; run as root: apt-get install {' '.join(missing)}"
            )
        if missing:
            # Another program may be installing something.
            patient = ("-o", f"DPkg::Lock::Timeout={_LOCK_TIMEOUT}")
            self._ask("apt-get", "update")
            self._ask("apt-get", *patient, "install", "-y", "--no-install-recommends", *missing)
        return missing

    def names(self, pattern: str) -> list[str]:
        """Return the names of all available packages that match a regular expression."""
        self._update()
        lines = self._run("apt-cache", *self._options(), "search", "--names-only", pattern)
        return [line.partition(" ")[0] for line in lines.splitlines()]

    def version(self, name: str) -> str:
        """Return the version of a package that ``fetch`` gets by default."""
        self._update()
        shown = self._run("apt-cache", *self._options(), "show", "--no-all-versions", name)
        [version] = re.findall(r"(?m)^Version: (.*)$", shown)
        return str(version)

    def fetch(self, directory: Path, *names: str) -> list[Path]:
        """Download packages into an existing directory.

        Each is a ``name``, ``name=version`` or ``name/suite``. Raises BrokenEnvironment when the
        archive does not answer.
        """
        self._update()
        before = set(directory.iterdir())
        command = 'cd "$0" && exec apt-get "$@"'
        self._ask("sh", "-c", command, str(directory), *self._options(), "download", *names)
        return sorted(set(directory.iterdir()) - before)

    def unpack(self, target: Path, *names: str) -> None:
        """Download packages and unpack them into a directory; nothing is installed."""
        target.mkdir(parents=True, exist_ok=True)
        for archive in self.fetch(target, *names):
            self._run("dpkg-deb", "-x", str(archive), str(target))
            archive.unlink()

    def _ask(self, *argv: str) -> None:
        """Run a command of apt that may need the index or the archive."""
        try:
            self._run(*argv)
        except exception.ConfigError as error:
            if _NO_ANSWER.search(str(error)):
                raise BrokenEnvironment(reason=str(error)) from error
            raise

    def _installed(self) -> set[str]:
        """Return the names of installed packages, and of what they provide."""
        shown = self._run(
            "dpkg-query", "-W", "-f", "${db:Status-Status}: ${Package}, ${Provides}\n"
        )
        lines = (line.partition(": ") for line in shown.splitlines())
        parts = [rest.split(",") for status, _, rest in lines if status == "installed"]
        return {part.split()[0] for line in parts for part in line if part.strip()}

    def _options(self) -> list[str]:
        """Let apt use lists of its own: the configuration of the machine stays as it is."""
        return [
            *("-o", f"Dir::State::lists={self._directory}/lists"),
            *("-o", f"Dir::Cache={self._directory}/cache"),
            *("-o", f"Dir::Etc::sourcelist={self._directory}/sources.list"),
            *("-o", "Dir::Etc::sourceparts=-"),
            # Root may be the only user who can write to the directory.
            *("-o", "APT::Sandbox::User=root"),
        ]

    def _update(self) -> None:
        """Read the lists once: the security updates of this release, and its backports."""
        if self._current:
            return
        for name in ("lists/partial", "cache/archives/partial"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        (self._directory / "sources.list").write_text("".join(self._sources()))
        # Without this option old lists, or none, are no error.
        strict = ("-o", "APT::Update::Error-Mode=any")
        self._ask("apt-get", *self._options(), *strict, "update")
        self._current = True

    def _sources(self) -> list[str]:
        """Return the lines of sources.list(5), with the mirrors that this machine uses."""
        codename = self._release.get("VERSION_CODENAME", "")
        shown = self._run(
            *("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"),
            "Created-By: Packages",
        )
        mirrors: dict[str, str] = {}
        for line in shown.splitlines():
            match line.split():
                case [uri, suite, "main"]:
                    mirrors.setdefault(suite, uri)
        # Others than Debian have suites with the name of the release, but none with updates.
        archive = mirrors.get(f"{codename}-updates") or mirrors.get(codename)
        if not archive:
            raise NotPossibleHere(f"apt has no source of packages for {codename!r}.")
        # The security updates have all kernels of a release, and are the smaller list.
        security = f"{codename}-security"
        kernels = (security, mirrors[security]) if security in mirrors else (codename, archive)
        suites = ((self.backports, archive), kernels)
        signed = f"[signed-by={_KEYS}] " if _KEYS.exists() else ""
        return [f"deb {signed}{uri} {suite} main\n" for suite, uri in suites]
