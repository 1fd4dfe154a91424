# SPDX-License-Identifier: Apache-2.0
"""The checks of ``tools/metal``: what Cyborg says about the GPUs of a machine, and what holds.

Each check compares an answer of the service with the machine, or with another tool.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import opts
from cyborg.drivers import command, health_policy, nvml
from cyborg.drivers.base import clean_calls, no_progress
from cyborg.drivers.command import Completed
from cyborg.drivers.host import Host
from cyborg.drivers.nvidia_gpu import NvidiaGpuDriver, is_gpu
from cyborg.drivers.pci_function import PciFunction, parse_name
from cyborg.drivers.privileged.actions import ReadDeviceErrors
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask

FORMAT: Final = 1
#: Seconds for all checks: what has not begun then fails. One question to NVML may follow.
TIME: Final = 280.0
#: Seconds for one command.
_COMMAND: Final = 150.0
_HOST_DRIVER: Final = "nvidia"
_CONFIGURATION: Final = """\
[DEFAULT]
host = metal
state_path = {directory}
[agent]
enabled_drivers = nvidia_gpu_driver
"""
_SMI_FIELDS: Final = ("uuid", "memory.total", "mig.mode.current")
_MIG_MODES: Final = {"Enabled": True, "Disabled": False, "[N/A]": None}
_MIB: Final = 1 << 20
_FIGURES: Final = {
    "utilization_ratio": (0.0, 1.0),
    "memory_used_bytes": (0.0, 1e13),
    "memory_total_bytes": (1e8, 1e13),
    "temperature_celsius": (1.0, 120.0),
    "power_watts": (1.0, 3000.0),
}
#: A line of ``nvidia-smi nvlink --status`` for a link: its number, and its speed or state.
_LINK: Final = re.compile(r"\s*Link ([0-9]+): (.*\S)")
_UUID: Final = re.compile(r"\b(GPU|MIG)-[0-9a-f-]+")
#: What tells one card from all others is in no report.
_IDENTITIES: Final = ("uuid", "serial")


class NoHardwareError(Exception):
    """The machine has no GPU that the checks are about; the text is a clause that says why."""


class _NotTrueError(Exception):
    """A check does not hold; the text is a clause that says why."""


@dataclass(frozen=True)
class Machine:
    """What is examined: the machine, and the commands that read it.

    ``agent`` begins the command line of ``cyborg-agent`` and ``capture`` that of
    ``tools/capture-host``. The directory is for temporary files, and ``archive`` a path for the
    archive, which does not exist yet.
    """

    host: Host
    agent: Sequence[str]
    capture: Sequence[str]
    directory: Path
    archive: Path


@dataclass(frozen=True)
class Check:
    """The result of one check; ``text`` is a clause that says what was seen, or what is wrong."""

    name: str
    holds: bool
    text: str


@dataclass
class Report:
    """The results; ``machine`` and ``gpus`` (by address) have facts, without serial numbers."""

    machine: dict[str, Any] = field(default_factory=dict)
    gpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether all checks hold."""
        return all(check.holds for check in self.checks)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"format": FORMAT, "holds": self.holds, **asdict(self)}


