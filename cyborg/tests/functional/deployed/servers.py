# SPDX-License-Identifier: Apache-2.0
"""uWSGI and the distribution's Apache on configurations of a test, without rights of root.

A user ``cyborg`` is made up for them by nss_wrapper; its home is the test's directory, where a
``cyborg.conf`` is found without a command line as it is in ``/etc/cyborg``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import cyborg
from cyborg.tests.fixtures import programs
from cyborg.tests.fixtures.processes import Deployment, Program

APACHE: Final = Path("/usr/sbin/apache2")
MODULES: Final = Path("/etc/apache2/mods-available")
#: The Python that mod_wsgi was built for.
PYTHON: Final = "/usr/bin/python3"
#: Who runs a web server where the tests run as root: it refuses to serve as that.
NOBODY: Final = 65534
_SYSTEM: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
PACKAGE: Final = Path(cyborg.__file__).resolve().parent
#: What every Apache needs; the rest is loaded as the page says.
_ALWAYS: Final = ("mpm_event", "authz_core")
_FRAME: Final = """\
ServerRoot {directory}
DefaultRuntimeDir {directory}
PidFile {directory}/apache2.pid
Mutex file:{directory}
ServerName 127.0.0.1
ErrorLog /dev/stderr
{modules}
<IfModule wsgi_module>
    WSGISocketPrefix {directory}/wsgi
</IfModule>
<IfModule mime_module>
    TypesConfig /dev/null
</IfModule>
{listen}
{text}
"""


def needed() -> None:
    """Raise RuntimeError, with what to install, where something is missing."""
    programs.require(programs.APACHE)
    theirs = subprocess.run(
        [PYTHON, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    ours = ".".join(str(part) for part in sys.version_info[:2])
    if theirs != ours:
        raise RuntimeError(
            f"mod_wsgi of this distribution runs Python {theirs} and cannot use an environment of "
            f"Python {ours}: make it with {PYTHON}"
        )


def environment_for_apache(directory: Path) -> Path:
    """A virtual environment of the distribution's Python, with the packages of ours.

    Returns where its packages are, as mod_wsgi finds them.
    """
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(directory)], check=True)
    (packages,) = (directory / "lib").glob("python3.*/site-packages")
    (packages / "cyborg").symlink_to(PACKAGE)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in borrowed]
    (packages / "borrowed.pth").write_text("\n".join(lines) + "\n")
    return packages


def modules(commands: str) -> Iterator[str]:
    """The lines that load the modules of ``a2enmod`` commands, and those that they need."""
    wanted = [*_ALWAYS, *" ".join(re.findall(r"a2enmod (.*)", commands)).split()]
    seen: set[str] = set()
    while wanted:
        name = wanted[0]
        text = (MODULES / f"{name}.load").read_text()
        missing = set(" ".join(re.findall(r"# Depends: (.*)", text)).split()) - seen
        if missing:
            wanted[:0] = sorted(missing)
            continue
        wanted.pop(0)
        if name not in seen:
            seen.add(name)
            yield f"Include {MODULES}/{name}.load"


@contextmanager
def apache(
    deployment: Deployment, text: str, *, commands: str, listen: int = 0
) -> Iterator[Program]:
    """Apache with this configuration, until the end of the block.

    ``listen`` is for a text that goes into a server which listens already.
    """
    needed()
    directory = deployment.directory
    file = directory / "apache2.conf"
    frame = _FRAME.format(
        directory=directory,
        modules="\n".join(modules(commands)),
        listen=f"Listen 127.0.0.1:{listen}" if listen else "",
        text=text,
    )
    file.write_text(frame)
    # What an earlier server of this deployment said is not this one's.
    log = directory / "apache2.out"
    log.unlink(missing_ok=True)
    program = Program(
        [*unprivileged(), str(APACHE), "-f", str(file), "-DFOREGROUND"],
        log=log,
        # As init starts it: an interpreter that PATH names would win over the environment's.
        environment={**_SYSTEM, **user_cyborg(directory)},
    )
    try:
        program.wait_for("resuming normal operations")
        yield program
    finally:
        program.stop()


def found_by_name(name: str) -> list[int]:
    """What ``pgrep`` finds by command line as probes do: what runs, sleeps or waits."""
    command = ["pgrep", "--full", "--runstates", "DRST", name]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def unprivileged() -> Sequence[str]:
    """The words before a command that take the identity of root away, if it is ours.

    The right to read files stays: those of the tests are root's.
    """
    if os.geteuid() != 0:
        return []
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    rights = "caps=-all,+dac_override"
    return ["setpriv", *identity, f"--inh-{rights}", f"--ambient-{rights}"]  # codespell:ignore inh


def user_cyborg(home: Path) -> dict[str, str]:
    """The environment in which there is a user and a group ``cyborg``: whoever runs the server."""
    user, group = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    users, groups = home / "passwd", home / "group"
    users.write_text(f"cyborg:x:{user}:{group}::{home}:/bin/false\n")
    groups.write_text(f"cyborg:x:{group}:\n")
    return {
        "LD_PRELOAD": "libnss_wrapper.so",
        "NSS_WRAPPER_PASSWD": str(users),
        "NSS_WRAPPER_GROUP": str(groups),
    }
