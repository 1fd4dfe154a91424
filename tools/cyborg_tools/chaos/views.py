# SPDX-License-Identifier: Apache-2.0
"""The views of an operator in an outage: services, health check, status and audit."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from cyborg_tools.chaos.world import NightWorld

VERSION = {"OpenStack-API-Version": "accelerator 2.100"}
_TIMEOUT = 30.0
_PEERS = frozenset({"Database", "Keystone", "Placement", "Nova", "Message bus"})
_ADVICE = re.compile(r"Start a? ?(cyborg-\w+)")
_LISTENING = {True: "listens", False: "does not listen", None: "listening is unknown"}


@dataclass(frozen=True)
class View:
    """One answer.

    ``status`` is the HTTP status or the exit status. ``lines`` are the sentences about what is not
    well. ``advice`` is the text in which the view may blame somebody. ``down`` are the peers that
    the view calls down.
    """

    status: int
    lines: Sequence[str]
    advice: str
    down: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return f"{self.status}: {' '.join(self.lines) or 'all is well'}"

    def shown(self, words: str) -> str:
        """The status and the first line with these words; the whole view when no line has them."""
        for line in self.lines:
            if re.search(words, line):
                others = len(self.lines) - 1
                return f"{self.status}: {line}" + (f" (and {others} more)" if others else "")
        return self.text


@dataclass(frozen=True)
class Expected:
    """What each view must say while a fault lasts.

    ``peer`` is the only peer that may be down, empty for none. The other words are regular
    expressions. ``start`` is the daemon that an operator may be advised to start.
    """

    services: tuple[int, str]
    health: tuple[int, str]
    status: tuple[int, str]
    audit: tuple[int, str]
    peer: str = ""
    start: str = ""


def wrong(views: Mapping[str, View], expected: Expected) -> Iterator[str]:
    """Say where a view differs from what it must say."""
    for name, view in views.items():
        status, words = getattr(expected, name)
        if view.status != status:
            yield f"{name} ends with {view.status}, not {status}: {view.text}"
        if not re.search(words, view.text):
            yield f"{name} does not say {words!r}: {view.text}"
        for daemon in sorted(set(_ADVICE.findall(view.advice)) - {expected.start}):
            yield f"{name} blames {daemon}: {view.advice}"
        for peer in sorted(view.down - {expected.peer}):
            yield f"{name} says that {peer} is down: {view.text}"


def look(world: NightWorld, *names: str) -> dict[str, View]:
    """Ask for these views, or all, at once; the commands take seconds."""
    asked = names or tuple(_VIEWS)
    with ThreadPoolExecutor(len(asked)) as pool:
        return dict(zip(asked, pool.map(lambda name: _VIEWS[name](world), asked), strict=True))


def _services(world: NightWorld) -> View:
    """``GET /v2/services`` at 2.100, with a token, of the API that asks Keystone."""
    headers = {**VERSION, "X-Auth-Token": world.token()}
    url = f"{world.urls[1]}/v2/services?kind=process"
    answer = requests.get(url, headers=headers, timeout=_TIMEOUT)
    if answer.status_code != 200:
        return View(answer.status_code, [_bare(answer.text)], answer.text)
    services = answer.json()["services"]
    lines = [
        f"{one['binary']} on {one['host']} is {one['state']}, {_LISTENING[one['listening']]}: "
        f"{one['cause']}"
        for one in services
        if one["state"] != "up" or one["listening"] is False or one["cause"]
    ]
    well = len(services) - len(lines)
    lines = [*lines, f"{well} processes are up."] if well else lines
    return View(200, lines, " ".join(str(one["remedy"]) for one in services))


def _health(world: NightWorld) -> View:
    """``/healthcheck`` of the same API."""
    headers = {"Accept": "application/json"}
    answer = requests.get(f"{world.urls[1]}/healthcheck", headers=headers, timeout=_TIMEOUT)
    return _components(answer.status_code, answer.json()["components"])


def _status(world: NightWorld) -> View:
    ran = world.deployment.run("cyborg-status", "check", "--format", "json")
    if not ran.stdout:
        return View(ran.returncode, [_bare(ran.stderr)], ran.stderr)
    return _components(ran.returncode, json.loads(ran.stdout)["components"])


def _audit(world: NightWorld) -> View:
    ran = world.audit()
    findings = json.loads(ran.stdout)["findings"] if ran.stdout else []
    findings = [one for one in findings if one["severity"] != "info"]
    lines = [f"{one['kind']} {one['key']}: {one['cause']}" for one in findings]
    if ran.returncode > 2:
        lines += [line for line in ran.stderr.splitlines() if line.startswith("cyborg-audit: ")]
    advice = " ".join([*lines, *(one["remedy"] for one in findings)])
    return View(ran.returncode, lines, advice)


def _components(status: int, components: Sequence[Mapping[str, Any]]) -> View:
    lines = [
        f"{one['name']} is {one['state']}: {one['cause']}"
        for one in components
        if one["level"] != "ok"
    ]
    down = _PEERS & {one["name"] for one in components if one["state"] == "down"}
    advice = " ".join(str(one["remedy"]) for one in components)
    return View(status, lines, advice, down)


_VIEWS = {"services": _services, "health": _health, "status": _status, "audit": _audit}


def _bare(text: str) -> str:
    return " ".join(text.split())
