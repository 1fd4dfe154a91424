# SPDX-License-Identifier: Apache-2.0
"""Test that one declaration gives oslo.config its options and the code its values."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar

import pytest
from oslo_config import cfg

from cyborg.agent import app as agent_app
from cyborg.api import expose
from cyborg.conductor import context
from cyborg.conf import agent, api, clients, conductor, default, opts
from cyborg.conf.group import OptionGroup, computed_option, option

names = iter(("first", "second", "third"))


@dataclass(frozen=True)
class Sample(OptionGroup):
    """A group with an option of each form."""

    GROUP: ClassVar[str] = "sample"

    interval: float = option(cfg.FloatOpt, default=10, min=1, help="Interval, in seconds.")
    drivers: Sequence[str] = option(cfg.ListOpt, default=[], help="Names.")
    address: str | None = option(cfg.StrOpt, default=None, help="Address.")
    host: str = computed_option(cfg.StrOpt, default=lambda: next(names), help="Name.")


def configured(*lines: str) -> cfg.ConfigOpts:
    """Return a configuration with the sample, whose values are overridden by ``name=value``."""
    conf = cfg.ConfigOpts()
    conf([])
    conf.register_opts(Sample.options(), group=Sample.GROUP)
    for line in lines:
        name, _, value = line.partition("=")
        conf.set_override(name, value, group=Sample.GROUP)
    return conf


def test_options_are_those_of_the_declaration_in_its_order() -> None:
    interval, drivers, address, host = Sample.options()
    assert [item.name for item in (interval, drivers, address, host)] == [
        *("interval", "drivers", "address", "host")
    ]
    assert (type(interval), interval.default, interval.help) == (
        *(cfg.FloatOpt, 10, "Interval, in seconds."),
    )
    assert "min=1" in str(interval.type)
    assert (drivers.default, address.default) == ([], None)
    assert drivers.default is not Sample.options()[1].default


def test_read_returns_converted_values_and_defaults() -> None:
    sample = Sample.read(configured("interval=2.5", "drivers=a,b"))
    assert (sample.interval, sample.drivers, sample.address) == (2.5, ["a", "b"], None)
    with pytest.raises(FrozenInstanceError):
        sample.interval = 3.0  # type: ignore[misc]


def test_class_has_the_defaults_of_the_options() -> None:
    sample = Sample(host="compute-1")
    assert (sample.interval, sample.drivers, sample.host) == (10, [], "compute-1")


@pytest.mark.parametrize(
    "group",
    [
        *(agent.AgentOptions, agent.PrivilegeOptions, api.ApiOptions, api.TlsOptions),
        *(conductor.ConductorOptions, conductor.AuditOptions, conductor.QuotaOptions),
        *(default.DefaultOptions, default.TracingOptions, default.UpgradeLevels),
        clients.GlanceOptions,
    ],
)
def test_each_group_reads_its_defaults(group: type[OptionGroup]) -> None:
    conf = cfg.ConfigOpts()
    conf([])
    opts.register_opts(conf)
    assert group.read(conf) == group()


@pytest.mark.parametrize("settings", [agent_app.Settings, expose.Settings, context.Settings])
def test_settings_of_a_process_repeat_no_option(settings: Any) -> None:
    """They have the groups themselves, in fields with the name of the group."""
    groups = (
        agent.AgentOptions,
        api.ApiOptions,
        conductor.AuditOptions,
        conductor.ConductorOptions,
        default.DefaultOptions,
    )
    options = {field.name for group in groups for field in fields(group)}
    members = {field.name: field.type for field in fields(settings)}
    assert any(kind in groups for kind in members.values())
    assert not members.keys() & options
