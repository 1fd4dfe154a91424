# SPDX-License-Identifier: Apache-2.0
"""What ``pytest --cyborg-driver`` runs: the contract for one driver and its host."""

import importlib
from types import ModuleType

from cyborg.drivers.base import Driver
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.subject import Subject


def load_contract(name: str | None) -> type[DriverContract]:
    """Return the class ``module:Class`` derived from DriverContract, by default DriverContract.

    Raises ValueError with a clause that says why there is none.
    """
    if name is None:
        return DriverContract
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(f"there is no contract {name!r}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, DriverContract)):
        raise ValueError(f"{name} is not a class derived from {DriverContract.__name__}")
    return kind


def suite(subject: Subject, contract: type[DriverContract]) -> ModuleType:
    """Return a module with the contract of the subject, as pytest collects it.

    The subject makes the hosts and the drivers; hooks and limits are those of the contract.
    """

    def make_host(self: DriverContract) -> FakeHost:
        return subject.make_host()

    def make_driver(self: DriverContract, host: FakeHost) -> Driver:
        return subject.make_driver(host)

    module = ModuleType("contract", f"The contract of {subject.name}.")
    members = {
        "__doc__": contract.__doc__,
        "__module__": module.__name__,
        "make_host": make_host,
        "make_driver": make_driver,
    }
    vars(module)["TestContract"] = type("TestContract", (contract,), members)
    return module
