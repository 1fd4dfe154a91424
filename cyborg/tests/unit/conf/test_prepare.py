# SPDX-License-Identifier: Apache-2.0
"""Reading the configuration: where from, what is refused at start and with which words."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import exception, version


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Give the root logger back the handlers and level that it had."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "given.conf"


def prepare(*argv: str, **keywords: object) -> cfg.ConfigOpts:
    """Prepare a configuration of its own, as ``cyborg-agent`` does with the global one."""
    return cyborg_conf.prepare(argv, prog="cyborg-agent", conf=cfg.ConfigOpts(), **keywords)  # type: ignore[arg-type]


def test_corrected_file_is_read_by_the_same_process(file: Path) -> None:
    file.write_text("[api]\nport = many\n")
    conf = cfg.ConfigOpts()
    arguments = ["--config-file", str(file)]
    with pytest.raises(exception.ConfigError, match="port cannot be 'many'"):
        cyborg_conf.prepare(arguments, prog="cyborg-api", conf=conf)
    file.write_text("[api]\nport = 7777\n")
    assert cyborg_conf.prepare(arguments, prog="cyborg-api", conf=conf).api.port == 7777


def test_directory_without_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "10-api.conf").write_text("[api]\nport = 7777\n")
    (tmp_path / "20-api.conf").write_text("[api]\nport = 8888\n")
    assert prepare("--config-dir", str(tmp_path)).api.port == 8888


def test_given_files_replace_default_paths(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cyborg.conf").write_text("[api]\nport = 7777\n")
    (tmp_path / "cyborg.conf.d").mkdir()
    (tmp_path / "cyborg.conf.d" / "more.conf").write_text("[api]\nport = 7777\n")
    file.write_text("[agent]\nheartbeat_interval = 0.5\n")
    conf = prepare(default_config_files=[str(file)])
    assert (conf.api.port, conf.agent.heartbeat_interval) == (6666, 0.5)


def test_unknown_options_and_sections_are_ignored(file: Path) -> None:
    file.write_text(
        "[DEFAULT]\nauth_strategy = keystone\n[service_catalog]\nos_region_name = one\n"
        "[conductor]\nautomated_clean = true\n[nova]\nendpoint_type = internalURL\n"
        "[vgpu_nvidia-35]\ndevice_addresses = 0000:84:00.0\n[backend_defaults]\nremoteable = x\n"
    )
    assert prepare("--config-file", str(file)).conductor.lease == 3


RANGE = "it must be between 0 and 15"
#: Option → value that is refused, and words of the sentence.
INVALID = [
    ("[api] port", "99999999", ""),
    ("[api] auth_strategy", "none", ""),
    ("[api] public_endpoint", "ftp://x", ""),
    ("[api] host_ip", "300.1.1.1", ""),
    ("[api] max_units_per_group", "many", ""),
    ("[agent] resource_provider_startup_retries", "-1", ""),
    ("[DEFAULT] host", "two words", ""),
    ("[DEFAULT] thread_pool_size", "0", ""),
    ("[database] max_retries", "often", ""),
    ("[database] mysql_wsrep_sync_wait", "16", RANGE),
    ("[database] mysql_wsrep_sync_wait", "-1", RANGE),
    ("[nova] timeout", "soon", ""),
    ("[conductor] lease", "1", ""),
    ("[conductor] lease", "3.5\nheartbeat = 4", ""),
    ("[conductor] agent_grace", "30", ""),
    ("[nvme] cleanup_timeout", "59", ""),
]


@pytest.mark.parametrize(("option", "value", "words"), INVALID)
def test_invalid_value_is_named_in_one_line(
    file: Path, option: str, value: str, words: str
) -> None:
    group, name = option.split()
    file.write_text(f"{group}\n{name} = {value}\n")
    with pytest.raises(exception.ConfigError) as refused:
        prepare("--config-file", str(file))
    sentence = str(refused.value)
    assert option in sentence
    assert value.partition("\n")[0] in sentence
    assert words in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_invalid_reference_names_its_option(file: Path) -> None:
    file.write_text("[DEFAULT]\nstate_path = $nowhere/x\n")
    with pytest.raises(exception.ConfigError, match=r"\[DEFAULT\] state_path .*nowhere"):
        prepare("--config-file", str(file))


def test_missing_source_is_named(tmp_path: Path) -> None:
    for argument in ("--config-file", "--config-dir", "--log-dir"):
        with pytest.raises(exception.ConfigError, match="not-there"):
            prepare(argument, str(tmp_path / "not-there"))


def test_broken_file_is_named_with_its_line(file: Path) -> None:
    file.write_text("[api]\nport = 1\n[agent\n")
    with pytest.raises(exception.ConfigError, match=r"given\.conf:3"):
        prepare("--config-file", str(file))


def test_log_file_is_named_after_the_program(tmp_path: Path) -> None:
    prepare("--log-dir", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["cyborg-agent.log"]


def test_options_registered_later_are_checked_too(file: Path) -> None:
    file.write_text("[oslo_messaging_rabbit]\nheartbeat_rate = none\n")
    conf = prepare("--config-file", str(file))
    conf.register_opts([cfg.IntOpt("heartbeat_rate")], group="oslo_messaging_rabbit")
    with pytest.raises(exception.ConfigError, match=r"\[oslo_messaging_rabbit\] heartbeat_rate"):
        cyborg_conf.validate(conf)


def test_version_option_prints_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        prepare("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == version.installed()
