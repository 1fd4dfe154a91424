# SPDX-License-Identifier: Apache-2.0
"""The commands that readers copy from the documents: which run, in which order, and on what.

Each block of a page below ``doc/source`` that has one of our commands, or ``curl``, runs as a
whole, unless a comment before it says why not::

    .. not run: it needs root

A block of other programs alone, such as ``openstack flavor set``, does not run.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from cyborg.model.process import AGENT, CONDUCTOR
from cyborg_tools.walkthrough.environment import RACK

SOURCE: Final = Path(__file__).parents[3] / "doc" / "source"
#: The third host of the pages, whose agent can be stopped.
GONE: Final = "compute-3"
#: The profile of the instance, and the one that pages attach.
PROFILE: Final = "boot"
GPU: Final = "gpu"
#: The languages of blocks that are for a shell; the empty one is that of ``::``.
_SHELLS: Final = ("", "bash", "console", "shell")
#: The line before a block: the end of a paragraph, or a directive.
_HEAD: Final = re.compile(
    r"(?P<indent> *)(?P<directive>\.\. )?(?P<text>.*)::(?: +(?P<language>\S+))?"
)
_REASON: Final = re.compile(r" *\.\. not run: *(.+)")
_OURS: Final = re.compile(
    r"(?:^|[;|&(]|\bdo|\bthen)\s*(?:sudo (?:-u \w+ )?)?(?:\w+=)?"
    r"(?:cyborg(?:-[a-z-]+)?|openstack (?:--\S+ \S+ )*accelerator|curl)(?=[\s;|&)]|$)",
    re.MULTILINE,
)
#: Texts in which no command is run.
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"$]|\$(?!\())*\"")
#: Programs that change the machine, or other machines.
_OTHERS: Final = re.compile(r"\b(sudo|ssh|scp|podman|rabbitmqctl|mariadb)\b")
_UUID: Final = "-f value -c uuid"


@dataclass(frozen=True)
class Block:
    """The text of a block with our commands, and why it does not run (None: it runs)."""

    text: str
    reason: str | None


@dataclass(frozen=True)
class Page:
    """A page whose commands run, in one shell.

    ``before`` and ``after`` are commands that run with them: what the page requires, and what
    leaves the cloud as the next page requires it. ``stopped`` names daemons that do not run then.
    """

    name: str
    before: str = ""
    after: str = ""
    stopped: tuple[str, ...] = ()

    @property
    def commands(self) -> str:
        """What runs: the blocks in their order, between ``before`` and ``after``."""
        text = (SOURCE / f"{self.name}.rst").read_text()
        run = [block.text for block in blocks(text) if block.reason is None]
        return "\n".join(part for part in (self.before, *run, self.after) if part)

    @property
    def unset(self) -> list[str]:
        """The variables that the commands use before they set them."""
        return variables(self.commands)


_INSTALL_SOFT: Final = f"cyborg install-driver generic_driver --host {RACK} --option backends=soft"
_UNINSTALL: Final = "cyborg uninstall-driver generic_driver"
#: In the order in which they run on one cloud.
PAGES: Final = (
    Page("user/index"),
    Page("user/profiles"),
    Page("admin/generic-driver"),
    Page("admin/device-catalogue"),
    Page("admin/private-profiles"),
    Page("admin/attaching"),
    Page("admin/drivers", after=_UNINSTALL),
    Page("admin/devices", before=_INSTALL_SOFT, after=_UNINSTALL),
    Page("admin/troubleshooting"),
    Page("admin/no-accelerator"),
    Page("admin/empty-a-host"),
    Page("admin/monitoring"),
    Page("admin/upgrade"),
    Page("admin/security"),
    Page("admin/nvmf-spdk-driver"),
    Page("install/kolla"),
    Page("install/devstack"),
    Page("install/by-hand"),
    Page("contributor/scenario-hosts"),
    Page("reference/events"),
    Page("admin/health"),
    # The audit has findings: without a conductor no agent is heard.
    Page("admin/backup", before="set +e", after="test $? -le 2", stopped=(CONDUCTOR,)),
    Page(
        "admin/cleaning",
        before=f"{_INSTALL_SOFT}\nDEVICE=$(cyborg accelerator-create --host {RACK} --model soft"
        " --driver generic_driver --backend soft --type FPGA --resource-class FPGA"
        " -f value -c uuid)",
        after=_UNINSTALL,
        stopped=(f"{AGENT} on {GONE}",),
    ),
    # It ends with what removes drivers and a host.
    Page("user/cli", stopped=(f"{AGENT} on {GONE}",)),
)
#: The commands that find the value of a variable that a page uses and does not set.
LOOKUPS: Final[Mapping[str, str]] = {
    "ACCELERATOR": f"cyborg accelerator-list --host {RACK} --driver fake_driver {_UUID}",
    "DEVICE": f"cyborg accelerator-list --host {RACK} --driver fake_driver {_UUID}",
    "ARQ": f"cyborg arq-list --instance $INSTANCE {_UUID}",
    "OPERATION": f"cyborg operation-list --limit 1 {_UUID}",
    "REQUEST_ID": "cyborg event-list --instance $INSTANCE --limit 1 -f value -c request_id",
}
#: The variables that the walk sets: the instance under two names, and an account.
GIVEN: Final = ("ENDPOINT", "HOST", "INSTANCE", "OTHER_PROJECT", "PROJECT", "SERVER", "TOKEN")


def names() -> Iterator[str]:
    """Yield the names of the pages with a block that runs, whether or not they are in PAGES."""
    for file in sorted(SOURCE.rglob("*.rst")):
        if any(block.reason is None for block in blocks(file.read_text())):
            yield file.relative_to(SOURCE).with_suffix("").as_posix()


def variables(commands: str) -> list[str]:
    """Return the variables that commands use before they set them."""
    used: dict[str, None] = {}
    ours: set[str] = set()
    for line in commands.replace("\\\n", " ").splitlines():
        names = re.findall(r"\$\{?([A-Z_]+)", line)
        used |= dict.fromkeys(name for name in names if name not in ours)
        ours |= set(re.findall(r"^([A-Z_]+)=", line))
    return list(used)


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that have our commands.

    Raises ValueError for a comment without such a block, and for a block that would change the
    machine and has no comment.
    """
    lines = text.splitlines()
    reason: str | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if comment := _REASON.fullmatch(line):
            if reason is not None:
                raise ValueError(f"no block with our commands follows: {reason}")
            reason = comment[1]
        head = _HEAD.fullmatch(line)
        if head is None or (head["language"] and not head["directive"]):
            continue
        if head["directive"] and head["text"] != "code-block":
            continue
        block, number = _block(lines, number, len(head["indent"]))
        words = _QUOTED.sub("''", block.replace("\\\n", " "))
        if (head["language"] or "") in _SHELLS and _OURS.search(words):
            if reason is None and _OTHERS.search(words):
                raise ValueError(f"say in a comment why this does not run: {block}")
            yield Block(block, reason)
            reason = None
    if reason is not None:
        raise ValueError(f"no block with our commands follows: {reason}")


def _block(lines: list[str], number: int, indent: int) -> tuple[str, int]:
    """Return the text of the block that begins at a line, and the number of the line after it."""
    while number < len(lines) and (not lines[number] or re.match(r" +:\w+: ", lines[number])):
        number += 1
    first = number
    width = len(lines[number]) - len(lines[number].lstrip()) if number < len(lines) else 0
    if width <= indent:
        return "", number
    while number < len(lines) and (not lines[number] or lines[number].startswith(" " * width)):
        number += 1
    return dedent("\n".join(lines[first:number])).strip(), number
