# SPDX-License-Identifier: Apache-2.0
"""A simulated host behind the ports of ``Host``: a tree in memory that can break in every way."""

import copy
import errno
import queue
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from cyborg import exception
from cyborg.drivers.archive import OUTPUT_FILE, ArchivedHost, os_error
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.files import TEXT_LIMIT, host_errors, resolve
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.uevents import Uevent
from cyborg.drivers.unix_socket import Complete
from cyborg.testing.fake_privileges import SimulatedPrivileges

#: The file of a PCI function that resets it.
_RESET = re.compile(r"/sys/devices/.*/reset")

#: What a program does, given its host and its argument vector.
Program = Callable[["FakeHost", tuple[str, ...]], Completed]
#: What a program that listens on a UNIX socket answers to a request.
Answer = Callable[[bytes], bytes]


class Kernel(Protocol):
    """What gives the files of a simulated host a meaning; see cyborg.testing.kernel.simulated."""

    def check_read(self, path: str) -> None:
        """Raise OSError if the file at this real path cannot be read."""
        ...

    def write(self, path: str, text: str) -> bool:
        """Apply a write to the file at this real path; return False to have the text stored.

        Raises OSError if the kernel refuses the write.
        """
        ...

    def read_again(self) -> None:
        """Take over the functions of the tree, which a test has rewritten."""
        ...


@dataclass
class Subtree:
    """Files, links and directories by absolute path, taken away from a host."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class FakeEvents:
    """Events that a test emits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Uevent | None] = queue.SimpleQueue()
        self.closed = False

    def emit(self, event: Uevent) -> None:
        """Say one event."""
        self._queue.put(event)

    def poll(self, timeout: float | None = None) -> Uevent | None:
        """See Events."""
        try:
            return None if self.closed else self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self.closed = True
        self._queue.put(None)


