# SPDX-License-Identifier: Apache-2.0
"""An operator's options override those of a file, with the same validation."""

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.loader import Overlay

OPTIONS = [
    cfg.IntOpt("units", default=1, min=1),
    cfg.ListOpt("names", default=["x"]),
    cfg.MultiStrOpt("match", default=["all"]),
    cfg.BoolOpt("shared", default=False),
]


def overlay(conf: cfg.ConfigOpts, options: dict[str, str]) -> Overlay:
    """Return an overlay in which all options can be set."""
    over = Overlay(conf, options)
    over.permit({"units", "names", "match", "shared", "host"})
    return over


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.StrOpt("host", default="here")])
    for group in ("cards", "cards:a"):
        conf.register_opts(OPTIONS, group=group)
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def test_values_are_parsed_as_in_a_file(conf: cfg.ConfigOpts) -> None:
    over = overlay(conf, {"units": "2", "names": "a, b", "match": "one", "shared": "true"})
    cards = over.cards
    assert (cards.units, cards.names, cards["match"], cards.shared) == (
        2,
        ["a", "b"],
        ["one"],
        True,
    )
    assert over.read_keys == {"units", "names", "match", "shared"}
    # Other options have the host's values.
    assert (over.host, over["host"], overlay(conf, {"units": "2"}).cards.names) == (
        "here",
        "here",
        ["x"],
    )
    assert "cards" in over
    assert conf.cards.units == 1


def test_a_key_with_a_group_has_precedence(conf: cfg.ConfigOpts) -> None:
    over = overlay(conf, {"cards:a.units": "3", "units": "2", "host": "there"})
    assert (over["cards:a"].units, over.cards.units, over.host) == (3, 2, "here")
    assert over.read_keys == {"cards:a.units", "units"}
    assert over.unread == ["host"]


@pytest.mark.parametrize(
    ("key", "raw"), [("units", "many"), ("cards.units", "0"), ("shared", "7x")]
)
def test_an_invalid_value_raises_config_error_with_the_option(
    conf: cfg.ConfigOpts, key: str, raw: str
) -> None:
    over = overlay(conf, {key: raw})
    with pytest.raises(exception.ConfigError, match=f"option {key} = {raw}: "):
        _ = over.cards.units, over.cards.shared


def test_only_permitted_options_have_an_effect(conf: cfg.ConfigOpts) -> None:
    requested = {"cards.units": "2", "units": "3", "cards.names": "a", "match": "one"}
    over = Overlay(conf, requested)
    assert (over.cards.units, over.accepts) == (1, None)
    assert over.ignored == tuple(sorted(requested))
    over.permit({"names"})
    assert (over.cards.units, over.cards.names, over.cards.match) == (1, ["a"], ["all"])
    assert over.ignored == ("cards.units", "match", "units")
    assert [(option.group, option.name) for option in over.accepts or ()] == [("cards", "names")]
    location = over.get_location("names", "cards")
    assert location is not None
    assert location.location is cfg.Locations.set_override
    host = over.get_location("units", "cards")
    assert host is not None
    assert host.location is cfg.Locations.opt_default
