# SPDX-License-Identifier: Apache-2.0
"""Tell whether root alone decides the value of an option: no REST request, and no other account."""

import os
from pathlib import Path

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.host import Host


def untrusted_source(conf: cfg.ConfigOpts, host: Host, option: str, group: str) -> str | None:
    """Return None if only root can change the files of this host that set the option.

    Otherwise return a reason, which continues a clause and may be empty. The values of an option
    that can be given more than once may come from any file, so all files are checked then. A file
    below state_path is not configuration of this host, because the conductor sent its content.
    """
    source = conf.get_location(option, group)
    if source is None or source.location is not cfg.Locations.user:
        return ""
    files = [source.detail]
    # oslo.config has no public method that returns an option.
    if conf._get_opt_info(option, group)["opt"].multi:
        files = [os.fspath(file) for file in conf.config_file or ()]
        for directory in conf.config_dir or ():
            files += [os.fspath(file) for file in sorted(Path(directory).glob("*.conf"))]
    state = os.path.realpath(conf.state_path)
    for name in files:
        file = os.path.realpath(name)
        if os.path.commonpath([file, state]) == state:
            return f"; {file} is below state_path"
        try:
            writable = host.writable_by_others(os.path.abspath(name))
        except exception.HostError as error:
            return f": {error}".rstrip(".")
        if writable is not None:
            return f"; others can change {writable}"
    return None