class FakeHost(ArchivedHost):
    """A host made of ``files`` and ``links`` by absolute path.

    Faults: ``faults`` of the archive; ``vanish`` pulls a sub-tree after some more calls. What a
    driver did to the host stands in ``writes`` (path and text), ``commands`` (argument vectors) and
    ``actions`` (of the privileged process, which also appear among the writes and the commands);
    ``touches`` counts the calls.
    ``programs`` maps paths of programs to what they do to this host, and ``sockets`` paths of UNIX
    sockets to what listens there; once the host is ``hanging``, no command ends and no socket
    answers before the time-out, which then has passed. ``patience`` holds the time-outs that
    commands and sockets were given. ``foreign`` are the paths that others than root can change.
    ``on_call`` gets each call of a port before its effect, as a real path or as the words of a
    command, and may raise an error. ``on_pause`` is what happens on the host whenever a driver
    waits.

    A write stores its text, unless ``kernel`` gives the file another meaning.
    """

    def __init__(
        self, files: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.writes: list[tuple[str, str]] = []
        self.commands: list[tuple[str, ...]] = []
        self.actions: list[Action[Any]] = []
        self.programs: dict[str, Program] = {}
        self.sockets: dict[str, Answer] = {}
        self.hanging = False
        self.patience: list[float] = []
        self.foreign: set[str] = set()
        self.touches = 0
        self.on_call: Callable[[str], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.kernel: Kernel | None = None
        self._listeners: list[FakeEvents] = []
        self._vanishing: list[tuple[int, str]] = []
        for path, text in (files or {}).items():
            self.add_file(path, text)
        for path, target in (links or {}).items():
            self.add_link(path, target)

    # What a test does to the host.

    def add_socket(self, path: str, answer: Answer) -> None:
        """Let a program listen on a UNIX socket."""
        self.add_file(path, "")
        self.sockets[path] = answer

    def remove(self, path: str) -> None:
        """Take a file, a link or a whole sub-tree away; nothing there does no harm.

        Of the root only what is in it goes.
        """
        for name in sorted(self._names.get(path, ())):
            self.remove(f"{path.rstrip('/')}/{name}")
        if path == "/":
            return
        for one in (self._files, self._links, self._names, self._inodes):
            one.pop(path, None)
        parent, _, name = path.rpartition("/")
        self._names.get(parent or "/", set()).discard(name)

    def take(self, path: str) -> Subtree:
        """Take a sub-tree away and return it, for ``put_back``."""
        taken = Subtree()
        self._collect(path, taken)
        self.remove(path)
        return taken

    def put_back(self, subtree: Subtree) -> None:
        """Put a sub-tree back where ``take`` found it."""
        for path in subtree.directories:
            self.add_dir(path)
        for path, content in subtree.files.items():
            self.add_file(path, content)
        for path, target in subtree.links.items():
            self.add_link(path, target)

    def vanish(self, path: str, after: int) -> None:
        """Take the sub-tree away as soon as ``after`` more calls were answered."""
        self._vanishing.append((self.touches + after, path))

    def paths(self) -> list[str]:
        """Return the paths of all files and links, sorted."""
        return sorted([*self._files, *self._links])

    def tree(self) -> dict[str, bytes | str | None]:
        """Return all there is by path: bytes of files, targets of links, None for directories."""
        return {**dict.fromkeys(self._names), **self._links, **self._files}

    def content(self, path: str) -> bytes | None:
        """Return the bytes of a file by its real path; None if there is no such file."""
        return self._files.get(path)

    def target(self, path: str) -> str | None:
        """Return the target of the link at this real path, as written; None if it is no link."""
        return self._links.get(path)

    def names(self, path: str) -> list[str] | None:
        """Return the sorted names in the directory at this real path; None if it is none."""
        return sorted(self._names[path]) if path in self._names else None

    def emit(self, event: Uevent) -> None:
        """Deliver an event to everybody who listens."""
        self._listeners = [listener for listener in self._listeners if not listener.closed]
        for listener in self._listeners:
            listener.emit(event)

    def copy(self) -> Self:
        """Return an independent copy of the host, to which nobody listens."""
        # The large tables have values that never change: one pass each, not one for each value.
        return copy.deepcopy(
            self,
            {
                id(self._listeners): [],
                id(self._files): self._files.copy(),
                id(self._links): self._links.copy(),
                id(self._names): {path: names.copy() for path, names in self._names.items()},
                id(self.answers): self.answers.copy(),
            },
        )

    # The ports.

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """See Host."""
        content = super().read_bytes(path, limit)
        if self.kernel is not None:
            with host_errors(f"reading {path}"):
                self.kernel.check_read(resolve(path, self._links.get))
        return content

    def write_text(self, path: str, text: str) -> None:
        """See Host."""
        with host_errors(f"writing {path}"):
            real = self._touch(path)
            if real not in self._files:
                raise os_error(errno.EISDIR if real in self._names else errno.ENOENT)
            self.writes.append((real, text))
            stored = self.kernel is None or not self.kernel.write(real, text)
            # A request to the kernel, which keeps nothing of it.
            if stored and not _RESET.fullmatch(real):
                self._files[real] = text.encode()

    def writable_by_others(self, path: str) -> str | None:
        """See Host."""
        return path if path in self.foreign else None

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """Answer a command as the test said; a command it did not name is not installed."""
        action = f"running {argv[0]}"
        self.commands.append(tuple(argv))
        self.patience.append(timeout)
        if self.on_call is not None:
            self.on_call(" ".join(argv))
        if self.hanging:
            self.clock.advance(timeout)
            raise exception.HostError(action=action, reason="it did not end in time")
        if (answer := self.answers.get(tuple(argv))) is not None:
            return answer
        if (program := self.programs.get(argv[0])) is not None:
            return program(self, tuple(argv))
        raise exception.HostError(action=action, reason="No such file")

    def exchange(
        self,
        path: str,
        request: bytes,
        complete: Complete,
        *,
        timeout: float,
        cap: int = OUTPUT_CAP,
    ) -> bytes:
        """Answer as the program on the socket; an incomplete answer is its last word."""
        self.patience.append(timeout)
        if self.on_call is not None:
            self.on_call(path)
        reason = "Connection refused"
        if self.hanging:
            self.clock.advance(timeout)
            reason = f"there was no complete answer within {timeout:g} seconds"
        elif (listener := self.sockets.get(path)) is not None:
            answer = listener(request)
            if len(answer) > cap:
                reason = f"the answer has more than {cap} bytes"
            elif complete(answer):
                return answer
            else:
                reason = "the connection was closed before the answer was complete"
        raise exception.HostError(action=f"asking {path}", reason=reason)

    def pause(self, seconds: float) -> None:
        """Let time pass, and call ``on_pause``."""
        self.clock.advance(seconds)
        if self.on_pause is not None:
            self.on_pause()

    def run_to_file(self, argv: Sequence[str], *, timeout: float) -> tuple[Completed, str]:
        """See Host; what the program puts into ``OUTPUT_FILE`` is removed again."""
        try:
            return super().run_to_file(argv, timeout=timeout)
        finally:
            self.remove(OUTPUT_FILE)

    def events(self) -> FakeEvents:
        """Return the events that ``emit`` delivers from now on."""
        events = FakeEvents()
        self._listeners.append(events)
        return events

    def _collect(self, path: str, taken: Subtree) -> None:
        if (content := self._files.get(path)) is not None:
            taken.files[path] = content
        elif (target := self._links.get(path)) is not None:
            taken.links[path] = target
        elif path in self._names:
            taken.directories.append(path)
            for name in self.names(path) or ():
                self._collect(f"{path}/{name}", taken)

    @property
    def privileged(self) -> SimulatedPrivileges:
        """Run the actions of the agent on this host."""
        return SimulatedPrivileges(self, self.actions.append)

    def _touch(self, path: str) -> str:
        """Count a call, let happen what is due, and follow the links of its path."""
        self.touches += 1
        for at, doomed in self._vanishing:
            if at < self.touches:
                self.remove(doomed)
        if self.on_call is not None and "\0" not in path:
            self.on_call(resolve(path, self._links.get))
        return super()._touch(path)
