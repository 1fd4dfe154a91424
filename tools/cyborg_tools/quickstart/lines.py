# SPDX-License-Identifier: Apache-2.0
"""Shell commands to copy, for users who want to continue."""

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cyborg.tests.fixtures.placement import TOKEN
from cyborg_tools.quickstart.clients import MICROVERSION, Scenario, group_for

#: What the openstack client is made of, as distributions and as packages to look for.
_CLIENT = {"python-openstackclient": "openstackclient", "python-cyborgclient": "cyborgclient"}


_READ = "| python3 -m json.tool"
#: A server that does not exist; the simulated Nova accepts events about it.
_INSTANCE = "11111111-2222-4333-8444-555555555555"


def to_copy(scenario: Scenario, proxied: bool) -> Iterator[str]:
    """Lines for a shell, about the accelerator that the walk asked for.

    ``proxied`` tells that requests to the loopback interface would go to a proxy.
    """
    if proxied:
        yield "# Without this they would ask the proxy."
        yield 'export no_proxy="$no_proxy,127.0.0.1"'
        yield ""
    group = group_for(scenario.deployable)
    yield from _curl(scenario.url, group)
    yield ""
    yield from _binding(scenario)
    yield ""
    yield from _openstack(f"{scenario.url}/v2", group)
    yield ""
    yield from _cyborg(scenario.url)


def _curl(url: str, group: Mapping[str, str]) -> Iterator[str]:
    # Too long for a line as it is; within the quotes a shell lets it go on in the next.
    profile = f'[{{"name": "mine", "groups": [\n    {json.dumps(group)}]}}]'
    request = json.dumps({"device_profile_name": "mine"})
    yield "# with curl: the devices, a device profile of your own, an accelerator request for it"
    yield f"curl -s {url}/v2/devices {_READ}"
    for path, body in (("device_profiles", profile), ("accelerator_requests", request)):
        yield f"curl -s {url}/v2/{path} -H 'Content-Type: application/json' \\"
        yield f"  -d {shlex.quote(body)} \\"
        yield f"  {_READ}"


def _binding(scenario: Scenario) -> Iterator[str]:
    requests = f"{scenario.url}/v2/accelerator_requests"
    yield "# Nova's part: bind it; what the guest gets, and what Placement knows; the release"
    yield f"ARQ=$(curl -s '{requests}?device_profile_name=mine' \\"
    yield "  | grep -o '[0-9a-f-]\\{36\\}' | head -n 1)"
    yield f"curl -si -X PATCH {requests} \\"
    yield "  -H 'Content-Type: application/json' \\"
    yield "  -d '{\"'$ARQ'\": ["
    place = {
        "hostname": scenario.host,
        "device_rp_uuid": scenario.provider,
        "instance_uuid": _INSTANCE,
    }
    for at, (field, value) in enumerate(place.items(), 1):
        change = json.dumps({"op": "add", "path": f"/{field}", "value": value})
        yield f"    {change}" + ("," if at < len(place) else "]}'")
    yield "curl -s \\"
    yield f"  '{requests}?instance={_INSTANCE}' \\"
    yield f"  {_READ}"
    offered = f"{scenario.placement_url}/resource_providers/{scenario.provider}/inventories"
    yield "curl -s \\"
    yield f"  {offered} \\"
    yield f"  -H 'X-Auth-Token: {TOKEN}' -H 'OpenStack-API-Version: {MICROVERSION}' {_READ}"
    yield "curl -si -X DELETE \\"
    yield f"  '{requests}?instance={_INSTANCE}'"


def _openstack(endpoint: str, group: Mapping[str, str]) -> Iterator[str]:
    scripts = Path(sys.executable).parent
    missing = [name for name, package in _CLIENT.items() if not importlib.util.find_spec(package)]
    client = f"openstack --os-auth-type none --os-endpoint {endpoint}"
    yield "# with the openstack client"
    if missing:
        yield f"{shlex.quote(str(scripts / 'pip'))} install {' '.join(missing)}"
    yield f'export PATH="{scripts}:$PATH"'
    yield f"{client} accelerator device list"
    yield f"{client} accelerator deployable list"
    wanted = ",".join(f"{key}={value}" for key, value in group.items())
    yield f"{client} accelerator \\"
    yield "  device profile create other \\"
    yield f"  --group {shlex.quote(wanted)}"
    yield f"{client} accelerator arq create other"
    yield f"{client} accelerator arq list"


def _cyborg(endpoint: str) -> Iterator[str]:
    yield "# with the command of this package: out of service, and into it again"
    yield f"export OS_AUTH_TYPE=none OS_ENDPOINT={endpoint}"
    yield "cyborg accelerator-list"
    yield "DEVICE=$(cyborg accelerator-list -f value -c uuid)"
    for status in ("maintaining", "ready"):
        yield f"cyborg accelerator-update $DEVICE --status {status}"
    yield "cyborg usage-show"
    yield "cyborg hardware-list --long"
