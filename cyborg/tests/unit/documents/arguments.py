# SPDX-License-Identifier: Apache-2.0
"""Has each program's own parser read the arguments that a document gives it; nothing is run.

Commands of the ``openstack`` client are looked up among those that are installed with the test
suite. Each function raises ValueError with what the program would say.
"""

import contextlib
import importlib
import io
import logging
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from cliff.commandmanager import CommandManager
from oslo_config import cfg
from oslo_log import log

from cyborg import exception
from cyborg.api.controllers import v2
from cyborg.api.expose import Controller
from cyborg.cli import plugin, shell
from cyborg.cmd import audit, dbsync, status
from cyborg.conf import opts
from cyborg.tests.unit.documents import data
from cyborg.tests.unit.documents.shell import FOREIGN, ROOT, commands

T = TypeVar("T")

#: A configuration whose database nobody can open: commands end once they have read their arguments.
NOWHERE = Path(__file__).parent / "nowhere.conf"
#: What stands for a variable of the reader's.
VALUE = "7c1f1d2e-5b0a-4c3e-9a44-2f4f0e6b9d10"
#: Plug-ins of the client that the suite does without, by the first words of their commands.
ELSEWHERE = {("resource", "provider"), ("allocation", "candidate"), ("trait", "list")}
_GROUPS = ("common", "identity.v3", "compute.v2", "image.v2", "network.v2", "accelerator.v2")
_ONCE = {"cyborg-dbsync": dbsync.main, "cyborg-audit": audit.main, "cyborg-status": status.main}


def check(text: str, *, console: bool = False) -> None:
    """Every command of the block is one that its program takes."""
    found = commands(text, console=console)
    if not found:
        raise ValueError("there is no command in it")
    for words in found:
        program = re.sub(r"^(\.\./my-driver/)?\.(test-)?venv/bin/", "", words[0])
        _command([re.sub(r"\$(\{\w+\}|\w+)", VALUE, word) for word in words], program)


def _command(words: Sequence[str], program: str) -> None:
    rest = words[1:]
    name = program.removeprefix("./")
    if program == "cyborg":
        _cyborg(rest)
    elif program == "openstack":
        _openstack(rest)
    elif program in _ONCE:
        _refused(lambda: _ONCE[program](["--config-file", str(NOWHERE), *rest]))
    elif program.startswith("cyborg-"):
        _refused(lambda: _daemon(program, rest))
    elif (ROOT / name).is_file() and "/" in name:
        _tool(name, rest)
    elif program == "curl":
        _curl(words)
    elif program not in FOREIGN and not program.startswith(("/", "$")):
        raise ValueError(f"there is no program {program}")
    for word in rest:
        if word.startswith(("{", "[{")):
            data.as_json(word)


def _cyborg(words: Sequence[str]) -> None:
    _parse(_program(()).command_manager, words)
    _groups(words)


def _openstack(words: Sequence[str]) -> None:
    if tuple(words[:2]) not in ELSEWHERE:
        _parse(_others(), words)
    _groups(words)


def _parse(manager: CommandManager, words: Sequence[str]) -> None:
    """As cliff does it: the program's options, the command by its name, and what is left."""
    if "--os-cloud" in words:  # one of the reader's
        at = words.index("--os-cloud")
        words = [*words[:at], *words[at + 2 :]]
    program = _program(_accounts(words))
    read = _refused(lambda: program.parser.parse_known_args(list(words)))
    rest = read[1] if read else []
    kind, name, arguments = manager.find_command(rest)
    # Two packages have the same commands with other arguments; which of them a reader has is open.
    others = entry_points(group="openstack.accelerator.v2", name=name.replace(" ", "_"))
    faults = []
    for one in (kind, *(other.load() for other in others)):
        parser = one(program, None, cmd_name=name).get_parser(name)
        try:
            _refused(partial(parser.parse_args, arguments))
        except ValueError as fault:
            faults.append(fault)
        else:
            return
    raise faults[0]


