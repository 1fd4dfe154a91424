# SPDX-License-Identifier: Apache-2.0
"""The commands of both programs are the same, and stand beside what others bring."""

import configparser
import importlib.metadata
from pathlib import Path

import cyborg
from cyborg.cli import plugin, shell
from cyborg.cli.base import Long
from cyborg.cli.catalogue import COMMANDS
from cyborg.cli.routes import ROUTES

ROOT = Path(cyborg.__file__).resolve().parent.parent


def test_the_entry_points_of_the_plug_in_are_those_of_the_catalogue():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    group = f"openstack.{plugin.API_NAME}.v{plugin.DEFAULT_API_VERSION}"
    lines = setup["entry_points"][group].strip().splitlines()
    declared = {
        name.strip().replace("_", " "): target.strip()
        for name, _, target in (line.partition("=") for line in lines)
    }
    assert declared == {
        entry.plugin: f"{entry.kind.__module__}:{entry.kind.__name__}"
        for entry in COMMANDS.values()
        if entry.plugin
    }
    assert lines == sorted(lines)


def test_no_command_of_others_is_shadowed():
    others = {
        entry.name.replace("_", " ")
        for entry in importlib.metadata.entry_points(group="openstack.accelerator.v2")
    }
    assert "accelerator device list" in others
    assert others.isdisjoint(entry.plugin for entry in COMMANDS.values())


def test_every_command_has_a_route_and_every_route_a_command():
    assert {entry.kind.route for entry in COMMANDS.values()} <= set(ROUTES)
    assert set(ROUTES) - {entry.kind.route for entry in COMMANDS.values()} == {
        "detach-accelerator"  # the second one of detach-instance
    }


def test_long_commands_are_those_whose_routes_are_long():
    for name, entry in COMMANDS.items():
        assert issubclass(entry.kind, Long) is ROUTES[entry.kind.route].long, name


def test_commands_are_named_after_their_routes():
    assert all(entry.kind.route == name for name, entry in COMMANDS.items())


def test_no_option_of_a_command_abbreviates_one_of_the_program():
    program = shell.Shell([], pause=float, stdout=None, stderr=None)
    taken = {option for action in program.parser._actions for option in action.option_strings}
    assert "--verbose" in taken
    for name, entry in COMMANDS.items():
        parser = entry.kind(program, None, name).get_parser(name)
        own = {option for action in parser._actions for option in action.option_strings}
        swallowed = {
            option
            for option in own - {"-h", "--help"}
            if any(other.startswith(option) for other in taken)
        }
        assert swallowed == set(), name


def test_every_command_says_what_it_does_in_a_sentence():
    for entry in COMMANDS.values():
        said = entry.kind.__doc__ or ""
        assert said.endswith("."), entry.kind
        assert "\n" not in said, entry.kind
