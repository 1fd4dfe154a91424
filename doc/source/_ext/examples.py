# SPDX-License-Identifier: Apache-2.0
"""Warns of examples that fail and of names that do not exist, while Sphinx reads a page.

Checked are: the arguments of commands, the options of ``cyborg.conf`` and their values, the groups
of device profiles, SQL, and in the text: options (``[api] port``), policy rules, commands of
clients and paths of the repository. Nothing is run.
"""

import contextlib
import io
import json
import logging
import re
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import os_resource_classes
import sqlalchemy as sa
from cliff.commandmanager import CommandManager
from docutils import nodes
from keystoneauth1 import loading
from keystonemiddleware import audit, auth_token
from oslo_config import cfg
from oslo_limit import opts as oslo_limit
from oslo_log import log
from oslo_messaging import opts as oslo_messaging
from oslo_middleware import opts as oslo_middleware
from oslo_policy import opts as oslo_policy
from sphinx.application import Sphinx
from sphinx.util import logging as sphinx_logging
from sqlalchemy.dialects import sqlite

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import devices, generic, opts
from cyborg.db.models import METADATA
from cyborg.drivers import loader
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.nic import IntelNicDriver
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver
from cyborg.drivers.pci import PciDriver
from cyborg.model.device_profile import Limits, parse_groups
from cyborg.policies import list_rules
from cyborg.testing.fake_host import FakeHost
from cyborg_cli.shell import Shell

ROOT = Path(__file__).resolve().parents[3]
LOG = sphinx_logging.getLogger(__name__)
#: The value of each variable in a command.
VALUE = "7c1f1d2e-5b0a-4c3e-9a44-2f4f0e6b9d10"
#: Groups with an account, whose options depend on its kind.
ACCOUNTS = ("keystone_authtoken", "nova", "oslo_limit", "placement", "glance", "service_user")
#: Options of Nova and of its Placement that the pages name.
FOREIGN = {
    ("cyborg", "endpoint_override"),
    ("devices", "enabled_mdev_types"),
    ("filter_scheduler", "enabled_filters"),
    ("pci", "device_spec"),
    ("pci", "report_in_placement"),
    ("placement", "allocation_candidates_generation_strategy"),
    ("placement", "max_allocation_candidates"),
    ("workarounds", "optimize_for_wide_provider_trees"),
}
#: Commands of a client plug-in that is not among the requirements of the tests.
NOT_INSTALLED = ("resource provider", "allocation candidate", "trait list")
GROUPS = (
    "cli", "common", "identity.v3", "compute.v2", "image.v2", "network.v2", "accelerator.v2",
    "cyborg.v2",
)  # fmt: skip


