# SPDX-License-Identifier: Apache-2.0
"""Reads what is written for a shell: which commands a block has, with their arguments."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import cyborg

ROOT = Path(cyborg.__file__).resolve().parent.parent
OURS = frozenset(
    {
        "cyborg",
        "cyborg-agent",
        "cyborg-api",
        "cyborg-audit",
        "cyborg-conductor",
        "cyborg-dbsync",
        "cyborg-status",
    }
)
#: What the documents use that others made; the tests do not know its arguments.
FOREIGN = frozenset({
    "a2enmod", "a2ensite", "apt-get", "cat", "cd", "chmod", "chown", "cp", "curl", "dnf", "docker",
    "echo", "export", "getfacl", "git", "grep", "groupadd", "head", "install", "journalctl", "kill",
    "ln", "ls", "lspci", "mariadb", "mariadb-dump", "mkdir", "mv", "mysql", "mysqldump",
    "oslo-config-generator", "oslo-config-validator", "oslopolicy-sample-generator",
    "oslopolicy-validator", "pg_dump", "pip", "podman", "pre-commit", "promtool", "psql", "pytest",
    "python3", "rabbitmqctl", "reno", "rm", "sed", "setfacl", "sort", "source", "sphinx-build",
    "systemctl", "systemd-analyze", "tail", "tee", "touch", "tox", "unshare", "useradd", "usermod",
    "uwsgi", "virsh", "visudo", "watch", "xargs",
})  # fmt: skip
_SEPARATORS = frozenset({"|", "||", "&&", ";", ";;", "&", "(", ")", "|&"})
_REDIRECTIONS = frozenset({">", ">>", "<", "<<", "<<<", ">&", "&>"})
#: Words before the command that do not change what it takes.
_BEFORE = frozenset({"do", "else", "exec", "if", "then", "time", "until", "while", "!", "{", "}"})
_ENDS = frozenset({"done", "esac", "fi", "in"})


def commands(text: str, *, console: bool = False) -> list[list[str]]:
    """The commands of a block as lists of words; variables and quotes are resolved.

    Of a ``console`` only the lines with a prompt are commands. Raises ValueError with a sentence
    for what a reader cannot run.
    """
    if console:
        text = _prompted(text)
    found: list[list[str]] = []
    for line in _lines(text):
        found += _simple(line)
    return found


def programs(line: str) -> bool:
    """Whether a line is one that a shell would take, by its first word."""
    try:
        found = commands(line.rstrip("\\"))
    except ValueError:
        return False
    return any(_known(words[0]) for words in found[:1])


def _known(word: str) -> bool:
    word = word.removeprefix(".test-venv/bin/")
    return word in OURS | FOREIGN | {"openstack", "for"} or (ROOT / word).is_file()


def _prompted(text: str) -> str:
    lines: list[str] = []
    going_on = False
    for line in text.split("\n"):
        prompt = re.match(r"[$#>] ", line)
        if prompt or going_on:
            lines.append(line[2:] if prompt else line)
            going_on = line.endswith("\\")
    return "\n".join(lines)


def _lines(text: str) -> Iterator[str]:
    """Yield logical lines: with what they are continued on, without here-documents."""
    waiting, until = "", ""
    for line in text.split("\n"):
        if until:
            until = "" if line.strip() == until else until
            continue
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1] + " "
            continue
        try:
            shlex.split(waiting, comments=True)
        except ValueError:
            waiting += "\n"
            continue
        document = re.search(r"<<-?\s*['\"]?(\w+)", waiting)
        until = document[1] if document else ""
        yield waiting
        waiting = ""
    if waiting or until:
        raise ValueError(f"{waiting or until!r} has no end")


def _simple(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of one line, those within ``$()`` first."""
    if blank := re.search(r"<[a-z][a-z _-]*>", line):
        raise ValueError(f"{blank[0]} cannot be run: write a variable, such as $DEVICE")
    while inner := re.search(r"\$\(([^()]*)\)", line):
        yield from _simple(inner[1])
        line = line[: inner.start()] + "$VALUE" + line[inner.end() :]
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _SEPARATORS:
            yield from _command(words)
            words = []
        else:
            words.append(word)


def _command(words: list[str]) -> Iterator[list[str]]:
    rest: list[str] = []
    skip = False
    for word in words:
        if skip or word in _REDIRECTIONS:
            skip = not skip
            if rest and rest[-1] in {"1", "2"}:
                rest.pop()
        else:
            rest.append(word)
    while rest and (rest[0] in _BEFORE or re.match(r"[A-Za-z_]\w*=", rest[0])):
        del rest[0]
    if rest and rest[0] == "sudo":
        del rest[0]
        while rest and rest[0].startswith("-"):
            del rest[: 2 if rest[0] in {"-u", "-g"} else 1]
    if rest and rest[0] not in _ENDS:
        if "..." in rest:
            raise ValueError(f"'{' '.join(rest)}' cannot be run: say what stands for '...'")
        yield rest
