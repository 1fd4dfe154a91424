# SPDX-License-Identifier: Apache-2.0
"""The keys that sign messages on the bus, and the files that hold them.

The file of a controller holds master keys. From each of them follows a key for every compute host
and one for the API. The file of a host holds only the keys of this host, so that a host that is
taken over can neither sign for another host nor for the API. A file may hold several keys: the
first one signs, all of them verify. Every key has the ID of its master key.

A file may have a list of revoked keys beside it, ``NAME.revoked``: pairs of the name of a host and
an ID. What one of these keys signs is refused, and nothing is signed with it.
"""

import hmac
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from cyborg import exception

#: The owner of the key that API and conductors share. Every other owner is the name of a host.
CONTROLLER: Final = ""
#: The kinds of files.
MASTER: Final = "master"
API: Final = "api"
HOST: Final = "host"
#: The kind of a list of revoked keys.
REVOKED: Final = "revoked"
#: Revoked keys: the names of hosts, and the IDs of keys.
Revoked = frozenset[tuple[str, str]]

_Content = TypeVar("_Content")

_BYTES: Final = 32
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRET: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")
#: Rights that no file of keys may give: any to others, and writing to the group.
_TOO_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP
#: How often a file is compared with what was read, in seconds.
_INTERVAL: Final = 1.0
#: How long the keys that were read stay in use after their file became unusable, in seconds.
GRACE: Final = 600.0
#: How many owners' keys are remembered; names of hosts that do not exist must not fill the memory.
_MOST_OWNERS: Final = 10_000


@dataclass(frozen=True)
class Key:
    """One key: its ID, which messages name, and its secret."""

    id: str
    secret: bytes

    def derive(self, owner: str) -> "Key":
        """Return the key of an owner that follows from this master key.

        This is HKDF-Expand of RFC 5869 with SHA-256 and one block of output.
        """
        purpose = f"host {owner}" if owner else "controller"
        info = f"cyborg message signing: {purpose}".encode() + b"\x01"
        return Key(self.id, hmac.digest(self.secret, info, "sha256"))

    def mac(self, text: bytes) -> str:
        """Return the HMAC-SHA256 of a text, in hexadecimal digits; any thread may call."""
        mac = self._empty.copy()
        mac.update(text)
        return mac.hexdigest()

    @cached_property
    def _empty(self) -> hmac.HMAC:
        # To copy it takes a fifth of the time of preparing the key for each message.
        return hmac.new(self.secret, digestmod="sha256")


@dataclass(frozen=True)
class Keys:
    """What a file holds; ``owner`` is a host for a file of the kind HOST, else CONTROLLER."""

    kind: str
    owner: str
    keys: tuple[Key, ...]

    def of(self, owner: str) -> tuple[Key, ...]:
        """Return the keys of an owner, the one that signs first; empty if they are not here."""
        if self.kind == MASTER:
            return tuple(key.derive(owner) for key in self.keys)
        return self.keys if owner == self.owner else ()

    def derived(self, kind: str, owner: str) -> "Keys":
        """Return what belongs into the file of a host or of an API; call it on master keys."""
        return Keys(kind, owner, self.of(owner))

    def dump(self) -> str:
        """Return the text of the file."""
        keys = [{"id": key.id, "secret": key.secret.hex()} for key in self.keys]
        host = {"host": self.owner} if self.kind == HOST else {}
        return json.dumps({"kind": self.kind, **host, "keys": keys}, indent=1) + "\n"


def generate(existing: Iterable[str] = ()) -> Key:
    """Return a new master key, whose ID is the time of its creation in UTC."""
    name = base = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number, taken = 1, set(existing)
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return Key(name, secrets.token_bytes(_BYTES))


def read(path: Path) -> Keys:
    """Return the keys of a file.

    Raises exception.ConfigError, which names the file but no secret, for a file that cannot be
    read, that others may read or the group may write, or whose text is not one of ``Keys.dump``.
    """
    return _read(path, _parsed)


def revoked_file(path: Path) -> Path:
    """Return where the list of revoked keys beside a file of keys is."""
    return path.with_name(f"{path.name}.revoked")


def read_revoked(path: Path) -> Revoked:
    """Return the revoked keys beside a file of keys; empty if there is no list.

    Raises exception.ConfigError as ``read`` does.
    """
    listing = revoked_file(path)
    try:
        listing.lstat()
    except FileNotFoundError:
        return frozenset()
    except OSError as fault:
        raise _unusable(listing, f"cannot be read: {fault.strerror}") from None
    return _read(listing, _parsed_revoked)


def write(path: Path, keys: Keys) -> None:
    """Replace a file at once with these keys, readable by its owner only; raises OSError."""
    _write(path, keys.dump())


