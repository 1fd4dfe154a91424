# SPDX-License-Identifier: Apache-2.0
"""The catalogue of commands: both programs have the same ones, without conflicts with others."""

import configparser
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import cyborg_cli
from cyborg.model.health import CONDITIONS
from cyborg_cli import devices, plugin, shell
from cyborg_cli.routes import ROUTES
from cyborg_cli.shell import COMMANDS

CLIENT = Path(cyborg_cli.__file__).resolve().parent.parent


def test_plugin_entry_points_match_the_catalogue():
    setup = configparser.ConfigParser()
    setup.read(CLIENT / "setup.cfg", encoding="utf-8")
    group = f"openstack.{plugin.API_NAME}.v{plugin.DEFAULT_API_VERSION}"
    lines = setup["options.entry_points"][group].strip().splitlines()
    declared = {
        name.strip().replace("_", " "): target.strip()
        for name, _, target in (line.partition("=") for line in lines)
    }
    assert declared == {
        entry.openstack_name: f"{entry.command.__module__}:{entry.command.__name__}"
        for entry in COMMANDS.values()
        if entry.openstack_name
    }
    assert lines == sorted(lines)


def test_commands_and_pytest_plugin_start_without_bus_and_eventlet():
    code = (
        "import sys; import cyborg_cli.shell, cyborg.testing.plugin\n"
        "assert not {'eventlet', 'futurist', 'oslo_messaging', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plugin_command_names_do_not_shadow_other_plugins():
    others = {
        entry.name.replace("_", " "): entry.value
        for distribution in importlib.metadata.distributions()
        for entry in distribution.entry_points
        if entry.group.startswith("openstack.") and not entry.value.startswith("cyborg_cli.")
    }
    assert others["accelerator device list"].startswith("cyborgclient.")
    assert others.keys().isdisjoint(entry.openstack_name for entry in COMMANDS.values())


def test_health_of_the_list_has_the_words_of_the_service():
    assert set(devices.HEALTH) == set(CONDITIONS)


def test_every_command_has_its_route_and_every_route_a_command():
    assert all(entry.command.route == name for name, entry in COMMANDS.items())
    # That is the second route of detach-instance.
    assert set(ROUTES) == {*COMMANDS, "detach-accelerator"}


def test_command_options_do_not_abbreviate_program_options():
    program = shell.Shell([], pause=float, stdout=None, stderr=None)
    taken = {option for action in program.parser._actions for option in action.option_strings}
    assert "--verbose" in taken
    for name, entry in COMMANDS.items():
        parser = entry.command(program, None, name).get_parser(name)
        own = {option for action in parser._actions for option in action.option_strings}
        abbreviations = {
            option
            for option in own - {"-h", "--help"}
            if any(other.startswith(option) for other in taken)
        }
        assert abbreviations == set(), name


def test_every_command_docstring_is_one_sentence():
    for entry in COMMANDS.values():
        docstring = entry.command.__doc__ or ""
        assert docstring.endswith("."), entry.command
        assert "\n" not in docstring, entry.command
