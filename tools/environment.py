# SPDX-License-Identifier: Apache-2.0
"""Create virtual environments for the commands in this directory; needs only Python itself.

Every Python 3 can parse this file and the commands, so that an old version can still report which
version is required.
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: The distribution with the commands, which the service depends on; no package index needs it.
CLIENT = ROOT / "client"
MINIMUM = (3, 11)
# Requirements of all commands for developers, which share one environment.
REQUIREMENTS = ("test-requirements.txt", "doc/requirements.txt")

# Words in pip's output if the package index cannot be reached, as opposed to a missing release.
_UNREACHABLE = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Could not fetch URL",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Max retries exceeded",
    "Network is unreachable",
    "ProxyError",
)

#: Minimum interval, in seconds, between progress lines.
_PROGRESS_INTERVAL = 5.0


#: The status if the package index did not answer: see cyborg_tools.program.
ENVIRONMENT = os.EX_TEMPFAIL


class Trouble(Exception):
    """An error that ends the command with a status; its text is one sentence for the user."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


def say(text, colour="36"):
    """Print one line of progress, coloured on a terminal (unless NO_COLOR is set)."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\033[{colour}m{text}\033[0m"
    print(text, flush=True)


def finish(main):
    """Run ``main`` as a command, on a Python that is new enough; does not return.

    On Trouble it prints one sentence to stderr and ends with its status.
    """
    try:
        _modern()
        status = main()
    except Trouble as trouble:
        print(f"{pathlib.Path(sys.argv[0]).name}: {trouble}", file=sys.stderr)
        status = trouble.status
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _modern():
    """Restart the command with the newest Python on the PATH if this one is too old."""
    if sys.version_info >= MINIMUM:
        return
    minimum = ".".join(str(part) for part in MINIMUM)
    for minor in range(30, MINIMUM[1] - 1, -1):
        python = shutil.which(f"python3.{minor}")
        if python and subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            os.execv(python, [python, *sys.argv])
    raise Trouble(
        f"Python {minimum} or newer is needed; this is {sys.version_info[0]}."
        f"{sys.version_info[1]} and no newer one is on the PATH."
    )


def ensure(venv, requirements=(), extras="", lowest=False, *, project="."):
    """Install this checkout (editable) and ``requirements`` in ``venv``; return its Python.

    The checkout has three distributions: the service and the client, which are installed together,
    and the dashboard. ``project`` is the directory of the dashboard, to install that instead, with
    the releases of its own constraints.txt.

    ``requirements`` are files below the root, ``extras`` names extras of the service. With
    ``lowest`` everything that requirements.txt of both and these files name has exactly the release
    of its lower bound; without, ``requirements`` come with the releases and hashes of
    constraints.txt. An environment that is up to date is not changed. Raises ``Trouble``. If the
    variable TOX_CONSTRAINTS_FILE names a file or URL, as in OpenStack's CI, that replaces
    constraints.txt.

    What the command starts may keep its bytecode, whatever the caller's PYTHONDONTWRITEBYTECODE
    says: the commands start many processes, and each would compile this checkout again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    venv = pathlib.Path(venv).resolve()
    inside = venv / "bin" / "python"
    stamp = venv / "cyborg-environment.sha256"
    digest = _digest(venv, requirements, extras, project)
    if inside.exists() and stamp.exists() and stamp.read_text() == digest:
        return str(inside)
    if not inside.exists():
        say(f"Creating a virtual environment in {_short(venv)}")
        _create(venv)
    say("Installing Cyborg and its requirements (a few minutes the first time)")
    root = ROOT / project
    target = f"{root}[{extras}]" if extras else str(root)
    install = [str(inside), "-m", "pip", "install", "--disable-pip-version-check"]
    client = ["-e", str(CLIENT)] if root == ROOT else []
    command = [*install, *client, "-e", target]
    for name in requirements:
        command += ["-r", str(ROOT / name)]
    if lowest:
        bounds = venv / "lowest.txt"
        files = ["requirements.txt", "client/requirements.txt", *requirements]
        bounds.write_text("".join(_lowest(files)))
        command += ["-c", str(bounds)]
    elif os.environ.get("TOX_CONSTRAINTS_FILE"):
        command += ["-c", os.environ["TOX_CONSTRAINTS_FILE"]]
    elif root != ROOT:
        command += ["-c", str(root / "constraints.txt")]
    elif requirements:
        # With hashes pip installs nothing without one, and a checkout has none. What is installed
        # then satisfies the second command.
        pins = ["--no-deps", "--require-hashes", "-r", str(ROOT / "constraints.txt")]
        _install([*install, *pins], venv / "install.log")
    if _has_old_script(venv):
        uninstall = [str(inside), "-m", "pip", "uninstall", "--yes", "openstack-cyborg"]
        _install(uninstall, venv / "install.log")
    _install(command, venv / "install.log")
    stamp.write_text(digest)
    return str(inside)


