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


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.StrOpt("host", default="here")])
    for group in ("cards", "cards:a"):
        conf.register_opts(OPTIONS, group=group)
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def test_values_are_parsed_as_in_a_file(conf: cfg.ConfigOpts) -> None:
    over = Overlay(conf, {"units": "2", "names": "a, b", "match": "one", "shared": "true"})
    cards = over.cards
    assert (cards.units, cards.names, cards["match"], cards.shared) == (
        2,
        ["a", "b"],
        ["one"],
        True,
    )
    assert set(over.read_keys) == {"units", "names", "match", "shared"}
    # Other options have the host's values.
    assert (over.host, over["host"], Overlay(conf, {"units": "2"}).cards.names) == (
        "here",
        "here",
        ["x"],
    )
    assert "cards" in over
    assert conf.cards.units == 1


def test_a_key_with_a_group_has_precedence(conf: cfg.ConfigOpts) -> None:
    over = Overlay(conf, {"cards:a.units": "3", "units": "2", "host": "there"})
    assert (over["cards:a"].units, over.cards.units, over.host) == (3, 2, "here")
    assert over.read_keys == {"cards:a.units": "units", "units": "units"}


@pytest.mark.parametrize(
    ("key", "raw"), [("units", "many"), ("cards.units", "0"), ("shared", "7x")]
)
def test_an_invalid_value_raises_config_error_with_the_option(
    conf: cfg.ConfigOpts, key: str, raw: str
) -> None:
    over = Overlay(conf, {key: raw})
    with pytest.raises(exception.ConfigError, match=f"option {key} = {raw}: "):
        _ = over.cards.units, over.cards.shared
