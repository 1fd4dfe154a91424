# SPDX-License-Identifier: Apache-2.0
"""``pytest --cyborg-driver NAME``: the contract of drivers, run from any repository.

pytest loads this wherever the service is installed, so that nothing of it is imported before
somebody asks for a driver.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cyborg.testing.subject import Subject

    KEY: pytest.StashKey[Subject]

#: What is to be tested, where pytest keeps such things.
KEY = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what may be asked for, on the command line or in the repository's configuration."""
    group = parser.getgroup("cyborg", "contract of Cyborg's drivers")
    group.addoption(
        "--cyborg-driver",
        metavar="NAME",
        help="test the driver of this name among the entry points 'cyborg.accelerator.driver'",
    )
    texts = {
        "host": "simulated host with the driver's hardware: an archive of a host (directory or "
        "tar.gz), or module:function of one that makes a cyborg.testing.fake_host.FakeHost",
        "config": "configuration file with the options that the driver needs",
    }
    for name, text in texts.items():
        group.addoption(f"--cyborg-{name}", metavar=name.upper(), help=text)
        parser.addini(f"cyborg_{name}", help=text, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Load the driver that is asked for; one that cannot be is an error of usage."""
    name = config.getoption("--cyborg-driver")
    if name is None:
        return
    from cyborg.testing import subject

    try:
        config.stash[KEY] = subject.load(name, _given(config, "host"), _given(config, "config"))
    except ValueError as error:
        raise pytest.UsageError(f"--cyborg-driver {name}: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the contract to whatever tests the repository has."""
    if KEY not in config.stash:
        return
    from cyborg.testing import driver_suite

    module = pytest.Module.from_parent(
        session,
        path=config.rootpath,
        name="contract",
        nodeid=f"contract of {config.stash[KEY].name}",
    )
    module.obj = driver_suite
    items.extend(session.genitems(module))


def _given(config: pytest.Config, name: str) -> str | None:
    """Return the value of the command line, else of the configuration, as a path."""
    option = config.getoption(f"--cyborg-{name}")
    if option is not None:
        return str(option)
    value = str(config.getini(f"cyborg_{name}"))
    beside = config.rootpath / value
    return (str(beside) if beside.exists() else value) if value else None