def prepared(python, distribution, name):
    """Return ``python`` if it has Cyborg and a distribution of one of its extras installed.

    ``name`` is what users install, with the extra. Raises ``Trouble``.
    """
    code = f"import cyborg, importlib.metadata as m; m.version({distribution!r})"
    reason = f"does not have {name} installed"
    try:
        if subprocess.run([python, "-P", "-c", code], capture_output=True).returncode == 0:
            return python
    except OSError as error:
        reason = f"cannot be run ({error.strerror})"
    raise Trouble(f"{python} {reason}.")


def chosen(doc, noun, names):
    """Parse a command line of names; return a Python with all requirements, and the names."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", default=str(ROOT / ".test-venv"), help="environment to use")
    parser.add_argument("names", nargs="*", metavar=noun, help=", ".join(names))
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"there is no {noun} {unknown[0]}; there are {', '.join(names)}")
    return ensure(options.venv, REQUIREMENTS), options.names


def run(module):
    """Become a module of ``tools`` in the environment of tools/test; does not return."""
    # Standard output is for the results alone.
    with contextlib.redirect_stdout(sys.stderr):
        python = ensure(ROOT / ".test-venv", REQUIREMENTS)
    os.chdir(str(ROOT))
    become(python, module)


def become(python, module, options=()):
    """Replace this process by ``python -m module`` with the words of this command line.

    ``options`` are options of Python itself. The module may be one of this checkout that is not
    installed: of the tests, or of ``tools``. It keeps the process id, so that a signal reaches the
    process that must stop what it started. Does not return.
    """
    places = [str(ROOT), str(CLIENT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
    sys.stdout.flush()
    os.execv(python, [python, *options, "-m", module, *sys.argv[1:]])


def _digest(venv, requirements, extras, project="."):
    """Return a digest of everything that an environment depends on."""
    digest = hashlib.sha256(repr((str(venv), str(ROOT), extras)).encode())
    names = ["requirements.txt", "constraints.txt", "setup.cfg", "setup.py", "pyproject.toml"]
    places = [ROOT, CLIENT] if project == "." else [ROOT / project]
    files = [place / name for place in places for name in names]
    for file in [*files, *(ROOT / name for name in requirements)]:
        # Not every distribution has all of these.
        if file.exists():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _lowest(names):
    """Yield a constraint for each requirement of the files: exactly its lower bound.

    The distributions of this checkout have none.
    """
    for name in names:
        for line in (ROOT / name).read_text().splitlines():
            bound = re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", line)
            if bound and not bound[1].startswith("openstack-cyborg"):
                yield "{}=={}\n".format(*bound.groups())


def _has_old_script(venv):
    """Return whether the installed service has the program ``cyborg``, which is the client's now.

    pip would remove it with the old service, after it has installed the client.
    """
    records = venv.glob("lib/python*/site-packages/openstack_cyborg-*.dist-info/RECORD")
    return any("/bin/cyborg," in record.read_text() for record in records)


def _create(venv):
    result = subprocess.run(
        [sys.executable, "-m", "venv", str(venv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        shutil.rmtree(str(venv), ignore_errors=True)
        lines = result.stdout.strip().splitlines() or ["it gave no reason"]
        reason = lines[-1].rstrip(".")
        if "ensurepip" in result.stdout:
            reason = "install the package python3-venv of your distribution"
        raise Trouble(f"{sys.executable} cannot create a virtual environment: {reason}.")


def _install(command, log):
    """Run pip and show its progress; raise Trouble with the reason if it fails."""
    if (ROOT / ".git").exists() and not shutil.which("git"):
        raise Trouble(
            "git is missing, but it is needed to read the version of this checkout; install the "
            "package git of your distribution."
        )
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        packages = 0
        printed = time.monotonic()
        for line in pip.stdout:
            lines.append(line)
            packages += line.startswith(("Collecting ", "Requirement already satisfied: "))
            if time.monotonic() - printed > _PROGRESS_INTERVAL:
                printed = time.monotonic()
                say(f"  {packages} packages so far")
    output = "".join(lines)
    log.write_text(output)
    if pip.returncode == 0:
        return
    if any(word in output for word in _UNREACHABLE):
        raise Trouble(
            "the package index cannot be reached, so nothing was installed; check the network "
            f"and pip's configuration (details in {_short(log)}).",
            ENVIRONMENT,
        )
    errors = [line for line in output.splitlines() if "ERROR" in line or "error:" in line]
    reason = errors[0].replace("ERROR:", "").strip() if errors else "pip gave no reason"
    raise Trouble(f"the installation failed: {reason.rstrip('.')} (details in {_short(log)}).")


def _short(path):
    """Return ``path`` relative to the current directory if it is inside, else unchanged."""
    relative = os.path.relpath(str(path))
    return str(path) if relative.startswith("..") else relative
