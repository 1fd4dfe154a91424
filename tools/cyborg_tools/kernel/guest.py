# SPDX-License-Identifier: Apache-2.0
"""Run one command in a guest: QEMU without KVM, on the read-only tree of this machine."""

import os
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from cyborg import exception
from cyborg_tools.kernel.build import Parts
from cyborg_tools.program import BrokenEnvironment

#: Bytes of a disk; the file on the host is sparse.
_DISK: Final = 64 * 1024 * 1024
_CHUNK: Final = 64 * 1024
#: Seconds in which a guest must print something; a busy machine needs two minutes to boot it.
#: While it runs, its first process prints a zero every 5 seconds: a long test is no silence.
_SILENCE: Final = 180.0
#: Characters of the console that are no output.
_NO_OUTPUT: Final = b"\r\0"
#: Kernel parameters of every machine. A machine without an emulated IOMMU ignores the first.
_PARAMETERS: Final = (
    # Under load the kernel may find that the timer does not interrupt, and stop.
    "no_timer_check",
    *("intel_iommu=on", "iommu.strict=0", "console=ttyS0", "quiet", "loglevel=3"),
    *("panic=-1", "tsc=reliable", "net.ifnames=0"),
    # A test plays a card while the driver of the card has its registers.
    "iomem=relaxed",
)


@dataclass(frozen=True)
class Machine:
    """A file of QEMU's arguments: one or more in each line, ``#`` begins a comment.

    ``{half}`` stands for half of the memory in MB, and ``{disks}`` for a directory with the empty
    disks a.img, b.img and c.img.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def arguments(self, **values: object) -> list[str]:
        """Return the words of the file with the placeholders replaced."""
        text = self.path.read_text()
        return [word.format(**values) for word in shlex.split(text, comments=True)]


def machines(directory: Path) -> dict[str, Machine]:
    """Return the machines of a directory by name."""
    return {path.stem: Machine(path) for path in sorted(directory.glob("*.args"))}


class Watch:
    """How long a guest may go on: ``timeout`` in total, and ``silence`` without printing; seconds.

    ``clock`` tells monotonic seconds.
    """

    def __init__(
        self, timeout: float, silence: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout = timeout
        self._silence = silence
        self._clock = clock
        self._started = self._printed = clock()

    def prints(self) -> None:
        """Tell that the guest has printed something."""
        self._printed = self._clock()

    @property
    def left(self) -> float:
        """Return the seconds until the guest is to be stopped if it prints nothing."""
        end = min(self._started + self._timeout, self._printed + self._silence)
        return max(0.0, end - self._clock())

    def check(self) -> None:
        """Raise exception.ConfigError after the timeout, and BrokenEnvironment after silence."""
        now = self._clock()
        if now >= self._started + self._timeout:
            raise exception.ConfigError(reason=f"the guest did not end within {self._timeout:g} s.")
        if now >= self._printed + self._silence:
            raise BrokenEnvironment(reason=f"the guest printed nothing for {self._silence:g} s.")


@dataclass(frozen=True)
class Guest:
    """A machine that boots for each command; ``memory`` is in MB, the others are in seconds.

    It is stopped after ``timeout``, and when it prints nothing for ``silence``; ``clock`` tells
    monotonic seconds.
    """

    parts: Parts
    machine: Machine
    memory: int
    timeout: float
    silence: float = _SILENCE
    clock: Callable[[], float] = time.monotonic

    def run(self, script: str, output: BinaryIO) -> int:
        """Run a shell script in a new guest; return its exit status.

        ``output`` gets what the serial console prints. The guest has the files of this machine,
        and what it writes is lost with its memory. Its second serial port is the monitor of its
        own QEMU (QMP). Raises exception.ConfigError when the guest does not end in time, and
        BrokenEnvironment when it falls silent, ends without a status, or QEMU itself crashes.
        """
        with tempfile.TemporaryDirectory(prefix="cyborg-kernel-") as work:
            share, disks = Path(work, "share"), Path(work, "disks")
            share.mkdir()
            disks.mkdir()
            (share / "command").write_text(script)
            for name in ("a", "b", "c"):
                with (disks / f"{name}.img").open("wb") as disk:
                    disk.truncate(_DISK)
            ended = self._boot(share, disks, output)
            status = share / "status"
            text = status.read_text().strip() if status.exists() else ""
        if text:
            return int(text)
        if ended < 0:
            # QEMU 10.0.2 did so once in some hundred runs, on a busy machine:
            # "iotlb_to_section: Assertion `section_index < ..." of physmem.c.
            raise BrokenEnvironment(reason=f"QEMU crashed ({signal.Signals(-ended).name}).")
        raise BrokenEnvironment(
            reason=f"the guest {self.machine.name} ended before its command did."
        )

    def _boot(self, share: Path, disks: Path, output: BinaryIO) -> int:
        """Run QEMU until the guest ends, or kill it. Return its exit status."""
        monitor, port = socket.socketpair()
        with closing(monitor), closing(port):
            sockets = (monitor.fileno(), port.fileno())
            command = self._command(share, disks, sockets)
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=sockets,
            ) as qemu:
                assert qemu.stdout is not None
                try:
                    self._relay(qemu.stdout.fileno(), output)
                except BaseException:
                    qemu.kill()
                    raise
        return qemu.returncode

    def _relay(self, console: int, output: BinaryIO) -> None:
        """Write what the guest prints until QEMU closes the console."""
        watch = Watch(self.timeout, self.silence, self.clock)
        while True:
            if select.select([console], [], [], watch.left)[0]:
                chunk = os.read(console, _CHUNK)
                if not chunk:
                    return
                watch.prints()
                output.write(chunk.translate(None, _NO_OUTPUT))
                output.flush()
            watch.check()

    def _command(self, share: Path, disks: Path, sockets: tuple[int, int]) -> list[str]:
        monitor, port = sockets
        parameters = " ".join((*_PARAMETERS, f"cyborg.machine={self.machine.name}"))
        return [
            *self.parts.qemu,
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", f"{self.memory}M"),
            *("-kernel", str(self.parts.kernel), "-initrd", str(self.parts.initramfs)),
            *("-append", parameters, "-serial", "stdio"),
            *("-chardev", f"socket,id=port,fd={port}", "-serial", "chardev:port"),
            *("-chardev", f"socket,id=monitor,fd={monitor}"),
            *("-mon", "chardev=monitor,mode=control"),
            *_shared("tree", Path("/"), "readonly=on,multidevs=remap"),
            *_shared("run", share, "readonly=off"),
            *self.machine.arguments(half=self.memory // 2, disks=_quoted(disks)),
        ]


def _shared(tag: str, path: Path, options: str) -> list[str]:
    """Return QEMU's arguments for a directory that the guest mounts by its tag."""
    return [
        *("-fsdev", f"local,id={tag},path={_quoted(path)},security_model=none,{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _quoted(path: Path) -> str:
    """Return a path for an option of QEMU, where a comma ends the value unless it is doubled."""
    return str(path).replace(",", ",,")
