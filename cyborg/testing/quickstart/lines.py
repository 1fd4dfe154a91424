# SPDX-License-Identifier: Apache-2.0
"""Lines to copy, for those who want to go on by themselves."""

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cyborg.model.device import Deployable
from cyborg.testing.placement import TOKEN
from cyborg.testing.quickstart.peer import MICROVERSION, group_for

#: What the openstack client is made of, as distributions and as packages to look for.
_CLIENT = {"python-openstackclient": "openstackclient", "python-cyborgclient": "cyborgclient"}


def to_copy(url: str, placement_url: str, deployable: Deployable, proxied: bool) -> Iterator[str]:
    """Lines for a shell; ``url`` is that of the REST API without a version.

    ``proxied`` tells that requests to the loopback interface would go to a proxy.
    """
    if proxied:
        yield "# Without this they would ask the proxy."
        yield 'export no_proxy="$no_proxy,127.0.0.1"'
        yield ""
    group = group_for(deployable)
    yield from _curl(url, placement_url, group)
    yield ""
    yield from _openstack(f"{url}/v2", group)


def _curl(url: str, placement_url: str, group: Mapping[str, str]) -> Iterator[str]:
    # Too long for a line as it is; within the quotes a shell lets it go on in the next.
    profile = f'[{{"name": "mine", "groups": [\n    {json.dumps(group)}]}}]'
    request = json.dumps({"device_profile_name": "mine"})
    read = "| python3 -m json.tool"
    yield "# with curl: the devices, a device profile of your own, an accelerator request for it"
    yield f"curl -s {url}/v2/devices {read}"
    for path, body in (("device_profiles", profile), ("accelerator_requests", request)):
        yield f"curl -s {url}/v2/{path} -H 'Content-Type: application/json' \\"
        yield f"  -d {shlex.quote(body)} \\"
        yield f"  {read}"
    yield f"curl -s {url}/v2/accelerator_requests {read}"
    yield "# what Placement knows"
    yield f"curl -s {placement_url}/resource_providers -H 'X-Auth-Token: {TOKEN}' \\"
    yield f"  -H 'OpenStack-API-Version: {MICROVERSION}' {read}"


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
