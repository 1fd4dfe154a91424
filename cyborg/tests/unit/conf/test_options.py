# SPDX-License-Identifier: Apache-2.0
"""The options themselves: names, defaults and help, as existing configuration files expect them."""

import configparser
import socket
from pathlib import Path
from typing import Final

import keystonemiddleware.auth_token
from oslo_config import cfg
from oslo_policy import opts as oslo_policy

from cyborg.conf import clients, opts

ROOT: Final = Path(__file__).resolve().parents[4]

# What the existing service's files may set, with the defaults that its operators rely on.
EXPECTED: dict[str, dict[str, object]] = {
    "DEFAULT": {
        "host": socket.gethostname(),
        "periodic_interval": 60,
        "thread_pool_size": 10,
        "bind_timeout": 60,
        "fatal_exception_format_errors": False,
    },
    "agent": {
        # Differs from the existing service: nobody offers a simulated device by mistake.
        "enabled_drivers": [],
        "resource_provider_startup_retries": 3,
        "resource_provider_name": socket.getfqdn(),
        "heartbeat_interval": 10,
        "full_check_interval": 600,
    },
    "api": {
        "host_ip": "127.0.0.1",
        "port": 6666,
        "api_workers": None,
        "enable_ssl_api": False,
        "public_endpoint": None,
        "api_paste_config": "api-paste.ini",
        "auth_strategy": "keystone",
        "noauth_anywhere": False,
        "compute_users": [],
        "max_groups": 100,
        "max_units_per_group": 64,
    },
    "conductor": {
        "heartbeat": 1,
        "lease": 3,
        "lost_retention": 30,
        "history_retention": 90,
        "agent_grace": 3600,
        "instance_refresh": 300,
    },
    "database": {"mysql_engine": "InnoDB"},
    "glance": {
        "num_retries": 0,
        "service_type": "image",
        "verify_image_signatures": False,
        "image_certificates": "/etc/cyborg/image-certificates",
    },
    "nova": {"service_type": "compute", "valid_interfaces": ["internal", "public"]},
    "placement": {"service_type": "placement", "valid_interfaces": ["internal", "public"]},
    "service_user": {"send_service_user_token": False},
    "gpu_devices": {"enabled_vgpu_types": [], "filter_sriov_vfs": False},
    "nic_devices": {"enabled_nic_types": []},
    # Differs from the existing service, which reads neither: a large disk needs more than 900 s.
    "nvme": {"cleanup_timeout": None, "device_spec": []},
    "pci": {"passthrough_whitelist": []},
    "upgrade_levels": {"agent": None, "conductor": None},
}


def registered() -> cfg.ConfigOpts:
    """Return a configuration with all options and no file."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def read(conf: cfg.ConfigOpts, group: str, name: str) -> object:
    """Return the value of an option as the service sees it."""
    return conf[name] if group == "DEFAULT" else conf[group][name]


def test_options_have_expected_defaults() -> None:
    conf = registered()
    for group, options in EXPECTED.items():
        assert {name: read(conf, group, name) for name in options} == options, group
    assert conf.database.connection is None
    assert conf.bindir == f"{conf.pybasedir}/bin"


def test_the_unit_of_the_agent_creates_the_default_state_path() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(ROOT / "etc" / "systemd" / "cyborg-agent.service")
    # systemd.exec(5): StateDirectory= is below /var/lib for a system service.
    created = f"/var/lib/{unit['Service']['StateDirectory']}"
    assert registered().state_path == created
    assert (
        f"--home-dir {created} --create-home"
        in (ROOT / "doc" / "source" / "install" / "by-hand.rst").read_text()
    )


def test_groups_of_peers_accept_account_options() -> None:
    conf = registered()
    for group in ("placement", "nova", "glance", "service_user"):
        assert {"auth_type", "auth_section", "cafile", "timeout"} <= set(conf[group])
        assert ("endpoint_override" in conf[group]) is (group != "service_user")


def test_registering_twice_adds_no_options() -> None:
    conf = registered()
    count = len(list(conf))
    opts.register_opts(conf)
    assert len(list(conf)) == count


def test_every_listed_option_has_help_that_ends_as_a_sentence() -> None:
    silent = [
        f"[{group}] {option.name}"
        for group, options in opts.list_opts()
        if group not in {"placement", "nova"}  # keystoneauth's words
        for option in options
        if not option.help or (group not in {"glance", "service_user"} and option.help[-1] != ".")
    ]
    assert silent == []


def test_listed_options_are_registered() -> None:
    conf = registered()
    plugin = {"username", "password", "auth-url"}  # registered once auth_type names them
    for group, options in opts.list_opts():
        known = set(conf) if group == "DEFAULT" else set(conf[group])
        own = [option for option in options if group in {"DEFAULT", "agent", "api", "conductor"}]
        assert {option.dest for option in own} <= known
    listed = {
        option.name for group, found in opts.list_opts() if group == "nova" for option in found
    }
    assert plugin <= listed
    assert listed.isdisjoint({"min-version", "max-version", "version"})


def test_endpoint_type_is_accepted_as_interface(tmp_path: Path) -> None:
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    file = tmp_path / "cyborg.conf"
    groups = ("nova", "placement")
    file.write_text("".join(f"[{group}]\nendpoint_type = internalURL\n" for group in groups))
    conf(["--config-file", str(file)], default_config_dirs=[])
    for group in groups:
        assert read(conf, group, "valid_interfaces") == ["internalURL"]


def test_service_tokens_need_a_service_role() -> None:
    clients.set_auth_token_defaults()
    [(group, options)] = keystonemiddleware.auth_token.list_opts()
    defaults = {option.name: option.default for option in options}
    assert (group, defaults["service_token_roles_required"]) == ("keystone_authtoken", True)


def test_new_policy_defaults_are_in_force() -> None:
    conf = cfg.ConfigOpts()
    oslo_policy.set_defaults(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    assert conf.oslo_policy.enforce_new_defaults is True
