# SPDX-License-Identifier: Apache-2.0
"""The cloud of the night run: its own account on RabbitMQ, and a Keystone that can fail."""

from contextlib import ExitStack
from urllib.parse import urlsplit

from cyborg.model.process import API
from cyborg.rpc.transport import in_thread
from cyborg.tests.fixtures.broker import Tenant
from cyborg.tests.fixtures.keystone import ADMIN, KeystoneService
from cyborg.tests.fixtures.processes import Options
from cyborg.tests.fixtures.proxy import Proxy
from cyborg_tools.chaos.world import World

#: Seconds between two heartbeats of the agent, so that its silence shows in a short outage.
_HEARTBEAT = 3


class NightWorld(World):
    """The first API asks for no token, for the servers; the second asks Keystone, as in a cloud.

    Both show the details of their health check. The daemons reach Keystone through ``keystone``.
    """

    tenant: Tenant
    keystone: Proxy

    @property
    def options(self) -> Options:
        """See World."""
        url = f"http://127.0.0.1:{self.keystone.port}/v3"
        common = {name: dict(values) for name, values in super().options.items()}
        common["DEFAULT"] |= {"transport_url": self.tenant.url, "rpc_response_timeout": 5}
        common["api"]["auth_strategy"] = "keystone"
        common["agent"]["heartbeat_interval"] = _HEARTBEAT
        common["healthcheck"] = {"detailed": True}
        common["keystone_authtoken"] = dict(self._account.options(url))
        common["nova"] = {
            **self._account.options(url),
            "endpoint_override": f"{self.nova_front.url}/v2.1",
        }
        return common

    @property
    def own_options(self) -> dict[str, Options]:
        """See World."""
        own = super().own_options
        return own | {f"{API}-1": {"api": {**own[f"{API}-1"]["api"], "auth_strategy": "noauth"}}}

    def token(self) -> str:
        """Return a new token of an administrator: the API has not validated it before."""
        return self._identity.token(ADMIN)

    def _start(self, endings: ExitStack) -> None:
        directory = self.directory / "keystone"
        directory.mkdir()
        self._identity = KeystoneService(directory)
        endings.callback(self._identity.stop)
        # It takes seconds, as the other servers do.
        self._identity_runs = in_thread(self._identity.start, name="keystone")
        super()._start(endings)

    def _start_daemons(self, endings: ExitStack) -> None:
        self._identity_runs.result()
        self._account = self._identity.make_account("cyborg", "service", "service", "admin")
        port = urlsplit(self._identity.url).port or 0
        self.keystone = endings.enter_context(Proxy("127.0.0.1", port))
        # The API takes the address for its validations from the catalogue.
        self._identity.register("identity", f"http://127.0.0.1:{self.keystone.port}/v3")
        self.rabbit.wait()
        self.tenant = endings.enter_context(Tenant(self.rabbit.url, self.rabbit.control))
        self.tenant.add_user(self.tenant.password)
        self.tenant.add_vhost()
        self.tenant.permit()
        super()._start_daemons(endings)
