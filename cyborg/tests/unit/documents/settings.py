# SPDX-License-Identifier: Apache-2.0
"""Checks blocks of configuration: our own file, and what stands in those of others.

A block of INI is for ``cyborg.conf`` unless its caption names another file or its sections are
those of uWSGI or systemd. Each function raises ValueError with a sentence that names the option.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from keystoneauth1 import loading
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_log import log
from oslo_messaging import opts as oslo_messaging
from oslo_middleware import opts as oslo_middleware
from oslo_policy import opts as oslo_policy

from cyborg import conf as configuration
from cyborg import exception
from cyborg.conf import generic, opts
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.pci import PciDriver
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.documents.shell import ROOT

#: Groups that hold an account, whose options depend on how it is authenticated.
ACCOUNTS = ("keystone_authtoken", "nova", "placement", "glance", "service_user")
#: What the documents may say in files of other services: option by section, by name of the file.
OTHERS: dict[str, dict[str, set[str]]] = {
    "nova.conf": {
        "DEFAULT": {"debug"},
        "compute": {"resource_provider_association_refresh"},
        "cyborg": {"service_type", "region_name", "valid_interfaces", "endpoint_override"},
        "filter_scheduler": {"pci_in_placement"},
        "pci": {"alias", "device_spec", "report_in_placement"},
        "service_user": {"send_service_user_token"},
    },
    "neutron.conf": {"DEFAULT": {"service_plugins"}},
    "ml2_conf.ini": {"ml2": {"extension_drivers", "mechanism_drivers"}},
}
SERVERS = {"uwsgi", "Unit", "Service", "Install", "Socket", "Path", "Timer"}
_UWSGI = {
    "add-header", "buffer-size", "chdir", "die-on-term", "enable-threads", "env", "exec-asap",
    "exit-on-reload", "gid", "harakiri", "hook-master-start", "http", "http-socket", "lazy-apps",
    "logto", "manage-script-name", "master", "max-requests", "module", "mount", "need-app",
    "plugin", "plugins", "processes", "procname", "procname-prefix", "pyargv", "pyhome",
    "reload-mercy", "safe-pidfile", "single-interpreter", "socket", "start-time", "strict",
    "thunder-lock", "threads", "uid", "umask", "unsafe-pidfile", "vacuum", "virtualenv",
    "worker-reload-mercy", "wsgi-file", "wsgi-disable-file-wrapper", "stats",
}  # fmt: skip


def as_ini(text: str, caption: str = "") -> None:
    """Options that there are, with values that their owner takes."""
    if text.startswith("[[local|"):
        as_local_conf(text)
        return
    found = parsed(text)
    names = {section for section, _, _ in found}
    if names <= SERVERS:
        if "uwsgi" in names:
            _uwsgi(found)
        return
    for name, known in OTHERS.items():
        if name in caption:
            _foreign(name, known, found)
            return
    _ours(text, found)


def parsed(text: str) -> list[tuple[str, str, str]]:
    """Section, option and value of each line that sets one; raises ValueError."""
    found: list[tuple[str, str, str]] = []
    section = ""
    for line in text.split("\n"):
        plain = line.strip()
        if not plain or plain.startswith(("#", ";")):
            continue
        if header := re.fullmatch(r"\[([^\[\]]+)\]", plain):
            section = header[1]
            continue
        if line[0].isspace() and found:  # goes on
            where, name, value = found[-1]
            found[-1] = (where, name, f"{value}\n{plain}")
            continue
        name, sign, value = plain.partition("=")
        if not sign or not section:
            raise ValueError(f"'{plain}' is no option in a section")
        found.append((section, name.strip(), value.strip()))
    if not found:
        raise ValueError("no option is set")
    return found


def as_apache(text: str) -> None:
    """Sections that are closed, and a script that there is."""
    opened: list[str] = []
    for tag in re.findall(r"^\s*<(/?\w+)", text, re.MULTILINE):
        if not tag.startswith("/"):
            opened.append(tag)
        elif not opened or opened.pop() != tag[1:]:
            raise ValueError(f"<{tag}> closes nothing")
    if opened:
        raise ValueError(f"<{opened[-1]}> is not closed")
    for script in re.findall(r"WSGIScriptAlias\s+\S+\s+(\S+)", text):
        if not (ROOT / "cyborg" / script.rpartition("/cyborg/")[2]).is_file():
            raise ValueError(f"there is no script {script}")


def as_local_conf(text: str) -> None:
    """Variables that our plug-in has, and lines of devstack's."""
    plugin = "".join(path.read_text() for path in (ROOT / "devstack").rglob("*") if path.is_file())
    for line in text.split("\n"):
        name = re.match(r"(\w*(?:CYBORG|PCI_SIM)\w*)=", line)
        if name and name[1] not in plugin:
            raise ValueError(f"the plug-in has no variable {name[1]}")


def _uwsgi(found: list[tuple[str, str, str]]) -> None:
    for _, name, value in found:
        if name not in _UWSGI:
            raise ValueError(f"uWSGI has no option {name}")
        if name in {"module", "mount"}:
            module, _, attribute = value.rpartition("=")[2].partition(":")
            if importlib.util.find_spec(module) is None or not callable(
                getattr(importlib.import_module(module), attribute, None)
            ):
                raise ValueError(f"there is no application {value}")


def _foreign(name: str, known: dict[str, set[str]], found: list[tuple[str, str, str]]) -> None:
    for section, option, _ in found:
        if option not in known.get(section, set()) | _account():
            raise ValueError(f"{name} is not known to have [{section}] {option}")


def _ours(text: str, found: list[tuple[str, str, str]]) -> None:
    for section, option, _ in found:
        if option not in _names(section):
            raise ValueError(
                f"there is no option [{section}] {option} in cyborg.conf; name the file of "
                "another service in the block's caption"
            )
    _read(text)


def _read(text: str) -> None:
    """Read it as the processes do at their start, and as the drivers that have options."""
    conf = _registered()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "cyborg.conf"
        file.write_text(text)
        try:
            conf([], project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
            configuration.validate(conf)
            for driver in (GenericDriver, PciDriver):
                driver(FakeHost(), conf)
        except (cfg.Error, exception.CyborgError) as fault:
            raise ValueError(str(fault)) from fault


def _registered() -> cfg.ConfigOpts:
    """Every option that may stand in our file, those of the libraries included."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    log.register_options(conf)
    for library in (auth_token, oslo_messaging, oslo_middleware, oslo_policy):
        for group, found in library.list_opts():
            conf.register_opts([one for one in found if not one.required], group=group)
    return conf


@cache
def _names(section: str) -> set[str]:
    """The options that may stand in a section of our file."""
    if section.startswith("generic_driver:"):
        return {one.dest for one in generic.backend_options()}
    conf = _registered()
    conf([], project="cyborg", default_config_files=[], default_config_dirs=[])
    if section == "DEFAULT":
        return set(conf)
    account = _account() if section in ACCOUNTS else set()
    return account | (set(conf[section]) if section in conf else set())


@cache
def _account() -> set[str]:
    """The options of an account and of how its service is reached."""
    found = {one.dest for one in loading.get_auth_plugin_conf_options("password")}
    found |= {one.dest for one in loading.get_session_conf_options()}
    found |= {one.dest for one in loading.get_adapter_conf_options()}
    return found | {"auth_type", "auth_section"}
