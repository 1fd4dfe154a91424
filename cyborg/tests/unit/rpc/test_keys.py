# SPDX-License-Identifier: Apache-2.0
"""Keys: what follows from a master key, which files are refused, and files that change."""

import json
import os
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.rpc import keys
from cyborg.rpc.keys import API, CONTROLLER, HOST, MASTER, Key, KeyRing, Keys

FIRST = Key("first", bytes(range(32)))
SECOND = Key("second", bytes(32))
#: HKDFExpand of the package cryptography (SHA-256, 32 bytes) for FIRST, and for the text that
#: consists of "cyborg message signing: " and this purpose.
EXPANDED = {
    "host compute-1": "59f80d3e94536d80deebc6dda9614092f64fbc3cd604d3670c32ac7c275c260e",
    "controller": "cc7a5d21c2797b191a8a633e41ea7a071f70b930c8a4a53d575f051db4f90354",
}
MASTERS = Keys(MASTER, CONTROLLER, (FIRST, SECOND))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    keys.write(path, MASTERS)
    return path


def test_derived_keys_are_those_of_hkdf() -> None:
    for owner, purpose in (("compute-1", "host compute-1"), (CONTROLLER, "controller")):
        assert FIRST.derive(owner).secret.hex() == EXPANDED[purpose]
    assert FIRST.derive("compute-1").id == "first"


def test_every_owner_and_master_key_has_its_own_key() -> None:
    owners = ("", "a", "b", "controller", "host a", "a ")
    secrets = {key.derive(owner).secret for key in MASTERS.keys for owner in owners}
    assert len(secrets) == 2 * len(owners)


def test_file_of_a_host_holds_only_keys_of_this_host(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    keys.write(path, MASTERS.derived(HOST, "a"))
    text = path.read_text()
    assert not any(key.secret.hex() in text for key in MASTERS.keys)
    held = keys.read(path)
    assert held.of("a") == MASTERS.of("a")
    assert held.of("b") == held.of(CONTROLLER) == ()
    keys.write(path, MASTERS.derived(API, CONTROLLER))
    assert keys.read(path).of(CONTROLLER) == MASTERS.of(CONTROLLER)
    assert keys.read(path).of("a") == ()


def test_written_files_are_readable_by_their_owner_only(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys.read(file) == MASTERS
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


@pytest.mark.parametrize("mode", [0o604, 0o606, 0o601, 0o620, 0o660, 0o666])
def test_files_that_others_can_use_are_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(exception.ConfigError, match=f"keys.json has the mode {mode:04o}"):
        keys.read(file)
    file.chmod(0o640)
    assert keys.read(file) == MASTERS


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"kind": "master", "keys": []},
        {"kind": "other", "keys": [{"id": "a", "secret": "00" * 32}]},
        {"kind": "host", "keys": [{"id": "a", "secret": "00" * 32}]},
        {"kind": "master", "host": "h", "keys": [{"id": "a", "secret": "00" * 32}]},
        {"kind": "master", "keys": [{"id": "a", "secret": "0f" * 31}]},
        {"kind": "master", "keys": [{"id": "a b", "secret": "0f" * 32}]},
        {"kind": "master", "keys": [{"id": 7, "secret": "0f" * 32}]},
        {"kind": "master", "keys": [{"id": "a", "secret": "0f" * 32}] * 2},
        {"kind": "master", "keys": ["0f"]},
    ],
)
def test_malformed_files_are_refused_without_their_secrets(file: Path, document: object) -> None:
    file.write_text(json.dumps(document))
    with pytest.raises(exception.ConfigError) as caught:
        keys.read(file)
    assert str(caught.value) == (
        f"The file of message signing keys {file} has another form than the files that "
        "cyborg-signing-key writes."
    )
    file.write_bytes(b"\xff{")
    with pytest.raises(exception.ConfigError, match="another form"):
        keys.read(file)
    file.unlink()
    with pytest.raises(exception.ConfigError, match="cannot be read: No such file"):
        keys.read(file)


