# SPDX-License-Identifier: Apache-2.0
"""Virtual environments for the commands in this directory; needs nothing but Python itself.

The syntax here and in the commands stays readable for every Python 3, so that an old one can
still say which one is needed.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
# What the commands for developers need; one list, so that one environment serves all of them.
REQUIREMENTS = ("test-requirements.txt", "doc/requirements.txt")

# Words of pip for "I reached no index", as against "the index has no such release".
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


#: Where no terminal shows progress, a line at most so often, in seconds.
_SILENCE = 15.0


class Trouble(Exception):
    """What stops the command, as one sentence for the person in front of it."""


def say(text, colour="36"):
    """Print one line of progress, coloured on a terminal (unless NO_COLOR is set)."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\033[{colour}m{text}\033[0m"
    print(text, flush=True)


def finish(main):
    """Run ``main`` as a command, on a Python that is new enough; does not return.

    Trouble becomes one sentence on stderr and status 1.
    """
    try:
        _modern()
        status = main()
    except Trouble as trouble:
        print(f"{pathlib.Path(sys.argv[0]).name}: {trouble}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _modern():
    """Start over with the newest Python on the PATH if this one is too old."""
    if sys.version_info >= MINIMUM:
        return
    needed = ".".join(str(part) for part in MINIMUM)
    for minor in range(30, MINIMUM[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            os.execv(found, [found, *sys.argv])
    raise Trouble(
        f"Python {needed} or newer is needed; this is {sys.version_info[0]}."
        f"{sys.version_info[1]} and no newer one is on the PATH."
    )


def ensure(venv, requirements=(), extras=""):
    """Make ``venv`` hold this checkout (editable) and ``requirements``; return its Python.

    ``requirements`` are files below the root, ``extras`` names extras of the distribution. An
    environment that is up to date is left alone, which takes no time. Raises ``Trouble``.
    """
    venv = pathlib.Path(venv).resolve()
    inside = venv / "bin" / "python"
    stamp = venv / "cyborg-environment.sha256"
    wanted = _digest(venv, requirements, extras)
    if inside.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(inside)
    if not inside.exists():
        say(f"Making a virtual environment in {_short(venv)}")
        _make(venv)
    say("Installing Cyborg and what it needs (a few minutes the first time)")
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    command = [str(inside), "-m", "pip", "install", "--disable-pip-version-check", "-e", target]
    for name in requirements:
        command += ["-r", str(ROOT / name)]
    _install(command, venv / "install.log")
    stamp.write_text(wanted)
    return str(inside)


def become(python, module, options=()):
    """Replace this process by ``python -m module`` with the words of this command line.

    ``options`` are options of Python itself. The module may be one of this checkout that is not
    installed: of the tests, or of ``tools``. It keeps the process id, so that a signal reaches the
    process that must stop what it started. Does not return.
    """
    places = [str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
    sys.stdout.flush()
    os.execv(python, [python, *options, "-m", module, *sys.argv[1:]])


def _digest(venv, requirements, extras):
    """Return what an environment depends on, in short."""
    found = hashlib.sha256(repr((str(venv), str(ROOT), extras)).encode())
    for name in ["requirements.txt", "setup.cfg", "setup.py", "pyproject.toml", *requirements]:
        found.update((ROOT / name).read_bytes())
    return found.hexdigest()


def _make(venv):
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(venv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        shutil.rmtree(str(venv), ignore_errors=True)
        lines = made.stdout.strip().splitlines() or ["it gave no reason"]
        reason = lines[-1].rstrip(".")
        if "ensurepip" in made.stdout:
            reason = "install the package python3-venv of your distribution"
        raise Trouble(f"{sys.executable} cannot make a virtual environment: {reason}.")


def _install(command, log):
    """Run pip and show its progress; on failure tell which of the usual reasons it was."""
    if (ROOT / ".git").exists() and not shutil.which("git"):
        raise Trouble(
            "git is missing, and the version of this checkout is read with it; install the "
            "package git of your distribution."
        )
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        packages = 0
        said = time.monotonic()
        for line in pip.stdout:
            lines.append(line)
            packages += line.startswith(("Collecting ", "Requirement already satisfied: "))
            if sys.stdout.isatty():
                # One line that is written over; what pip says may be wider than the terminal.
                width = shutil.get_terminal_size().columns - 1
                text = f"  {packages} packages; {line.strip()}"[:width]
                print(f"\r{text:<{width}}", end="", flush=True)
            elif time.monotonic() - said > _SILENCE:
                said = time.monotonic()
                say(f"  {packages} packages so far")
    if sys.stdout.isatty():
        print("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r", end="", flush=True)
    output = "".join(lines)
    log.write_text(output)
    if pip.returncode == 0:
        return
    if any(word in output for word in _UNREACHABLE):
        raise Trouble(
            "the package index cannot be reached, so nothing was installed; look at the network "
            f"and at pip's configuration (details in {_short(log)})."
        )
    errors = [line for line in output.splitlines() if "ERROR" in line or "error:" in line]
    reason = errors[0].replace("ERROR:", "").strip() if errors else "pip gave no reason"
    raise Trouble(f"installing failed: {reason.rstrip('.')} (details in {_short(log)}).")


def _short(path):
    """Return ``path`` as seen from here, where that is shorter."""
    relative = os.path.relpath(str(path))
    return str(path) if relative.startswith("..") else relative
