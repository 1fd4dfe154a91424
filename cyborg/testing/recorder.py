# SPDX-License-Identifier: Apache-2.0
"""Record what a driver reads here: python3 -m cyborg.testing.recorder DRIVER DIRECTORY.

The recording is an archive (see cyborg.drivers.archive): a directory with every file, link and
directory that the driver reads, and the answers of the commands that it runs. ``pytest
--cyborg-driver`` and ``cyborg-agent --discover --host`` read it on any other machine. Nothing is
written to the machine itself, apart from the recording.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.files import INITIAL_PROCESSES, TEXT_LIMIT, OpenFiles, is_missing, resolve
from cyborg.drivers.host import LocalHost
from cyborg.drivers.rtnetlink import NETWORK, Use
from cyborg.drivers.unix_socket import Complete
from cyborg.testing import subject
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost

PROG = "python3 -m cyborg.testing.recorder"


class RecordingHost(LocalHost):
    """This machine, or the tree below ``root``; ``tree`` becomes a copy of what is read.

    Names that a driver lists and does not read become empty files. Writing is refused with
    exception.HostError, so a driver that changes something while it looks is noticed.
    """

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self.tree = FakeHost()
        self.tree.release = f"{os.uname().release} {os.uname().machine}"
        self._real_root = os.path.realpath(root).rstrip("/")

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """See Host."""
        real = self._resolved(path)
        try:
            content = super().read_bytes(path, limit)
        except exception.HostError as error:
            if not is_missing(error) and "errno" in error.fields:
                self.tree.add_file(real, "")
                self.tree.faults[real] = error.fields["errno"]
            raise
        self.tree.add_file(real, content)
        return content

    def write_text(self, path: str, text: str) -> None:
        """Refuse: a recording changes nothing."""
        raise exception.HostError(action=f"writing {path}", reason="a recording changes nothing")

    def exchange(
        self,
        path: str,
        request: bytes,
        complete: Complete,
        *,
        timeout: float,
        cap: int = OUTPUT_CAP,
    ) -> bytes:
        """Refuse: a request may change the program, and its answer may have secrets."""
        raise exception.HostError(action=f"asking {path}", reason="a recording asks no program")

    def list_dir(self, path: str) -> list[str]:
        """See Host."""
        names = super().list_dir(path)
        real = self._resolved(path)
        self.tree.add_dir(real)
        for name in names:
            self._add(f"{real.rstrip('/')}/{name}")
        return names

    def exists(self, path: str) -> bool:
        """See Host."""
        there = super().exists(path)
        if there:
            self._add(self._resolved(path))
        return there

    def readlink(self, path: str) -> str:
        """See Host."""
        target = super().readlink(path)
        parent, _, name = path.rpartition("/")
        self.tree.add_link(f"{self._resolved(parent or '/').rstrip('/')}/{name}", target)
        return target

    def realpath(self, path: str) -> str:
        """See Host."""
        real = super().realpath(path)
        self._add(self._resolved(path))
        return real

    def open_files(self) -> OpenFiles:
        """See Host; each process is kept with the device files that it has open."""
        files = super().open_files()
        namespace = INITIAL_PROCESSES if files.reason is None else files.reason
        self.tree.add_link("/proc/self/ns/pid", namespace)
        for number, (path, process) in enumerate(sorted(files.holders.items())):
            # The name of a process ends with its number; see files.find_open_files.
            name, _, end = process.rpartition("process ")
            place = f"/proc/{end.rstrip(')')}"
            self.tree.add_file(f"{place}/comm", name.rstrip(" ("))
            self.tree.add_link(f"{place}/fd/{number}", path)
        for path, place in files.devices.items():
            if path.startswith("/dev/"):
                # The name in this file is how an archive knows the node of a device.
                with contextlib.suppress(exception.HostError):
                    self.read_text(f"{place}/uevent")
        return files

    def network_uses(self) -> Sequence[Use]:
        """See Host."""
        uses = super().network_uses()
        self.tree.add_file(NETWORK, "".join(f"{use.interface} {use.traffic}\n" for use in uses))
        return uses

    def is_claimed(self, path: str) -> bool:
        """See Host."""
        claimed = super().is_claimed(path)
        self.tree.add_file(path, "")
        if claimed:
            self.tree.claimed.add(path)
        return claimed

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """See Host; the answer is kept by the argument vector."""
        completed = super().run(argv, timeout=timeout, stdin=stdin, cap=cap)
        self.tree.answers[tuple(argv)] = completed
        return completed

    def _resolved(self, path: str) -> str:
        """Return the real path, with every link on the way copied."""

        def link(place: str) -> str | None:
            target = self._link(place) if self._real_root else _target(place)
            if target is not None:
                self.tree.add_link(place, target)
            return target

        return resolve(path, link)

    def _add(self, place: str) -> None:
        """Copy what kind of thing there is at a place, without its content."""
        outside = self._real_root + place
        target = _target(outside)
        if target is not None:
            self.tree.add_link(place, target)
        elif os.path.isdir(outside):
            self.tree.add_dir(place)
        elif self.tree.content(place) is None:
            self.tree.add_file(place, "")


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def main(argv: Sequence[str]) -> int:
    """Record; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Record what a driver reads from this machine, for tests on other machines. "
        "Changes nothing on this machine. Look through the recording before you publish it: it "
        "holds what the files say, for example serial numbers.",
    )
    parser.add_argument("driver", help="name of an installed driver")
    parser.add_argument("directory", type=Path, help="directory for the recording; must not exist")
    parser.add_argument("--config", help="configuration file with the driver's options")
    asked = parser.parse_args(argv)
    if asked.directory.exists():
        parser.error(f"{asked.directory} exists; name a directory that does not exist yet")
    host = RecordingHost()
    try:
        conf = subject.read_configuration(asked.config)
        (loaded,) = loader.load([asked.driver], host, conf)
        if loaded.driver is None:
            raise ValueError(loaded.error)
        devices = look(loaded.driver).discover()
        hardware = look(loaded.driver).hardware()
        look(loaded.driver).backends()
        look(loaded.driver).layouts()
    except (exception.CyborgError, ValueError) as error:
        print(f"{PROG}: {asked.driver} cannot be recorded: {error}", file=sys.stderr)
        return 1
    host.tree.materialise(asked.directory)
    print(
        f"{asked.driver} offers {len(devices)} of {len(hardware)} pieces of hardware here. "
        f"Recorded {len(host.tree.paths())} files and links and "
        f"{len(host.tree.answers)} command(s) in {asked.directory}."
    )
    print(f"Play it back: pytest --cyborg-driver {asked.driver} --cyborg-host={asked.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
