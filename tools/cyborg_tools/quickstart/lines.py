# SPDX-License-Identifier: Apache-2.0
"""Shell commands to copy, for users who want to continue."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path

from cyborg.tests.fixtures.keystone import REGION, Account
from cyborg.tests.fixtures.placement import TOKEN
from cyborg_tools.quickstart.clients import MICROVERSION, Scenario, group_for

#: What the openstack client is made of, as distributions and as packages to look for.
_CLIENT = {"python-openstackclient": "openstackclient", "python-cyborgclient": "cyborgclient"}
#: A server that does not exist; the simulated Nova accepts events about it.
_INSTANCE = "11111111-2222-4333-8444-555555555555"
_PROXIED = """\
# Without this they would ask the proxy.
export no_proxy="$no_proxy,127.0.0.1"

"""
#: The profile is too long for a line as it is; within the quotes a shell lets it go on in the next.
_TEXT = """\
# with curl: the devices, a device profile of your own, an accelerator request for it
curl -s {url}/v2/devices | python3 -m json.tool
curl -s {url}/v2/device_profiles -H 'Content-Type: application/json' \\
  -d '[{{"name": "mine", "groups": [
    {group}]}}]' \\
  | python3 -m json.tool
curl -s {arqs} -H 'Content-Type: application/json' \\
  -d '{{"device_profile_name": "mine"}}' \\
  | python3 -m json.tool

# Nova's part: bind it; what the guest gets, and what Placement knows; the release
ARQ=$(curl -s '{arqs}?device_profile_name=mine' \\
  | grep -o '[0-9a-f-]\\{{36\\}}' | head -n 1)
curl -si -X PATCH {arqs} \\
  -H 'Content-Type: application/json' \\
  -d '{{"'$ARQ'": [
    {{"op": "add", "path": "/hostname", "value": "{host}"}},
    {{"op": "add", "path": "/device_rp_uuid", "value": "{provider}"}},
    {{"op": "add", "path": "/instance_uuid", "value": "{instance}"}}]}}'
curl -s \\
  '{arqs}?instance={instance}' \\
  | python3 -m json.tool
curl -s \\
  {placement}/resource_providers/{provider}/inventories \\
  -H 'X-Auth-Token: {token}' -H 'OpenStack-API-Version: {version}' | python3 -m json.tool
curl -si -X DELETE \\
  '{arqs}?instance={instance}'

# with the openstack client
{install}export PATH="{scripts}:$PATH"
{client} device list
{client} deployable list
{client} \\
  device profile create other \\
  --group {wanted}
{client} arq create other
{client} arq list

# with the command of this package: out of service, and into it again
export OS_AUTH_TYPE=none OS_ENDPOINT={url}
cyborg accelerator-list
DEVICE=$(cyborg accelerator-list -f value -c uuid)
cyborg accelerator-update $DEVICE --status maintaining
cyborg accelerator-update $DEVICE --status ready
cyborg usage-show
cyborg hardware-list --long
"""


_WITH_KEYSTONE = """\
# with the command of this package, as the administrator: devices, capacity, a dry run
export OS_AUTH_TYPE=password OS_AUTH_URL={auth_url} OS_REGION_NAME={region}
export OS_USERNAME={user} OS_PASSWORD={password} OS_PROJECT_NAME={project}
export OS_USER_DOMAIN_ID=default OS_PROJECT_DOMAIN_ID=default
export PATH="{scripts}:$PATH"
cyborg accelerator-list
cyborg capacity
cyborg host-drain {host} --dry-run
"""


def for_account(scenario: Scenario, auth_url: str, account: Account, *, proxied: bool) -> str:
    """Lines for a shell, which authenticate with the account of an administrator.

    ``proxied`` is that of ``to_copy``.
    """
    return (_PROXIED if proxied else "") + _WITH_KEYSTONE.format(
        auth_url=auth_url,
        region=REGION,
        user=shlex.quote(account.user),
        password=shlex.quote(account.password),
        project=shlex.quote(account.project),
        scripts=Path(sys.executable).parent,
        host=shlex.quote(scenario.host),
    )


def to_copy(scenario: Scenario, proxied: bool) -> str:
    """Lines for a shell, about the accelerator that the walk asked for.

    ``proxied`` tells that requests to the loopback interface would go to a proxy.
    """
    scripts = Path(sys.executable).parent
    missing = [name for name, package in _CLIENT.items() if not importlib.util.find_spec(package)]
    pip = f"{shlex.quote(str(scripts / 'pip'))} install {' '.join(missing)}\n"
    group = group_for(scenario.deployable)
    return (_PROXIED if proxied else "") + _TEXT.format(
        url=scenario.url,
        arqs=f"{scenario.url}/v2/accelerator_requests",
        group=json.dumps(group),
        host=scenario.host,
        provider=scenario.provider,
        instance=_INSTANCE,
        placement=scenario.placement_url,
        token=TOKEN,
        version=MICROVERSION,
        install=pip if missing else "",
        scripts=scripts,
        client=f"openstack --os-auth-type none --os-endpoint {scenario.url}/v2 accelerator",
        wanted=shlex.quote(",".join(f"{key}={value}" for key, value in group.items())),
    )
