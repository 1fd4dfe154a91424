# SPDX-License-Identifier: Apache-2.0
"""Read what a card says about itself, by sysfs or by the command of its vendor.

Commands are bounded in time and in the size of their output, and whatever they print may be
anything: what cannot be understood is an exception.HostError.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.host import Host

#: Seconds that one call of a vendor's command may take.
TIMEOUT = 10.0
#: Lines that look like the start of JSON, of which the first that is one counts.
_MOST_STARTS = 20
_NUMBER = re.compile(r"\s*(-?[0-9]{1,18}(?:\.[0-9]{1,9})?)(?![0-9.])")
#: Files of hwmon, the name of the figure and the number of its units in one of the file's.
#: Source: Documentation/ABI/testing/sysfs-class-hwmon of Linux.
_HWMON = (
    ("temp1_input", "temperature_celsius", 1e-3),
    ("power1_input", "power_watts", 1e-6),
    ("power1_average", "power_watts", 1e-6),
)


class VendorTool:
    """A command of a vendor, which is installed at one of ``paths`` or not at all."""

    def __init__(self, host: Host, *paths: str) -> None:
        self._host = host
        self._paths = paths

    def ask(self, *arguments: str) -> str | None:
        """Return what the command prints; None if it is not installed.

        Raises exception.HostError if it fails, hangs, or prints too much.
        """
        for path in self._paths:
            if self._host.exists(path):
                result = self._host.run([path, *arguments], timeout=TIMEOUT)
                if result.status != 0:
                    raise exception.HostError(
                        action=f"running {path} {' '.join(arguments)}", reason=_failure(result)
                    )
                return result.stdout
        return None


def _failure(result: Completed) -> str:
    text = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return f"exit status {result.status}" + (f": {text[-1][:200]}" if text else "")


def parse_json(text: str, tool: str) -> Any:
    """Return the JSON object or list in the output of a command, after any warnings.

    Raises exception.HostError if there is none.
    """
    starts = re.finditer(r"^[ \t]*[\[{]", text, re.MULTILINE)
    for start in itertools.islice(starts, _MOST_STARTS):
        with contextlib.suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, start.end() - 1)[0]
    raise unintelligible(tool, "no JSON object")


def unintelligible(tool: str, reason: str) -> exception.HostError:
    """Return the error about an output that the driver does not understand."""
    return exception.HostError(action=f"reading the output of {tool}", reason=reason)


def number(value: object) -> float | None:
    """Return the number at the start of a value, such as 41 for "41 C"; None without one."""
    if isinstance(value, bool):
        return None
    match = _NUMBER.match(str(value)) if isinstance(value, int | float | str) else None
    return float(match[1]) if match else None


def read_number(host: Host, path: str) -> float | None:
    """Return the number in a file; None if it cannot be read or has none."""
    try:
        return number(host.read_text(path))
    except exception.HostError:
        return None


def hwmon_figures(host: Host, device_key: str) -> dict[str, float]:
    """Return temperature and power of a PCI function, as far as its driver tells them."""
    directory = f"/sys/bus/pci/devices/{device_key}/hwmon"
    figures: dict[str, float] = {}
    names: Sequence[str] = ()
    with contextlib.suppress(exception.HostError):
        names = host.list_dir(directory)
    for name in names[:1]:
        for file, figure, unit in _HWMON:
            if (value := read_number(host, f"{directory}/{name}/{file}")) is not None:
                figures[figure] = value * unit
    return figures
