# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --recovered`` writes what the agent of the host reads."""

import io
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.agent.state_store import LastingFaults, StateStore
from cyborg.cmd import recovered


def configured(directory: Path, device: str) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    configuration.opts.register_opts(conf)
    conf.register_cli_opts(recovered.OPTIONS)
    conf(["--recovered", device], default_config_files=[], default_config_dirs=[])
    conf.set_override("state_path", str(directory))
    conf.set_override("host", "compute-1")
    return conf


def test_mark_is_read_once(tmp_path: Path) -> None:
    out = io.StringIO()
    assert recovered.run(configured(tmp_path, "pci_driver/0000:81:00.0"), out) == 0
    assert out.getvalue() == (
        "The agent forgets the faults of 0000:81:00.0 at its next check, and accepts its settings "
        "as they are.\n"
    )
    faults = LastingFaults(StateStore(tmp_path, "compute-1"))
    assert faults.take_recovered() == {("pci_driver", "0000:81:00.0")}
    assert faults.take_recovered() == set()


@pytest.mark.parametrize("device", ["0000:81:00.0", "/0000:81:00.0", "pci_driver/"])
def test_device_without_a_driver_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(exception.ConfigError, match="is not DRIVER/DEVICE"):
        recovered.run(configured(tmp_path, device), io.StringIO())


def test_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = io.StringIO()
    assert recovered.run(configured(tmp_path / "file", "pci_driver/0000:81:00.0"), out) == 1
    assert "cannot be written" in out.getvalue()
