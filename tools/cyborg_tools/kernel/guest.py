# SPDX-License-Identifier: Apache-2.0
"""Run one command in a guest: QEMU without KVM, on the read-only tree of this machine."""

import shlex
import signal
import socket
import subprocess
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from cyborg import exception
from cyborg_tools.kernel.build import Parts

#: Bytes of a disk; the file on the host is sparse.
_DISK: Final = 64 * 1024 * 1024
_CHUNK: Final = 64 * 1024
#: How often a guest boots for a command while QEMU itself crashes. QEMU 10.0.2 did so once in some
#: hundred runs, on a busy machine: "iotlb_to_section: Assertion `section_index < ..." of physmem.c.
_ATTEMPTS: Final = 3
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


@dataclass(frozen=True)
class Guest:
    """A machine that boots for each command; ``memory`` is in MB, ``timeout`` in seconds."""

    parts: Parts
    machine: Machine
    memory: int
    timeout: float

    def run(self, script: str, output: BinaryIO) -> int:
        """Run a shell script in a new guest; return its exit status.

        ``output`` gets what the serial console prints. The guest has the files of this machine,
        and what it writes is lost with its memory. Its second serial port is the monitor of its
        own QEMU (QMP). If QEMU itself crashes, which says nothing about the command, the script
        runs again in another guest, and ``output`` says so. Raises exception.ConfigError when the
        guest does not end in time, ends without a status, or QEMU has crashed each time.
        """
        for attempt in range(_ATTEMPTS):
            status, crash = self._attempt(script, output)
            if status is not None:
                return status
            if crash is None:
                raise exception.ConfigError(
                    reason=f"the guest {self.machine.name} ended before its command did."
                )
            words = f"kernel: QEMU crashed ({crash}), attempt {attempt + 1} of {_ATTEMPTS}\n"
            output.write(words.encode())
        raise exception.ConfigError(reason=f"QEMU crashed {_ATTEMPTS} times.")

    def _attempt(self, script: str, output: BinaryIO) -> tuple[int | None, str | None]:
        """Run a script in one guest; return its status, and the signal if QEMU died of one."""
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
        return int(text) if text else None, signal.Signals(-ended).name if ended < 0 else None

    def _boot(self, share: Path, disks: Path, output: BinaryIO) -> int:
        """Run QEMU until the guest ends; kill it after the timeout. Return its exit status."""
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
                expired = threading.Event()

                def expire() -> None:
                    expired.set()
                    qemu.kill()

                timer = threading.Timer(self.timeout, expire)
                timer.start()
                try:
                    assert qemu.stdout is not None
                    while chunk := qemu.stdout.read1(_CHUNK):  # type: ignore[attr-defined]
                        output.write(chunk.replace(b"\r", b""))
                        output.flush()
                except BaseException:
                    qemu.kill()
                    raise
                finally:
                    timer.cancel()
        if expired.is_set():
            raise exception.ConfigError(
                reason=f"the guest {self.machine.name} did not end within {self.timeout:g} s."
            )
        return qemu.returncode

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
