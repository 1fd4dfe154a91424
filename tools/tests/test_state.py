# SPDX-License-Identifier: Apache-2.0
"""Tests of the state directory: whose it is, what is removed, what its configuration says."""

from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent.state_store import StateStore
from cyborg.conf import opts
from cyborg_tools.quickstart.state import State


def test_second_user_of_state_directory_is_refused(tmp_path: Path) -> None:
    first, second = State(tmp_path / "new"), State(tmp_path / "new")
    with first.taken(), pytest.raises(exception.ConfigError, match="another quickstart is using"):
        second.taken().__enter__()
    with second.taken():
        second.write_conf(6666, [])


def test_clean_removes_only_created_files(tmp_path: Path) -> None:
    state = State(tmp_path)
    with state.taken():
        state.write_conf(6666, [])
        StateStore(tmp_path, "vm").path.touch()
        for name in ("cyborg.sqlite", "cyborg.sqlite-wal", "placement.sqlite", "mine.txt"):
            (tmp_path / name).write_text(name)
        assert state.clean() == 5
        assert state.clean() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", "quickstart.lock"}


def test_directories_of_the_dashboard_are_private_and_removed(tmp_path: Path) -> None:
    state = State(tmp_path)
    with state.taken():
        keystone = state.place("keystone")
        assert keystone.stat().st_mode & 0o777 == 0o700
        (keystone / "fernet-keys").mkdir()
        (keystone / "fernet-keys" / "0").write_text("secret")
        assert state.place("keystone") == keystone
        assert state.clean() == 1
    assert {path.name for path in tmp_path.iterdir()} == {"quickstart.lock"}


def test_configuration_has_what_keystone_needs(tmp_path: Path) -> None:
    state = State(tmp_path)
    options = {"api": {"auth_strategy": "keystone"}, "keystone_authtoken": {"password": "a$b"}}
    with state.taken():
        assert "auth_strategy = noauth" in state.write_conf(6666, []).read_text()
        text = state.write_conf(6666, [], authentication=options).read_text()
    assert "noauth" not in text
    assert "[keystone_authtoken]\npassword = a$$b\n" in text


def test_files_of_earlier_runs_become_private(tmp_path: Path) -> None:
    state = State(tmp_path / "new")
    with state.taken():
        file = state.write_conf(6666, [])
        assert state.directory.stat().st_mode & 0o777 == 0o700
        assert file.stat().st_mode & 0o777 == 0o600
    database = state.directory / "cyborg.sqlite"
    for path in (file, database):
        path.write_text("")
        path.chmod(0o644)
    with state.taken():
        state.write_conf(6666, [])
    assert {path.stat().st_mode & 0o777 for path in (file, database)} == {0o600}


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "cyborg.sqlite"
    theirs.write_text("precious")
    with pytest.raises(exception.ConfigError, match=r"holds cyborg\.sqlite.*--state"):
        State(tmp_path).taken().__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["cyborg.sqlite"]


@pytest.mark.parametrize("name", ["file/below", "file"])
def test_unusable_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(exception.ConfigError, match=r"cannot be used \(.*\); .*--state"):
        State(tmp_path / name).taken().__enter__()


def test_path_with_special_characters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="characters"):
        State(tmp_path / "a$b").taken().__enter__()


def test_configuration_has_given_options(tmp_path: Path) -> None:
    directory = tmp_path / "with space#and%signs"
    state = State(directory)
    with state.taken():
        file = state.write_conf(7777, ['{"address":\n "$host"}', "[]"])
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
    assert (conf.api.port, conf.api.auth_strategy) == (7777, "noauth")
    assert conf.api.host_ip == "127.0.0.1"
    assert conf.agent.enabled_drivers == ["pci_driver", "fake_driver"]
    assert conf.pci.passthrough_whitelist == ['{"address":  "$host"}', "[]"]
    assert conf.database.connection == state.database_url
    assert conf.state_path == str(directory)