def test_changed_file_is_read_again(file: Path) -> None:
    now: list[float] = [0.0]
    errors: list[tuple[exception.ConfigError, bool]] = []
    ring = KeyRing(file, failed=lambda *error: errors.append(error), clock=lambda: now[0])
    assert [key.id for key in ring.of("a")] == ["first", "second"]
    keys.write(file, Keys(MASTER, CONTROLLER, (SECOND,)))
    assert len(ring.of("a")) == 2
    now[0] = 2.0
    assert ring.of("a") == (SECOND.derive("a"),)
    assert ring.find("a", "first") is None
    assert ring.find("a", "second") == SECOND.derive("a")
    assert errors == []


def test_unusable_change_keeps_the_previous_keys(file: Path) -> None:
    now: list[float] = [0.0]
    errors: list[tuple[exception.ConfigError, bool]] = []
    ring = KeyRing(file, failed=lambda *error: errors.append(error), clock=lambda: now[0])
    for number, text in enumerate(("{", None), 1):
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        now[0] += 2.0
        assert ring.keys == MASTERS
        now[0] += 2.0
        assert ring.keys == MASTERS
        assert len(errors) == number
    keys.write(file, Keys(MASTER, CONTROLLER, (FIRST,)))
    now[0] += 2.0
    assert len(ring.of("a")) == 1
    with pytest.raises(exception.ConfigError):
        KeyRing(file.with_name("none"), failed=lambda *error: errors.append(error))


def test_unusable_change_refuses_after_a_time(file: Path) -> None:
    now: list[float] = [0.0]
    errors: list[tuple[exception.ConfigError, bool]] = []
    ring = KeyRing(file, failed=lambda *error: errors.append(error), clock=lambda: now[0])
    file.write_text("{")
    now[0] += 2.0
    assert len(ring.of("a")) == 2
    file.unlink()
    now[0] += keys.GRACE - 2.0
    assert len(ring.of("a")) == 2
    now[0] += 4.0
    assert ring.of("a") == ()
    assert ring.find("a", "first") is None
    now[0] += 4.0
    assert ring.of("a") == ()
    assert [has_keys for _, has_keys in errors] == [True, True, False]
    keys.write(file, Keys(MASTER, CONTROLLER, (FIRST,)))
    now[0] += 2.0
    assert len(ring.of("a")) == 1


def test_revoked_key_of_one_host_neither_verifies_nor_signs(file: Path) -> None:
    now: list[float] = [0.0]
    errors: list[tuple[exception.ConfigError, bool]] = []
    ring = KeyRing(file, failed=lambda *error: errors.append(error), clock=lambda: now[0])
    assert len(ring.of("a")) == 2
    keys.write_revoked(file, frozenset({("a", "first")}))
    now[0] += 2.0
    assert ring.of("a") == (SECOND.derive("a"),)
    assert ring.find("a", "first") is None
    assert len(ring.of("b")) == len(ring.of(CONTROLLER)) == 2
    for text in ("{", '{"kind": "revoked", "keys": [7]}', '{"kind": "host", "keys": []}'):
        keys.revoked_file(file).write_text(text)
        now[0] += 2.0
        assert ring.of("a") == (SECOND.derive("a"),)
    assert len(errors) == 3
    keys.revoked_file(file).unlink()
    now[0] += 2.0
    assert len(ring.of("a")) == 2


def test_generated_keys_differ_and_have_new_ids() -> None:
    first = keys.generate()
    second = keys.generate([first.id])
    third = keys.generate([first.id, second.id])
    assert len({first.id, second.id, third.id}) == 3
    assert len({first.secret, second.secret, third.secret}) == 3


def test_failed_write_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.write(file, Keys(MASTER, CONTROLLER, (FIRST,)))
    assert keys.read(file) == MASTERS
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]
