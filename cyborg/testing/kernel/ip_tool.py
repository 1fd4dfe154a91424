# SPDX-License-Identifier: Apache-2.0
"""The command ``ip`` of a simulated host: the settings that a PF keeps for its virtual functions.

``ip link set dev IF vf N NAME VALUE ...`` changes them, ``ip -j link show dev IF`` lists them as
``vfinfo_list``. Names and JSON are those of ip-link(8) of iproute2 6.
"""

import json
from typing import Any

from cyborg.drivers.command import Completed
from cyborg.testing.fake_host import FakeHost

_DEFAULTS: dict[str, Any] = {
    "mac": "00:00:00:00:00:00",
    "vlan": "0",
    "spoofchk": "on",
    "trust": "off",
    "min_tx_rate": "0",
    "max_tx_rate": "0",
    "state": "auto",
}
#: The key of a setting in the JSON, where it is not its name.
_KEYS = {"mac": "address", "state": "link_state"}


class IpTool:
    """A program for ``FakeHost.programs``; ``settings`` maps interface and VF to what was set."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, int], dict[str, str]] = {}

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        """Run the command; exit status 1 for an interface, 2 for a VF that does not exist."""
        words = [word for word in argv[1:] if word != "-j"]
        if words[:1] != ["link"] or "dev" not in words[:-1]:
            return Completed(255, "", f"ip {' '.join(words)} is not simulated\n")
        interface = words[words.index("dev") + 1]
        place = f"/sys/class/net/{interface}/device"
        if not host.exists(place):
            return Completed(1, "", f'Cannot find device "{interface}"\n')
        file = f"{host.realpath(place)}/sriov_numvfs"
        count = int(host.content(file) or b"0")
        if words[1] == "show":
            found = [self._shown(interface, number) for number in range(count)]
            return Completed(0, json.dumps([{"ifname": interface, "vfinfo_list": found}]), "")
        index = words.index("vf") if "vf" in words else len(words)
        number, rest = int(words[index + 1]), words[index + 2 :]
        if number >= count or not set(rest[::2]) <= _DEFAULTS.keys():
            return Completed(2, "", "RTNETLINK answers: Invalid argument\n")
        changed = dict(zip(rest[::2], rest[1::2], strict=True))
        self.settings.setdefault((interface, number), {}).update(changed)
        return Completed(0, "", "")

    def _shown(self, interface: str, number: int) -> dict[str, Any]:
        values = _DEFAULTS | self.settings.get((interface, number), {})
        shown: dict[str, Any] = {_KEYS.get(name, name): text for name, text in values.items()}
        for name in ("spoofchk", "trust"):
            shown[name] = values[name] == "on"
        rates = {name: int(shown.pop(f"{name}_rate")) for name in ("min_tx", "max_tx")}
        vlan = {} if values["vlan"] == "0" else {"vlan": int(values["vlan"])}
        del shown["vlan"]
        return {"vf": number, **shown, "rate": rates, "vlan_list": [vlan]}
