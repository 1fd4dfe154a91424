# SPDX-License-Identifier: Apache-2.0
"""Break a simulated host at random, but in the same way for the same seed."""

import errno
import random

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


def corrupt(host: FakeHost, rng: random.Random) -> str:
    """Break one thing; the answer tells what, for the message of a test that fails."""
    how = rng.choice((_garbage, _lose, _lose_directory, _fault, _relink, _stray, _vanish))
    path = rng.choice(host.paths() or ["/"])
    how(host, rng, path)
    return f"{how.__name__[1:]} {path}"


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
