# SPDX-License-Identifier: Apache-2.0
"""What ``pytest --cyborg-driver`` runs: the contract for one driver and its hosts."""

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from cyborg.drivers.base import Driver
from cyborg.testing.driver_absence import AbsenceContract
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.driver_reading import ReadingContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.subject import Subject

_MODULE = "contract"


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


def contracts(
    subjects: Sequence[Subject], contract: type[DriverContract] = DriverContract, **limits: float
) -> dict[str, type[ReadingContract]]:
    """Return a class by name for each subject, as pytest collects them from a module.

    A subject makes the hosts and the drivers; hooks and limits are those of the contract, other
    ``limits`` excepted (see ``DriverSetup``). An ``absent`` subject has the AbsenceContract. The
    only class is ``TestContract``; several have the name of driver and host in theirs.
    """
    kinds = {}
    for subject in subjects:
        parts = re.split(r"[^A-Za-z0-9]+", f"{subject.name}_on_{Path(subject.host).stem}")
        words = "".join(part[:1].upper() + part[1:] for part in parts)
        name = f"Test{words}" if len(subjects) > 1 else "TestContract"
        kinds[name] = _contract(
            name, subject, AbsenceContract if subject.absent else contract, limits
        )
    return kinds


def _contract(
    name: str, subject: Subject, contract: type[ReadingContract], limits: Mapping[str, float]
) -> type[ReadingContract]:
    def make_host(self: ReadingContract) -> FakeHost:
        return subject.make_host()

    def make_driver(self: ReadingContract, host: FakeHost) -> Driver:
        return subject.make_driver(host)

    members = {
        "host_name": subject.conf.host,
        **subject.limits,
        **limits,
        "__doc__": contract.__doc__,
        "__module__": _MODULE,
        "make_host": make_host,
        "make_driver": make_driver,
    }
    return type(name, (contract,), members)


def suite(subjects: Sequence[Subject], contract: type[DriverContract]) -> ModuleType:
    """Return a module with the contract of the subjects, as pytest collects it."""
    module = ModuleType(_MODULE, f"The contract of {subjects[0].name}.")
    vars(module).update(contracts(subjects, contract))
    return module
