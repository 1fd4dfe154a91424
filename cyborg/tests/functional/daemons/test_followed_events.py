# SPDX-License-Identifier: Apache-2.0
"""Clients that follow events over two API processes and two conductors, which are killed."""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import requests

from cyborg.tests.fixtures.processes import Deployment, at_home, script
from cyborg.tests.fixtures.waiting import PATIENCE, ended, eventually, happened, joined

VERSION = {"OpenStack-API-Version": "accelerator 2.100"}


def create_profile(url: str) -> str:
    """Create a profile, whose event names it; return its UUID."""
    profile: Any = {"name": f"profile-{uuid4().hex}", "groups": [{"resources:FPGA": "1"}]}
    answer = requests.post(
        f"{url}/v2/device_profiles", json=[profile], headers=VERSION, timeout=PATIENCE
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["uuid"])


def get(url: str, path: str) -> Any:
    answer = requests.get(f"{url}{path}", headers=VERSION, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer.json()


class Follower:
    """A client that continues with another API process after each answer."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.seen: list[str] = []
        self.path = "/v2/events?wait=1"
        self.started = threading.Event()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def look(self) -> int:
        """Send one request; return how many events came."""
        self.urls.append(self.urls.pop(0))
        document = get(self.urls[0], self.path)
        ((link,),) = [document["events_links"]]
        parts = urlsplit(link["href"])
        self.path = f"{parts.path}?{parts.query}"
        self.seen += [event["subject_uuid"] for event in document["events"]]
        return len(document["events"])

    def _run(self) -> None:
        while not self.done.is_set():
            self.look()
            self.started.set()

    def finish(self) -> list[str]:
        self.done.set()
        joined(self.thread)
        while self.look():
            pass
        return self.seen


def test_each_event_is_read_once_over_two_processes_of_each_kind(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy()
    conductors = [deployment.conductor({"DEFAULT": {"host": f"control-{n}"}}) for n in (1, 2)]
    urls = [deployment.api({"DEFAULT": {"host": f"control-{n}"}})[1] for n in (1, 2)]
    followers = [Follower(list(urls)), Follower(urls[::-1])]
    for follower in followers:
        happened(follower.started)
    created: list[str] = []

    def create(url: str) -> None:
        created.extend(create_profile(url) for _ in range(15))

    writers = [threading.Thread(target=create, args=(url,)) for url in urls * 2]
    for writer in writers:
        writer.start()
    joined(*writers)
    # The rest is written by one conductor.
    conductors[0].kill()
    create(urls[0])
    assert len(created) == 75
    for follower in followers:
        assert Counter(follower.finish()) == Counter(created)


class Command:
    """``cyborg watch`` as a child process, and the events that it has printed."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self.child = child
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, expected: list[str]) -> None:
        """Wait until exactly these events are printed."""
        eventually(lambda: self.seen == expected, lambda: (self.seen, expected))

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.seen.append(json.loads(line)["subject_uuid"])


@contextmanager
def watching(url: str, home: Path, *options: str) -> Iterator[Command]:
    command = [script("cyborg"), "--os-auth-type", "none", "--os-endpoint", url, "watch"]
    with subprocess.Popen(
        [*command, "-f", "json", *options],
        stdout=subprocess.PIPE,
        stderr=(home / "watch.err").open("wb"),
        env=at_home(home),
    ) as child:
        try:
            yield Command(child)
        finally:
            child.kill()
            ended(child)


def test_watch_goes_on_after_the_api_was_killed(
    deploy: Callable[..., Deployment], tmp_path: Path
) -> None:
    deployment = deploy()
    deployment.conductor({"DEFAULT": {"host": "control-1"}})
    api, url = deployment.api()
    _, other = deployment.api()
    port = {"api": {"port": urlsplit(url).port}}
    first = create_profile(other)
    (event,) = get(other, "/v2/events?limit=1")["events"]
    with watching(url, tmp_path, "--since", event["at"]) as command:
        expected = [first]
        command.wait_for(expected)
        for kill in (True, False):
            expected.append(create_profile(other))
            command.wait_for(expected)
            api.kill() if kill else api.stop()
            # Meanwhile others go on.
            expected += [create_profile(other) for _ in range(3)]
            api, _ = deployment.api(port)
            command.wait_for(expected)
        assert command.child.poll() is None
    errors = (tmp_path / "watch.err").read_text()
    assert "Trying again, without losing events." in errors
    assert "The service answers again." in errors