def write_revoked(path: Path, revoked: Revoked) -> None:
    """Replace the list of revoked keys beside a file of keys; raises OSError."""
    pairs = [{"host": host, "id": key_id} for host, key_id in sorted(revoked)]
    _write(revoked_file(path), json.dumps({"kind": REVOKED, "keys": pairs}, indent=1) + "\n")


def _read(path: Path, parsed: Callable[[Any], _Content]) -> _Content:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except OSError as fault:
        raise _unusable(path, f"cannot be read: {fault.strerror}") from None
    if mode & _TOO_OPEN:
        raise _unusable(
            path,
            f"has the mode {stat.S_IMODE(mode):04o}: others must have no access and the group must "
            "not write. Run: chmod 0600",
        )
    try:
        return parsed(json.loads(text))
    except (ValueError, RecursionError):
        # The text of the fault may quote a secret.
        raise _unusable(
            path, "has another form than the files that cyborg-signing-key writes"
        ) from None


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class KeyRing:
    """The keys of one file that are not revoked, read again when it changes; any thread may ask.

    The same holds for its list of revoked keys. When a changed file cannot be used, the previous
    keys stay for ``GRACE`` seconds; after that the ring has no key until the file can be used.
    ``failed`` is called with the error and whether keys are left, at the change and when none is.
    The constructor raises exception.ConfigError instead.
    """

    def __init__(
        self,
        path: Path,
        *,
        failed: Callable[[exception.ConfigError, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._failed = failed
        self._clock = clock
        self._lock = threading.Lock()
        self._due = clock() + _INTERVAL
        self._derived: dict[str, tuple[Key, ...]] = {}
        #: Why the files cannot be used, and since when; None: they can.
        self._fault: tuple[exception.ConfigError, float] | None = None
        self._stamp = self._stamps()
        self._keys, self._revoked = read(path), read_revoked(path)

    @property
    def keys(self) -> Keys:
        """Return the keys of the file."""
        self._refresh()
        return self._keys

    def of(self, owner: str) -> tuple[Key, ...]:
        """Return the keys of an owner, the one that signs first; empty if they are not here."""
        self._refresh()
        derived = self._derived
        keys = derived.get(owner)
        if keys is None:
            revoked = self._revoked
            keys = tuple(key for key in self._keys.of(owner) if (owner, key.id) not in revoked)
            if len(derived) < _MOST_OWNERS:
                derived[owner] = keys
        return keys

    def find(self, owner: str, key_id: str) -> Key | None:
        """Return one key of an owner by its ID."""
        for key in self.of(owner):
            if key.id == key_id:
                return key
        return None

    def _refresh(self) -> None:
        if self._clock() < self._due:
            return
        with self._lock:
            now = self._clock()
            self._due = now + _INTERVAL
            stamp = self._stamps()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._keys, self._revoked = read(self._path), read_revoked(self._path)
                except exception.ConfigError as error:
                    self._fault = error, self._fault[1] if self._fault else now
                    self._failed(error, bool(self._keys.keys))
                else:
                    self._fault, self._derived = None, {}
            if self._fault and self._keys.keys and now - self._fault[1] > GRACE:
                self._keys, self._derived = replace(self._keys, keys=()), {}
                self._failed(self._fault[0], False)

    def _stamps(self) -> tuple[tuple[int, ...], ...]:
        return _stamp(self._path), _stamp(revoked_file(self._path))


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with a file; empty for a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _parsed(document: Any) -> Keys:
    """Return the keys of a parsed file; raises ValueError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("keys"), list):
        raise ValueError
    kind, host = document.get("kind"), document.get("host", CONTROLLER)
    is_host = kind == HOST
    if kind not in (MASTER, API, HOST) or not isinstance(host, str) or bool(host) != is_host:
        raise ValueError
    keys = tuple(_parsed_key(key) for key in document["keys"])
    if not keys or len({key.id for key in keys}) != len(keys):
        raise ValueError
    return Keys(kind, host, keys)


def _parsed_revoked(document: Any) -> Revoked:
    """Return the revoked keys of a parsed file; raises ValueError."""
    match document:
        case {"kind": "revoked", "keys": list(pairs)}:
            revoked = set()
            for pair in pairs:
                match pair:
                    case {"host": str(host), "id": str(key_id)}:
                        revoked.add((host, key_id))
                    case _:
                        raise ValueError
            return frozenset(revoked)
    raise ValueError


def _parsed_key(key: Any) -> Key:
    name, secret = (key.get("id"), key.get("secret")) if isinstance(key, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(secret, str):
        raise ValueError
    if not _ID.fullmatch(name) or not _SECRET.fullmatch(secret):
        raise ValueError
    return Key(name, bytes.fromhex(secret))


def _unusable(path: Path, reason: str) -> exception.ConfigError:
    return exception.ConfigError(reason=f"The file of message signing keys {path} {reason}.")
