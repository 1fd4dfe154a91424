# SPDX-License-Identifier: Apache-2.0
"""The contexts of oslo.privsep, and the one function that each of them exports.

This module is imported where an action runs and where the first one is sent, because oslo.privsep
takes long to import. oslo.privsep finds contexts and functions by the names of this module, so they
are its variables. ``actions`` gives the reason for each capability.
"""

import functools
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep.priv_context import PrivContext

from cyborg import exception
from cyborg.conf.agent import PRIVILEGED_FUNCTIONS, PRIVILEGED_SOCKET
from cyborg.drivers.host import LocalHost
from cyborg.drivers.privileged.action import Context
from cyborg.drivers.privileged.actions import load
from cyborg.drivers.privileged.client import Client, Export
from cyborg.drivers.privileged.guard import Guard
from cyborg.drivers.privileged.kernel import LinuxKernel

#: What a function of a context returns for a result; an error has its kind in this place.
RESULT: Final = "result"


#: The group of the settings of the process, which its program sets: the socket on which it listens,
#: the list of functions, and the directory for copies of files.
PROCESS: Final = "privileged_process"
cfg.CONF.register_opts(
    [
        cfg.StrOpt("socket", default=PRIVILEGED_SOCKET),
        cfg.StrOpt("functions", default=PRIVILEGED_FUNCTIONS),
        cfg.StrOpt("copies"),
    ],
    group=PROCESS,
)
#: The program of oslo.privsep, which starts a process for one context.
_HELPER: Final = "privsep-helper"


def _context(kind: Context, timeout: float, *allowed: int) -> PrivContext:
    """Return a context; ``timeout`` is how long the agent waits for an action, in seconds."""
    return PrivContext(
        __name__,
        cfg_section=f"privileged_{kind}",
        pypath=f"{__name__}.{kind}",
        capabilities=allowed,
        timeout=timeout,
    )


# The removal of a VF that a guest uses can take minutes. A format may take half an hour.
sysfs = _context(Context.SYSFS, 600.0, capabilities.CAP_DAC_OVERRIDE)
network = _context(Context.NETWORK, 120.0, capabilities.CAP_NET_ADMIN)
nvme = _context(
    *(Context.NVME, 3600.0, capabilities.CAP_SYS_ADMIN, capabilities.CAP_DAC_READ_SEARCH)
)
vendor = _context(
    *(Context.VENDOR, 600.0, capabilities.CAP_SYS_ADMIN, capabilities.CAP_DAC_OVERRIDE)
)
observe = _context(
    *(Context.OBSERVE, 60.0, capabilities.CAP_SYS_PTRACE, capabilities.CAP_DAC_READ_SEARCH),
    capabilities.CAP_SYSLOG,
)


@functools.cache
def _kernel() -> LinuxKernel:
    return LinuxKernel(copies=cfg.CONF[PROCESS].copies)


@functools.cache
def _guard() -> Guard:
    """Return what judges the actions of this process.

    It asks a process of the context OBSERVE who holds a device. Without a socket, this process was
    started by root through the helper of oslo.privsep, and starts another one in the same way.
    """
    settings = cfg.CONF[PROCESS]
    helper = None
    if os.path.basename(sys.argv[0]) == _HELPER:
        files = (f"--config-file={file}" for file in cfg.CONF.config_file or ())
        helper = shlex.join([sys.executable, sys.argv[0], *files])
    observer = Client(
        socket_path=settings.socket,
        helper_command=helper,
        exports=lambda: EXPORTS,
        journal=lambda line: None,
        root_only=True,
    )
    return Guard(LocalHost(privileged=observer), _kernel(), settings.functions)


def _answer(kind: Context, name: object, values: object) -> tuple[str, Any]:
    """Run an action and return its result, or the kind and the fields of its error."""
    try:
        action = load(kind, name, values)
        _guard().check(action)
        return RESULT, action.run(_kernel())
    except (exception.Invalid, exception.HostError) as error:
        return error.kind, error.fields


@sysfs.entrypoint
def run_sysfs(name: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    return _answer(Context.SYSFS, name, values)


@network.entrypoint
def run_network(name: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    return _answer(Context.NETWORK, name, values)


@nvme.entrypoint
def run_nvme(name: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    return _answer(Context.NVME, name, values)


@vendor.entrypoint
def run_vendor(name: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    return _answer(Context.VENDOR, name, values)


@observe.entrypoint
def run_observe(name: str, values: Mapping[str, Any]) -> tuple[str, Any]:
    return _answer(Context.OBSERVE, name, values)


EXPORTS: Final[Mapping[Context, Export]] = {
    kind: Export(context, function, f"{__name__}.run_{kind}")
    for kind, context, function in (
        (Context.SYSFS, sysfs, run_sysfs),
        (Context.NETWORK, network, run_network),
        (Context.NVME, nvme, run_nvme),
        (Context.VENDOR, vendor, run_vendor),
        (Context.OBSERVE, observe, run_observe),
    )
}
