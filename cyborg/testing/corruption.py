# SPDX-License-Identifier: Apache-2.0
"""Break a simulated host at random, but in the same way for the same seed."""

import errno
import random

from cyborg import exception
from cyborg.testing.fake_host import FakeHost

_GARBAGE = (
    b"",
    b"\n",
    b"\0\0\0\0",
    b"0xffff\n",
    b"0x0000\n",
    b"-1\n",
    b"0xzz\n",
    b"99999999999999999999999999\n",
    b"\xff\xfe\xfd",
    "☃ \U0001f4a5\n".encode(),
    b"a b c d e f g h i j k l m n o p\n" * 3,
    b"0x10de" * 100_000,
)
_ERRORS = (errno.EIO, errno.EACCES, errno.ENODEV, errno.ENOENT, errno.EBUSY, errno.EINVAL)
_TARGETS = ("", "/", "..", "../../../../../../../etc/passwd", "loop", "/nowhere/at/all", "☃")
_NAMES = ("0000:zz:00.0", "0000:00:1f.9", "0000:00:3f.0", "00:00.0", "☃", "x" * 255)


_FUNCTIONS = "/sys/bus/pci/devices"
_UEVENTS = (
    "",
    "=\n=\n",
    "PCI_ID=\nPCI_CLASS=\n",
    "PCI_ID=zzzz:0000\nPCI_CLASS=30200\n",
    "PCI_ID=FFFF:FFFF\nPCI_CLASS=FFFFFF\n",
    "PCI_CLASS=123456789\nPCI_ID=10DE:20B5\n",
    # Valid, but no device has this identity.
    "DRIVER=\nPCI_CLASS=FF0000\nPCI_ID=0BAD:0BAD\nPCI_SUBSYS_ID=x\n",
    "DRIVER=vfio-pci\nPCI_CLASS=FF0000\nPCI_ID=0BAD:0BAD\nPCI_SLOT_NAME=0000:00:00.0\n",
    "DRIVER=\0☃\n" * 100,
)
_GROUPS = ("/sys/kernel/iommu_groups/1", "/sys/kernel/iommu_groups/☃", "1", *_TARGETS)
_PARTS = ("5a1fbd6e-6f5c-4c59-9c0b-6d1f1f0d3c11", "☃", "0000:00:00.0")
_LISTS = (
    "/proc/self/mountinfo",
    "/proc/1/mountinfo",
    "/proc/swaps",
    "/.cyborg-network",
)
_LINES = (
    b"27 1\n",
    b"27 1 259:1 / / rw - ext4 /dev/x rw\n",
    b"/dev/\n/dev\n",
    b"eno1\n",
    b"eno1 default-route\nx y z\n",
    b"\xff" * 100,
)


def corrupt(host: FakeHost, rng: random.Random) -> str:
    """Break one thing; the answer tells what, for the message of a test that fails."""
    if rng.random() < 0.4:
        files = rng.choice((_identity, _group, _parts, _list))
        return f"{files.__name__[1:]} {files(host, rng)}"
    how = rng.choice((_garbage, _lose, _lose_directory, _fault, _relink, _stray, _vanish))
    path = rng.choice(host.paths() or ["/"])
    how(host, rng, path)
    return f"{how.__name__[1:]} {path}"


def _identity(host: FakeHost, rng: random.Random) -> str:
    """Write the file that tells what a function is."""
    path = f"{_function(host, rng)}/uevent"
    host.add_file(path, rng.choice(_UEVENTS))
    return path


def _group(host: FakeHost, rng: random.Random) -> str:
    """Take the IOMMU group of a function away, or link it elsewhere."""
    path = f"{_function(host, rng)}/iommu_group"
    host.remove(path)
    if rng.random() < 0.8:
        host.add_link(path, rng.choice(_GROUPS))
    return path


def _parts(host: FakeHost, rng: random.Random) -> str:
    """Write the lists of the mediated devices of a function, or add a device to that of the bus."""
    function, part = _function(host, rng), rng.choice(_PARTS)
    kind = f"{function}/mdev_supported_types/{rng.choice(_NAMES)}"
    path = rng.choice(
        (f"{kind}/available_instances", f"{kind}/devices/{part}", f"/sys/bus/mdev/devices/{part}")
    )
    if path.endswith("instances"):
        host.add_file(path, rng.choice((b"0\n", b"4\n", *_GARBAGE)))
    else:
        host.add_link(path, rng.choice((f"{function}/{part}", *_TARGETS)))
    return path


def _list(host: FakeHost, rng: random.Random) -> str:
    """Damage a list below /proc that tells what the host uses."""
    path = _real(host, rng.choice(_LISTS))
    match rng.randrange(3):
        case 0:
            host.remove(path)
        case 1:
            host.faults[path] = rng.choice(_ERRORS)
        case _:
            host.add_file(path, rng.choice(_LINES) + (host.content(path) or b""))
    return path


def _function(host: FakeHost, rng: random.Random) -> str:
    """Return the real directory of a function."""
    names = [path for path in host.paths() if path.startswith(f"{_FUNCTIONS}/")]
    return _real(host, rng.choice(names or [f"{_FUNCTIONS}/{_NAMES[2]}"]))


def _real(host: FakeHost, path: str) -> str:
    try:
        return host.realpath(path)
    except exception.CyborgError:
        return path


def _garbage(host: FakeHost, rng: random.Random, path: str) -> None:
    if host.content(path) is not None:
        host.add_file(path, rng.choice(_GARBAGE))


def _lose(host: FakeHost, rng: random.Random, path: str) -> None:
    host.remove(path)


def _lose_directory(host: FakeHost, rng: random.Random, path: str) -> None:
    host.remove(path.rpartition("/")[0])


def _fault(host: FakeHost, rng: random.Random, path: str) -> None:
    host.faults[rng.choice((path, path.rpartition("/")[0]))] = rng.choice(_ERRORS)


def _relink(host: FakeHost, rng: random.Random, path: str) -> None:
    if host.content(path) is None:
        host.add_link(path, rng.choice((*_TARGETS, path)))


def _stray(host: FakeHost, rng: random.Random, path: str) -> None:
    host.add_link(f"{path.rpartition('/')[0]}/{rng.choice(_NAMES)}", rng.choice(_TARGETS))


def _vanish(host: FakeHost, rng: random.Random, path: str) -> None:
    host.vanish(path.rpartition("/")[0], after=rng.randrange(200))
