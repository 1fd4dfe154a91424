# SPDX-License-Identifier: Apache-2.0
"""cyborg-signing-key: the life of keys, and what it refuses."""

import os
from pathlib import Path

import pytest

from cyborg.cmd.signing_key import main
from cyborg.rpc import keys
from cyborg.rpc.keys import API, HOST

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "master.json"
    assert main(["create", str(path)]) == 0
    return path


def ids(path: Path) -> list[str]:
    return [key.id for key in keys.read(path).keys]


def test_create_writes_one_key_and_says_what_to_do_next(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "master.json"
    assert main(["create", str(file)]) == 0
    said = capsys.readouterr().out
    assert len(ids(file)) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    assert f"Copy {file} to every controller" in said
    assert "'cyborg-signing-key derive' for every host" in said
    assert keys.read(file).keys[0].secret.hex() not in said
    before = file.read_bytes()
    assert main(["create", str(file)]) == 1
    assert f"{file} exists. The command add" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_key_is_replaced_in_three_steps(file: Path, capsys: Captured) -> None:
    (old,) = ids(file)
    assert main(["promote", str(file)]) == 1
    assert "is the only key" in capsys.readouterr().err
    assert main(["add", str(file)]) == 0
    _, new = ids(file)
    assert ids(file) == [old, new]
    assert main(["remove", str(file), old]) == 1
    assert f"The key {old} signs messages" in capsys.readouterr().err
    assert main(["promote", str(file)]) == 0
    assert ids(file) == [new, old]
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out.endswith(f"master keys:\n{new} (signs)\n{old}\n")
    assert main(["remove", str(file), old]) == 0
    assert ids(file) == [new]
    assert main(["remove", str(file), old]) == 1
    assert f"has no key {old}" in capsys.readouterr().err


def test_derive_writes_files_of_hosts_and_of_the_api(
    file: Path, tmp_path: Path, capsys: Captured
) -> None:
    output = tmp_path / "derived.json"
    assert main(["derive", str(file), "--host", "compute-1", "--output", str(output)]) == 0
    assert "Move it to the host compute-1" in capsys.readouterr().out
    assert keys.read(output) == keys.read(file).derived(HOST, "compute-1")
    assert main(["show", str(output)]) == 0
    assert capsys.readouterr().out.startswith("host keys of the host compute-1:")
    assert main(["derive", str(file), "--api", "--output", str(output)]) == 0
    assert keys.read(output) == keys.read(file).derived(API, "")
    assert output.stat().st_mode & 0o777 == 0o600
    for command in (["add"], ["promote"]):
        assert main([*command, str(output)]) == 1
        assert "holds no master keys" in capsys.readouterr().err


def test_derive_never_overwrites_master_keys(file: Path, capsys: Captured) -> None:
    before = file.read_bytes()
    assert main(["derive", str(file), "--host", "a", "--output", str(file)]) == 1
    assert "holds master keys, which would be lost" in capsys.readouterr().err
    assert main(["derive", str(file), "--host", "", "--output", "x"]) == 1
    assert file.read_bytes() == before


def test_files_that_cannot_be_used_are_named(tmp_path: Path, capsys: Captured) -> None:
    assert main(["show", str(tmp_path / "none")]) == 1
    assert "none cannot be read: No such file" in capsys.readouterr().err
    assert main(["create", os.fspath(tmp_path / "none" / "file")]) == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_keys_of_a_host_are_revoked_in_a_list_beside_the_file(file: Path, capsys: Captured) -> None:
    (first,) = ids(file)
    assert main(["revoke", str(file), "--host", "compute-1"]) == 0
    assert f"{file}.revoked" in capsys.readouterr().out
    assert main(["add", str(file)]) == 0
    assert main(["revoke", str(file), "--host", "compute-2"]) == 0
    second = ids(file)[1]
    expected = {("compute-1", first), ("compute-2", first), ("compute-2", second)}
    assert keys.read_revoked(file) == expected
    capsys.readouterr()
    assert main(["show", str(file)]) == 0
    assert f"{first} of the host compute-1 is revoked" in capsys.readouterr().out
    assert main(["revoke", str(file), "--host", ""]) == 1
    keys.revoked_file(file).write_text("{")
    assert main(["revoke", str(file), "--host", "compute-3"]) == 1
    assert keys.revoked_file(file).read_text() == "{"
