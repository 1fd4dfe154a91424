# SPDX-License-Identifier: Apache-2.0
"""What the tools of vendors print, and the files of drivers, become these facts about a card.

The files of ``readings.d`` beside this module have the outputs and the facts. The first function of
a file is the card; paths of files are below its directory in sysfs, or below that of the function
with whose address they begin. An output is that of the command whose arguments have its form; a
command without one fails. Where a tool ``writes`` its output, the last argument is the file. The
``outputs`` of a reading come before those of the file, in which ``replaced`` texts are others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.command import Completed
from cyborg.model.health import Condition
from cyborg.testing import servers
from cyborg.testing.driver_checks import Look, look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.unit.drivers.configured import configured

FILES: Final = sorted(Path(__file__).with_name("readings.d").glob("*.yaml"))


@dataclass(frozen=True)
class Reading:
    """One reading; ``asked`` are the questions that have an ``error``, or that nobody answers."""

    name: str
    driver: str
    functions: Mapping[str, Mapping[str, str]]
    #: By group and name.
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tool: str = ""
    #: Whether the tool writes its output into a file.
    writes: bool = False
    device: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ("health",)
    condition: str = ""
    evidence: tuple[str, ...] = ()
    #: Whether each finding says what to do.
    action: bool = True
    stats: Mapping[str, float] | None = None
    error: str = ""
    #: The arguments of the last command, if there is to be one.
    last: list[str] | None = None

    @property
    def key(self) -> str:
        """The card that is asked about."""
        return self.device or next(iter(self.functions))

    def host(self) -> FakeHost:
        """Return a host on which all this is so."""
        host = servers.bare()
        places = {
            address: servers.add_function(host, address, function["ids"], driver=function["driver"])
            for address, function in self.functions.items()
        }
        for name, text in self.files.items():
            if name not in self.removed:
                address, _, rest = name.partition("/")
                place = places.get(address, next(iter(places.values())))
                path = f"{place}/{rest if address in places else name}"
                host.add_file(name if name.startswith("/") else path, f"{text}\n")
        if self.tool:
            host.add_file(self.tool, "")
            host.programs[self.tool] = self._run
        return host

    def ask(self, host: FakeHost) -> Look:
        """Return what asks the driver."""
        conf = configured()
        for group, options in self.options.items():
            for name, value in options.items():
                conf.set_override(name, value, group)
        (loaded,) = loader.load([self.driver], host, conf)
        assert loaded.driver is not None, loaded.error
        return look(loaded.driver)

    def _run(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        words = " ".join(argv[1:])
        for form, text in self.outputs.items():
            if fnmatchcase(words, form):
                if self.writes:
                    host.add_file(argv[-1], text)
                return Completed(0, "" if self.writes else text, "")
        return Completed(1, "", "not supported")


def _readings() -> Iterator[Reading]:
    for file in FILES:
        document = yaml.safe_load(file.read_text())
        del document["sources"]
        for entry in document.pop("readings"):
            outputs = dict(document.get("outputs", {}))
            for old, new in entry.get("replaced", {}).items():
                assert any(old in text for text in outputs.values()), (entry["name"], old)
                outputs = {form: text.replace(old, new) for form, text in outputs.items()}
            merged: dict[str, Any] = {
                **document,
                **entry,
                "files": {**document.get("files", {}), **entry.get("files", {})},
                "outputs": {**entry.get("outputs", {}), **outputs, **entry.get("outputs", {})},
            }
            yield Reading(**{**merged, "name": f"{file.stem}: {entry['name']}"})


READINGS: Final = list(_readings())


def of(holds: Callable[[Reading], object]) -> pytest.MarkDecorator:
    """Run a test with each reading of one kind."""
    chosen = [reading for reading in READINGS if holds(reading)]
    return pytest.mark.parametrize("reading", chosen, ids=lambda reading: reading.name)


@of(lambda reading: reading.condition)
@pytest.mark.proves("amd_gpu_driver", "health", by="simulated")
@pytest.mark.proves("habana_driver", "health", by="simulated")
@pytest.mark.proves("huawei_ascend_driver", "health", by="simulated")
@pytest.mark.proves("intel_fpga_driver", "health", by="simulated")
@pytest.mark.proves("intel_gpu_driver", "health", by="simulated")
@pytest.mark.proves("intel_nic_driver", "health", by="simulated")
@pytest.mark.proves("intel_qat_driver", "health", by="simulated")
@pytest.mark.proves("nvme_driver", "health", by="simulated")
@pytest.mark.proves("xilinx_fpga_driver", "health", by="simulated")
def test_health_is_that_of_files_and_tools(reading: Reading) -> None:
    host = reading.host()
    health = reading.ask(host).health(reading.key)
    assert (health.condition, health.evidence) == (
        Condition(reading.condition),
        tuple(reading.evidence),
    )
    assert all(finding.action for finding in health.findings) is reading.action
    commands = [" ".join(argv[1:]) for argv in host.commands]
    assert reading.last is None or commands[-1:] == reading.last


@of(lambda reading: reading.stats is not None)
@pytest.mark.proves("amd_gpu_driver", "stats", by="simulated")
@pytest.mark.proves("habana_driver", "stats", by="simulated")
@pytest.mark.proves("huawei_ascend_driver", "stats", by="simulated")
@pytest.mark.proves("intel_gpu_driver", "stats", by="simulated")
@pytest.mark.proves("nvme_driver", "stats", by="simulated")
def test_statistics_are_those_of_files_and_tools(reading: Reading) -> None:
    assert reading.ask(reading.host()).stats(reading.key) == pytest.approx(reading.stats)


@of(lambda reading: reading.error)
def test_output_that_makes_no_sense_is_an_error(reading: Reading) -> None:
    driver = reading.ask(reading.host())
    for question in reading.asked:
        with pytest.raises(exception.HostError, match=reading.error):
            getattr(driver, question)(reading.key)


@of(lambda reading: not (reading.condition or reading.error or reading.stats is not None))
def test_output_that_tells_nothing_is_no_health(reading: Reading) -> None:
    driver = reading.ask(reading.host())
    for question in reading.asked:
        with pytest.raises(exception.DriverCannot):
            getattr(driver, question)(reading.key)