def setup(app: Sphinx) -> dict[str, bool]:
    """Check each page once it is read."""
    app.connect("doctree-read", check_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def check_page(_app: Sphinx, page: nodes.document) -> None:
    """Log a warning for each example and each name of a page that is wrong."""
    for node in page.findall(nodes.literal_block):
        if "source" in node:
            continue  # a file, which has checks of its own
        caption = node.parent[0].astext() if isinstance(node.parent[0], nodes.caption) else ""
        for flaw in flaws(dedent(node.astext()), node.get("language", ""), caption):
            LOG.warning("%s", flaw, location=node)
    for node in page.findall(nodes.literal):
        for flaw in flaws_of_name(node.astext()):
            LOG.warning("%s", flaw, location=node)


def flaws(text: str, language: str = "", caption: str = "") -> Iterator[str]:
    """Yield what is wrong with an example; a text without a language tells it by its first line."""
    first = next((line for line in text.split("\n") if line and line[0] != "#"), "")
    if text.startswith("[[local|"):
        return  # test_every_documented_local_conf_works
    if language == "ini" or (not language and re.fullmatch(r"\[[\w:.-]+\]", first)):
        other = re.search(r"\w\.(conf|ini)\b", caption.replace("cyborg.conf", ""))
        if not other and first not in ("[uwsgi]", "[Service]"):
            yield from _flaws_of_options(text)
    elif language == "sql" or (not language and first.startswith("SELECT ")):
        try:
            _schema().execute(f"EXPLAIN {text.rstrip().rstrip(';')}")
        except sqlite3.Error as fault:
            yield f"{text}: {fault}"
    elif language in ("", "shell", "bash", "console"):
        for words in commands(text):
            try:
                _check_command(words)
            except (ValueError, exception.CyborgError) as fault:
                yield f"{' '.join(words)}: {fault}"


def flaws_of_name(text: str) -> Iterator[str]:
    """Yield what is wrong with a name in the text: of an option, a rule, a command or a path."""
    option = re.fullmatch(r"\[(\w+)\] (\w+)(?: = .+)?", text)
    if option and option.groups() not in FOREIGN and option[2] not in _options(option[1]):
        yield f"there is no option [{option[1]}] {option[2]}"
    if re.fullmatch(r"cyborg:\w+:\w+", text) and text not in {rule.name for rule in list_rules()}:
        yield f"there is no rule {text}"
    client = re.fullmatch(r"(cyborg|openstack) ([a-z]\S* .*|\S+-\S+)", text)
    if client and not client[2].startswith(NOT_INSTALLED):
        try:
            _client(client[1])[1].find_command(client[2].split())
        except ValueError as fault:
            yield f"{text}: {fault}"
    path = re.fullmatch(r"(client|cyborg|devstack|doc|etc|tools)/[\w./-]+", text)
    built = re.search(r"/build\b|\.sample$", text)
    # A module may be named without its suffix.
    if path and not built and not any((ROOT / f"{text}{end}").exists() for end in ("", ".py")):
        yield f"there is no {text}"


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that is ours, an ``openstack`` command included.

    A UUID stands for each variable.
    """
    text = re.sub(r"(?m)(^|\s)#.*$|^\$ ", "", text.replace("\\\n", " "))
    inner = re.compile(r"\$\(([^()]*)\)")
    while nested := inner.search(text):
        text = f"{inner.sub(VALUE, text, count=1)}\n{nested[1]}"
    text = re.sub(r"\$(\{\w+\}|\w+)", VALUE, text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if word.strip(";&|()<>\n"):
            words.append(word)
            continue
        while words and re.fullmatch(r"\w+=.*|do|then|sudo", words[0]):
            del words[0]
        if words and (Path(words[0]).name in ("cyborg", "openstack") or _source(words[0])):
            yield words
        words = []


def _source(word: str) -> str | None:
    """Return the text of one of our programs, None for another program."""
    tool = ROOT / word
    if tool.parent == ROOT / "tools" and tool.is_file():
        return "".join(
            file.read_text()
            for file in [tool, *(ROOT / "tools" / "cyborg_tools" / tool.name).glob("*.py")]
        )
    module = ROOT / "cyborg" / "cmd" / f"{Path(word).name.removeprefix('cyborg-')}.py"
    if Path(word).name.startswith("cyborg-") and module.is_file():
        # The agent takes the options of what it does instead of serving.
        names = ("clean.py", "discover.py", "functions.py", "recovered.py")
        also = [module.with_name(name) for name in names if module.stem == "agent"]
        return "".join(file.read_text() for file in [module, *also])
    return None


def _check_command(words: Sequence[str]) -> None:
    """Raise ValueError with the reason why a program does not take these words."""
    program, *rest = words
    source = _source(program)
    if source is not None:
        own = rest[: rest.index("--")] if "--" in rest else rest
        known = ("--config-file", "--config-dir", "--debug")
        command = own[:1] if '.add_parser("' in source else []
        for word in [*command, *(word.partition("=")[0] for word in own if word[0] == "-")]:
            # Programs with a configuration declare their options for oslo.config.
            declared = re.search(rf'Opt\(\s*"{re.escape(word.removeprefix("--"))}"', source)
            if f'"{word}"' not in source and not declared and word not in known:
                raise ValueError(f"{program} has no {word}")
        return
    line = re.sub(r"--os-\S+ \S+ ", "", shlex.join(rest) + " ")
    if line.startswith(NOT_INSTALLED):
        return
    _parse(Path(program).name, shlex.split(line))
    groups = [word for option, word in pairwise(rest) if option == "--group"]
    profiles = [json.loads(word) for word in rest if word.startswith("[{")]
    if groups:
        profiles.append([dict(pair.split("=") for pair in group.split(",")) for group in groups])
    for profile in profiles:
        parse_groups(profile, frozenset(os_resource_classes.STANDARDS), Limits())
    _check_driver_options(" ".join(rest))


def _parse(program: str, words: Sequence[str]) -> None:
    shell, manager = _client(program)
    kind, name, arguments = manager.find_command(list(words))
    # Two plug-ins have the same commands with other arguments, and a reader has one of them.
    others = entry_points(group="openstack.accelerator.v2", name=name.replace(" ", "_"))
    said = ""
    for command in (kind, *(entry.load() for entry in others if program == "openstack")):
        output = io.StringIO()
        try:
            with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
                command(shell, None, cmd_name=name).get_parser(name).parse_args(arguments)
        except SystemExit as end:
            if not end.code:
                return  # --help
            said = said or output.getvalue().strip().rpartition("\n")[2]
        else:
            return
    raise ValueError(said)


@cache
def _client(program: str) -> tuple[Shell, CommandManager]:
    shell = Shell([], pause=float, stdout=None, stderr=None)
    if program == "cyborg":
        return shell, shell.command_manager
    # It warns of each command that two plug-ins have.
    logging.getLogger("cliff.commandmanager").setLevel(logging.ERROR)
    manager = CommandManager("openstack.cli")
    for group in GROUPS:
        manager.load_commands(f"openstack.{group}")
    return shell, manager


def _check_driver_options(line: str) -> None:
    """Refuse an option of an installed driver that it does not have."""
    command = re.match(r"(?:\w+-driver|accelerator driver \w+) (\w+)_driver ", line)
    if command is None:
        return
    conf = cfg.ConfigOpts()
    configuration.prepare([], prog="cyborg-agent", default_config_files=[], conf=conf)
    (loaded,) = loader.load([f"{command[1]}_driver"], FakeHost(), conf)
    accepts = loaded.accepts or ()
    known = {name for one in accepts for name in (one.name, f"{one.group}.{one.name}")}
    for option in re.findall(r"--(?:unset-)?option ([\w.:-]+)", line):
        # The options of sections that the host does not have yet are listed without a group.
        if option not in known and f".{loader.option_name(option)}" not in known:
            raise ValueError(f"{command[1]}_driver has no option {option}")


def _flaws_of_options(text: str) -> Iterator[str]:
    """Yield what is wrong with a part of ``cyborg.conf``: its syntax, a name or a value."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "cyborg.conf"
        file.write_text(text)
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            conf = _registered()
            conf([], project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
            cfg.ConfigParser(str(file), sections).parse()
            for section, options in sections.items():
                for option in options.keys() - _options(section):
                    yield f"there is no option [{section}] {option} in cyborg.conf"
            configuration.validate(conf)
            for driver in (GenericDriver, IntelNicDriver, NvidiaGpuDriver, PciDriver):
                driver(FakeHost(), conf)
        except (cfg.Error, exception.CyborgError) as fault:
            yield str(fault)


def _registered() -> cfg.ConfigOpts:
    """Return a configuration with every option of our file, those of the libraries included."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    log.register_options(conf)
    for library in (audit, auth_token, oslo_messaging, oslo_middleware, oslo_policy):
        for group, options in library.list_opts():
            conf.register_opts([one for one in options if not one.required], group=group)
    # Several of its plug-ins have options of the same name.
    ((group, options),) = oslo_limit.list_opts()
    own = {one.dest: one for one in options if not one.required}
    conf.register_opts(own.values(), group=group)
    return conf


@cache
def _options(section: str) -> set[str]:
    """Return the options that a section of our file can have."""
    if section.startswith("generic_driver:"):
        return {option.dest for option in generic.backend_options()}
    # Sections that another option names.
    if section.startswith("vgpu_"):
        return {option.dest for option in devices.vgpu_options()}
    if section.startswith("mdev_") and section != "mdev_driver":
        return {option.dest for option in devices.mdev_options()}
    if section == "x710_static":
        return {option.dest for option in devices.port_options()}
    conf = _registered()
    conf([], project="cyborg", default_config_files=[], default_config_dirs=[])
    names = set(conf if section == "DEFAULT" else conf.get(section, ()))
    if section in ACCOUNTS:
        for options in (
            loading.get_auth_plugin_conf_options("password"),
            loading.get_session_conf_options(),
            loading.get_adapter_conf_options(),
        ):
            names |= {option.dest for option in options}
        names |= {"auth_type", "auth_section"}
    return names


@cache
def _schema() -> sqlite3.Connection:
    """Return an empty database with the newest schema."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    for table in METADATA.sorted_tables:
        database.execute(str(sa.schema.CreateTable(table).compile(dialect=sqlite.dialect())))
    return database
