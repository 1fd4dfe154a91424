# SPDX-License-Identifier: Apache-2.0
"""Configurations for the tests of drivers."""

from pathlib import Path

from oslo_config import cfg

from cyborg.conf import opts


def written(file: Path, text: str, host: str = "compute-1") -> cfg.ConfigOpts:
    """Write the text to the file and return the service's options from it."""
    file.write_text(f"[DEFAULT]\nhost = {host}\n{text}")
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
    return conf


def configured(*whitelist: str, host: str = "compute-1") -> cfg.ConfigOpts:
    """Return the service's options with this whitelist, without a file."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project="cyborg", default_config_files=[], default_config_dirs=[])
    conf.set_override("host", host)
    conf.set_override("passthrough_whitelist", list(whitelist), "pci")
    return conf
