# SPDX-License-Identifier: Apache-2.0
"""``pytest --cyborg-driver NAME``: the contract of drivers, run from any repository.

pytest loads this wherever the service is installed, so that nothing of it is imported before
somebody asks for a driver.
"""

from types import ModuleType

import pytest

#: The name of the driver and the module with its contract, where pytest keeps such things.
KEY = pytest.StashKey[tuple[str, ModuleType]]()


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
        "tar.gz), the name or the file of a scenario host, or module:function of one that makes a "
        "cyborg.testing.fake_host.FakeHost; 'scenarios' stands for all scenario hosts that name "
        "the driver; may be given more than once, and the contract then runs on each host",
        "config": "configuration file with the options that the driver needs",
        "contract": "module:Class of a class derived from "
        "cyborg.testing.driver_kit.DriverContract, with hooks such as break_device, and limits",
    }
    for name, text in texts.items():
        several = name == "host"
        action = "append" if several else "store"
        group.addoption(f"--cyborg-{name}", metavar=name.upper(), help=text, action=action)
        if several:
            parser.addini(f"cyborg_{name}", help=text, type="linelist", default=[])
        else:
            parser.addini(f"cyborg_{name}", help=text, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Load the driver that is asked for; one that cannot be is an error of usage."""
    name = config.getoption("--cyborg-driver")
    if name is None:
        return
    from cyborg.testing import driver_suite, subject

    try:
        contract = driver_suite.load_contract(_given(config, "contract"))
        hosts = config.getoption("--cyborg-host")
        if hosts is None:
            hosts = [_beside(config, value) for value in config.getini("cyborg_host")]
        subjects = subject.load_all(name, hosts, _given(config, "config"))
        config.stash[KEY] = name, driver_suite.suite(subjects, contract)
    except ValueError as error:
        raise pytest.UsageError(f"--cyborg-driver {name}: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the contract to whatever tests the repository has."""
    if KEY not in config.stash:
        return
    name, suite = config.stash[KEY]
    module = pytest.Module.from_parent(
        session, path=config.rootpath, name="contract", nodeid=f"contract of {name}"
    )
    module.obj = suite
    items.extend(session.genitems(module))


def _given(config: pytest.Config, name: str) -> str | None:
    """Return the value of the command line, else of the configuration."""
    option = config.getoption(f"--cyborg-{name}")
    if option is not None:
        return str(option)
    value = str(config.getini(f"cyborg_{name}"))
    return _beside(config, value) if value else None


def _beside(config: pytest.Config, value: str) -> str:
    """Return a value of the configuration, as a path if the repository has such a file."""
    path = config.rootpath / value
    return str(path) if path.exists() else value