def _groups(words: Sequence[str]) -> None:
    """Groups of a device profile that are given one by one are valid together."""
    given = [word for option, word in pairwise(words) if option == "--group"]
    if given:
        data.profile_groups([dict(pair.split("=") for pair in one.split(",")) for one in given])


def _accounts(words: Sequence[str]) -> tuple[str, ...]:
    """The words, if some of them decide which options of accounts there are."""
    return tuple(words) if any(word.startswith("--os-") for word in words) else ()


@cache
def _program(words: tuple[str, ...]) -> shell.Shell:
    return shell.Shell(words, pause=float, stdout=None, stderr=None)


@cache
def _others() -> CommandManager:
    # Two packages bring the same commands, and cliff says so for each.
    logging.getLogger("cliff.commandmanager").setLevel(logging.ERROR)
    manager = CommandManager("openstack.cli")
    for group in (*_GROUPS, f"{plugin.API_NAME}.v{plugin.DEFAULT_API_VERSION}"):
        manager.load_commands(f"openstack.{group}")
    return manager


def _daemon(program: str, words: Sequence[str]) -> None:
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    log.register_options(conf)
    # Files that the reader has and we do not are no mistake of the document's.
    with contextlib.suppress(cfg.ConfigFilesNotFoundError, cfg.ConfigDirNotFoundError):
        conf(list(words), project="cyborg", prog=program, default_config_files=[])


def _tool(name: str, words: Sequence[str]) -> None:
    """A command of the repository: every option before ``--`` is named by it or its package."""
    own = words[: words.index("--")] if "--" in words else words
    package = ROOT / "tools" / "cyborg_tools" / Path(name).name
    files = [ROOT / name, *package.glob("*.py")]
    text = "".join(file.read_text() for file in files)
    for word in own:
        option = word.partition("=")[0]
        if option.startswith("-") and f'"{option}"' not in text:
            raise ValueError(f"{name} has no option {option}")


def _curl(words: Sequence[str]) -> None:
    """What is sent is JSON, and the path is one of the API's for this method."""
    sent = [words[at + 1] for at, word in enumerate(words) if word in {"-d", "--data", "--json"}]
    methods = [words[at + 1] for at, word in enumerate(words) if word in {"-X", "--request"}]
    for word in sent:
        data.as_json(word)
    method = methods[0] if methods else "POST" if sent else "GET"
    for word in words[1:]:
        if word.startswith(f"{VALUE}/"):
            path = urlsplit(word).path.removeprefix(f"{VALUE}/").removeprefix("v2/")
            _route(method, [part for part in path.split("/") if part])


@cache
def _routes() -> dict[str, set[str]]:
    """The methods of the API by path, in which ``*`` stands for whatever is named."""
    found: dict[str, set[str]] = {}
    for name in (one.name for one in pkgutil.iter_modules(v2.__path__)):
        module = importlib.import_module(f"{v2.__name__}.{name}")
        for noun in (one for one in vars(module).values() if isinstance(one, type)):
            if issubclass(noun, Controller) and noun is not Controller:
                for pattern, methods in noun.routes.items():
                    path = "/".join(filter(None, [noun.collection, pattern]))
                    found.setdefault(path, set()).update(methods)
    return found


def _route(method: str, parts: Sequence[str]) -> None:
    for pattern, methods in _routes().items():
        wanted = pattern.split("/")
        fits = len(wanted) == len(parts) and method in methods
        if fits and all(want in {"*", part} for want, part in zip(wanted, parts, strict=True)):
            return
    raise ValueError(f"the API has no {method} {'/'.join(parts)}")


def _refused(parse: Callable[[], T]) -> T | None:
    """Turn what a parser says and does into one sentence; None where it ends well by itself."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return parse()
    except SystemExit as end:
        if end.code:
            raise ValueError(said.getvalue().strip()) from end
    except (ValueError, cfg.Error, exception.CyborgError) as fault:
        raise ValueError(str(fault)) from fault
    return None