class Examination:
    """The checks on one machine, in their order."""

    def __init__(self, machine: Machine, clock: Callable[[], float] = time.monotonic) -> None:
        self.report = Report()
        self._machine = machine
        self._host = machine.host
        self._clock = clock
        self._end = clock() + TIME
        self._configuration = machine.directory / "cyborg.conf"
        self._configuration.write_text(_CONFIGURATION.format(directory=machine.directory))
        conf = cfg.ConfigOpts()
        opts.register_opts(conf)
        conf([], project="cyborg", default_config_files=[str(self._configuration)])
        self._driver = NvidiaGpuDriver(self._host, conf)
        self._gpus: list[PciFunction] = []
        #: What ``cyborg-agent --discover`` lists, by address.
        self._rows: dict[str, dict[str, Any]] = {}
        #: What the program that asks NVML printed, by address.
        self._facts: dict[str, dict[str, Any]] = {}

    def run(self, reset: str | None = None) -> Report:
        """Run all checks; the last one resets a GPU if its address is given.

        Raises NoHardwareError if there is nothing to check.
        """
        self._find()
        checks = {
            "discovery": self._discovery,
            "library": self._library,
            "log": self._log,
            "health": self._health,
            "figures": self._figures,
            "nvidia-smi": self._compare,
            "links": self._links,
            "archive": self._archive,
        }
        for name, check in checks.items():
            self._check(name, check)
        if reset is not None:
            self._check("reset", lambda: self._reset(reset))
        return self.report

    def _find(self) -> None:
        functions = Scan(self._host).functions.values()
        gpus = [function for function in functions if is_gpu(function) and function.parent is None]
        self._gpus = [function for function in gpus if function.host_driver == _HOST_DRIVER]
        if not gpus:
            raise NoHardwareError("it has no NVIDIA GPU")
        if not self._gpus:
            raise NoHardwareError(f"none of its {len(gpus)} NVIDIA GPUs has the driver nvidia")
        for function in gpus:
            self.report.gpus[str(function.address)] = {"host_driver": function.host_driver}

    def _check(self, name: str, check: Callable[[], str]) -> None:
        try:
            self._check_time(name)
            self.report.checks.append(Check(name, True, check()))
        except (_NotTrueError, exception.CyborgError) as error:
            self.report.checks.append(Check(name, False, str(error).rstrip(".")))

    @property
    def _left(self) -> float:
        """Return the seconds that a command may take."""
        return max(1.0, min(_COMMAND, self._end - self._clock()))

    def _check_time(self, name: str) -> None:
        """Raise _NotTrueError if no time is left for what has this name."""
        if self._clock() >= self._end:
            raise _NotTrueError(f"{name} was not checked within {TIME:g} seconds")

    def _addresses(self) -> Iterator[str]:
        """Yield the GPUs that NVML can be asked about; raises _NotTrueError without time."""
        for function in self._gpus:
            self._check_time(str(function.address))
            yield str(function.address)

    # The checks: each returns what was seen, or raises an error.

    def _discovery(self) -> str:
        """Every GPU is listed by its driver, offered or with a reason."""
        self._rows = self._discovered()
        seen = []
        for address, facts in self.report.gpus.items():
            row = self._rows.get(address)
            if row is None or self._driver.name not in {row["offered_by"], *row["reasons"]}:
                raise _NotTrueError(f"the {self._driver.name} does not list {address}")
            facts |= {key: row[key] for key in ("model", "vendor", "offered", "reason")}
            offer = "offered" if row["offered"] else f"not offered: {row['reason']}"
            seen.append(f"{address} ({row['model']}) is {offer}")
        return "; ".join(seen)

    def _discovered(self, *words: str) -> dict[str, dict[str, Any]]:
        options = ("--config-file", str(self._configuration), "--discover", "--json", *words)
        answer = command.run((*self._machine.agent, *options), timeout=self._left)
        document = _document(answer, "cyborg-agent --discover --json")
        return {row["address"]: row for row in document["devices"]}

    def _library(self) -> str:
        """The program that asks NVML answers for each GPU, with an identity and its memory."""
        argv = [*nvml.PROGRAM, *self._addresses()]
        begin = self._clock()
        answer = self._host.run(argv, timeout=min(nvml.TIMEOUT, self._left))
        document = _document(answer, "the program that asks NVML")
        seconds = self._clock() - begin
        if document.get("error") is not None:
            raise _NotTrueError(f"NVML answers {document['error']}")
        self.report.machine["driver"] = document["driver"]
        self._facts = document["gpus"]
        for address in self._addresses():
            facts = self._facts.get(address, {})
            self.report.gpus[address]["nvml"] = {
                key: value for key, value in facts.items() if key not in _IDENTITIES
            }
            if "error" in facts:
                raise _NotTrueError(f"NVML answers {facts['error']} for {address}")
            for name in ("uuid", "memory_total"):
                if name not in facts:
                    raise _NotTrueError(f"NVML does not tell {name} of {address}")
        count = len(self._facts)
        return f"driver {document['driver']} answers for {count} GPU(s) in {seconds:.1f} s"

    def _log(self) -> str:
        """The log of the kernel can be read; it has the errors (Xid) of the GPUs."""
        errors = self._host.privileged.run(ReadDeviceErrors())
        seen = [f"{error.slot} Xid {error.code}" for error in errors]
        return f"the kernel has logged {', '.join(seen) or 'no error (Xid)'}"

    def _health(self) -> str:
        """Each GPU has a health by the shipped policy; a GPU that is not healthy is shown."""
        seen = []
        for address in self._addresses():
            signals = self._driver.signals(Scan(self._host), address)
            health = health_policy.shipped().judge(signals)
            words = [health.condition.value, *health.evidence]
            self.report.gpus[address]["health"] = words
            seen.append(f"{address} is {', '.join(words)}")
        return "; ".join(seen)

    def _figures(self) -> str:
        """Each figure of each GPU is there and in the range that hardware can have."""
        seen = []
        for address in self._addresses():
            figures = dict(self._driver.stats(Scan(self._host), address))
            self.report.gpus[address]["figures"] = figures
            divided = self._facts.get(address, {}).get("mig")
            for name, (least, most) in _FIGURES.items():
                # NVML does not tell the utilisation of a GPU with MIG mode.
                if divided and name == "utilization_ratio":
                    continue
                value = figures.get(name)
                if value is None or not least <= value <= most:
                    raise _NotTrueError(f"{name} of {address} is {value}")
            if figures["memory_used_bytes"] > figures["memory_total_bytes"]:
                raise _NotTrueError(f"{address} uses more memory than it has")
            texts = (f"{name} {value:g}" for name, value in sorted(figures.items()))
            seen.append(f"{address}: {', '.join(texts)}")
        return "; ".join(seen)

    def _compare(self) -> str:
        """nvidia-smi and the driver tell the same identity, memory and MIG mode of each GPU."""
        for address in self._addresses():
            query = f"--query-gpu={','.join(_SMI_FIELDS)}"
            answer = self._smi("-i", address, query, "--format=csv,noheader,nounits")
            words = [word.strip() for word in answer.strip().split(",")]
            if len(words) != len(_SMI_FIELDS) or words[2] not in _MIG_MODES:
                raise _NotTrueError(f"nvidia-smi prints {answer.strip()[:100]!r}")
            facts = self._facts.get(address, {})
            expected = (words[0], words[1], _MIG_MODES[words[2]])
            actual = facts.get("uuid"), str(facts.get("memory_total", 0) // _MIB), facts.get("mig")
            for name, theirs, ours in zip(_SMI_FIELDS, expected, actual, strict=True):
                if theirs != ours:
                    shown = "another value" if name == "uuid" else f"{ours}, not {theirs}"
                    raise _NotTrueError(f"NVML tells {shown} as {name} of {address}")
        divided = sum(facts.get("mig") is True for facts in self._facts.values())
        return f"the same identity, memory and MIG mode; MIG is on for {divided} GPU(s)"

    def _links(self) -> str:
        """The state of the NVLinks of each GPU; GPUs without NVLink have none."""
        seen = []
        for address in self._addresses():
            lines = self._smi("nvlink", "--status", "-i", address).splitlines()
            matches = [match for line in lines if (match := _LINK.match(line))]
            links = {match[1]: match[2] for match in matches}
            self.report.gpus[address]["links"] = links
            up = sum("GB/s" in state for state in links.values())
            seen.append(f"{address} has {len(links)} NVLinks, {up} of them active")
        return "; ".join(seen)

    def _smi(self, *words: str) -> str:
        answer = self._host.run(["nvidia-smi", *words], timeout=min(30.0, self._left))
        if answer.status:
            reason = f"{answer.stdout}\n{answer.stderr}".strip().partition("\n")[0]
            raise _NotTrueError(
                f"nvidia-smi ended with status {answer.status}: {_UUID.sub('(hidden)', reason)}"
            )
        return answer.stdout

    def _archive(self) -> str:
        """The archive of the machine shows the same devices as the machine."""
        path = self._machine.archive
        answer = command.run((*self._machine.capture, str(path)), timeout=self._left)
        if answer.status:
            raise _NotTrueError(f"capture-host ended with status {answer.status}: {answer.stderr}")
        rows = self._discovered("--host", str(path))
        for key in sorted(self._rows | rows):
            for name in ("model", "vendor", "host_driver"):
                there, here = (each.get(key, {}).get(name) for each in (rows, self._rows))
                if there != here:
                    raise _NotTrueError(f"{name} of {key} is {there} in the archive, not {here}")
        count = answer.stdout.splitlines()[0].rstrip(".").rpartition(" in ")[0]
        return f"{count}; {len(rows)} device(s) are the same there"

    def _reset(self, key: str) -> str:
        """The GPU has its driver again after the reset, and NVML answers."""
        address = parse_name(key)
        function = next((gpu for gpu in self._gpus if gpu.address == address), None)
        if function is None:
            raise _NotTrueError(f"{key} is not a GPU with the driver nvidia")
        use = Scan(self._host).refusal(function, managed=False)
        if use is not None:
            raise _NotTrueError(f"{key} is not reset: {use}")
        task = HandleTask("metal", self._driver.name, key, key, key, "")
        steps = clean_calls(self._driver, task)
        if not steps:
            raise _NotTrueError(f"the kernel cannot reset {key} alone")
        for _, call in steps:
            call(no_progress)
        gpu = nvml.ask(self._host, [key])
        if gpu.error is not None or gpu.gpus[key].error is not None:
            raise _NotTrueError(f"NVML answers {gpu.error or gpu.gpus[key].error} after the reset")
        return f"{key} was reset, and NVML answers"


def _document(answer: Completed, name: str) -> Mapping[str, Any]:
    """Return the JSON document that a command printed; raises _NotTrueError without one."""
    if answer.status:
        last = (answer.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        raise _NotTrueError(f"{name} ended with status {answer.status}: {last}")
    try:
        value = json.loads(answer.stdout)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _NotTrueError(f"{name} printed no JSON document")
    return value
