# SPDX-License-Identifier: Apache-2.0
"""The page about devstack: its table is that of the settings, and each local.conf in it works."""

import re
import textwrap
from pathlib import Path

import pytest

from cyborg.drivers import whitelist
from cyborg.tests.functional.devstack.node import REPOSITORY, Node

PAGE = (REPOSITORY / "doc" / "source" / "install" / "devstack.rst").read_text()
#: What existing local.conf files may set, beside the switches of simulated devices.
CONTRACT = {
    *("CYBORG_CONF_DIR", "CYBORG_CONF", "CYBORG_API_PASTE_INI", "CYBORG_POLICY_JSON"),
    *("CYBORG_SERVICE_HOST", "CYBORG_SERVICE_PORT", "CYBORG_SERVICE_PROTOCOL", "CYBORG_API_URL"),
    *("CYBORG_ENABLED_DRIVERS", "CYBORG_USE_UWSGI", "CYBORG_UWSGI", "CYBORG_UWSGI_CONF"),
    *("CYBORG_CLIENT_INSTALL", "CYBORG_CLIENT_REPO", "CYBORG_CLIENT_BRANCH", "CYBORG_CLIENT_DIR"),
    *("CYBORG_STATE_PATH", "CYBORG_DATA_DIR", "CYBORG_AUTH_STRATEGY"),
    *("CYBORG_AUTOMATED_CLEAN_ENABLED", "ENABLE_PCI_SIM", "PCI_SIM_BUILD", "PCI_SIM_LOAD"),
    *("PCI_SIM_ALLOW_UNSAFE_INTERRUPTS", "PCI_SIM_CONFIGURE_NOVA_PCI", "PCI_SIM_NUM_PFS"),
    *("PCI_SIM_CONFIGURE_CYBORG_PCI", "PCI_SIM_NOVA_PCI_IN_PLACEMENT", "PCI_SIM_NUM_VFS"),
    *("PCI_SIM_CREATE_TEST_FLAVORS", "PCI_SIM_MODULE_ARGS"),
    *("TEMPEST_ACCELERATOR_MIN_MICROVERSION", "TEMPEST_ACCELERATOR_MAX_MICROVERSION"),
}


def settings() -> dict[str, str]:
    """Each variable of the settings with its default; the last one where there are several."""
    text = (REPOSITORY / "devstack" / "settings").read_text()
    plain = re.findall(r"^ *(\w+)=\$\{\1:-(.*)\}$", text, re.MULTILINE)
    switches = re.findall(r'^(\w+)=\$\(trueorfalse "?([^" ]+)"? \1\)$', text, re.MULTILINE)
    assert len(plain) + len(switches) == len(re.findall(r"^ *\w+=", text, re.MULTILINE))
    return dict([*plain, *switches])


def local_confs() -> list[str]:
    """Every complete local.conf of the page."""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", PAGE)
    texts = [textwrap.dedent(block).strip() + "\n" for block in blocks]
    return [text for text in texts if text.startswith("[[local|localrc]]")]


def test_documented_variables_equal_the_settings() -> None:
    rows = re.findall(r"\* - ``(\w+)``\n     - (?:``(.*)``|\(empty\))\n     - \S", PAGE)
    documented = dict(rows)
    assert documented == settings()
    assert set(documented) >= CONTRACT
    assert len(local_confs()) == 5


@pytest.mark.parametrize("text", local_confs(), ids=range(len(local_confs())))
def test_every_documented_local_conf_works(tmp_path: Path, text: str) -> None:
    sources = tmp_path / "opt" / "fake_pci_sriov"
    sources.mkdir(parents=True)
    (sources / "Kbuild").touch()
    node = Node(tmp_path, text, variables={"CYBORG_NEUTRON_ML2_CONF": f"{tmp_path}/ml2.conf"})
    node.write_options("ml2.conf", "ml2", extension_drivers="port_security")
    if "cyborg-cond" in text:
        # The page says where the file comes from.
        node.put_keys()
    node.do("stack")
    options = node.options("etc/cyborg.conf")
    assert [call.split()[0] for call in node.called("run_process")] == (
        ["cyborg-privileged", "cyborg-agent"]
        if "disable_service cyborg-api cyborg-cond" in text
        else ["cyborg-privileged", "cyborg-cond", "cyborg-api", "cyborg-agent"]
    )
    if "passthrough_whitelist" in text:
        assert len(whitelist.parse(options["pci"]["passthrough_whitelist"])) == 1
    profiles = "PORT_PROFILES=True" in text
    loaded = node.options("ml2.conf")["ml2"]["extension_drivers"]
    assert loaded == ["port_security" + (",port_device_profile" if profiles else "")]
    assert bool(node.called("modprobe")) == ("ENABLE_PCI_SIM" in text)
    node.do("clean")
