# SPDX-License-Identifier: Apache-2.0
"""The whole service in a guest: the agent on its kernel, and everything else in one process.

The import takes a minute in a guest: import this in the test that needs it.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import webtest

from cyborg import conf as configuration
from cyborg import service
from cyborg.db import schema
from cyborg.db.engine import Database
from cyborg.drivers.host import LocalHost
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import shared
from cyborg.tests.fixtures.stack import Peers, Stack, Times
from cyborg.tests.functional.life.http import Client, bind_body

_ARQS: Final = "/accelerator_requests"
_GROUP: Final = "device_profile_0"
#: Seconds: everything takes long without KVM.
_TIMES: Final = Times(
    conductor_heartbeat=2.0,
    lease=60.0,
    bind_timeout=300.0,
    agent_heartbeat=2.0,
    scan=2.0,
    agent=120.0,
    rpc=120.0,
    full_check=20.0,
)
_PATIENCE: Final = 240.0


class Deployment:
    """API, conductor, Placement and the agent with one driver; ``undo`` stops them.

    ``directory`` gets their files. ``machine`` is the host of the agent, by default without
    privileges, and ``files`` are its configuration files. ``glance`` has the images; without it the
    agent can load none. The methods do what Nova does for one instance.
    """

    #: The name of the compute host.
    compute: Final = "guest"

    def __init__(
        self,
        driver: str,
        directory: Path,
        undo: ExitStack,
        *,
        machine: LocalHost | None = None,
        files: Sequence[Path] = (),
        glance: SimulatedGlance | None = None,
    ) -> None:
        self.conf = configuration.prepare(
            [], prog="tests", default_config_files=[str(file) for file in files]
        )
        self.conf.set_override("host", self.compute)
        undo.callback(self.conf.clear_override, "host")
        url = f"sqlite:///{directory}/cyborg.sqlite"
        database = Database(url)
        schema.upgrade(database)
        database.close()
        nova = undo.enter_context(SimulatedNova())
        shared().make_compute(self.compute)
        stack = Stack(
            conf=self.conf,
            database_url=url,
            transport_url="fake://",
            peers=Peers(
                placement=shared().adapter,
                nova=nova.adapter,
                glance=glance.adapter if glance else None,
            ),
            times=_TIMES,
        )
        undo.callback(stack.stop)
        stack.start_conductor()
        state = directory / "state"
        state.mkdir()
        stack.start_agent(
            self.compute, machine=machine or LocalHost(), drivers=(driver,), state_path=state
        )
        app = webtest.TestApp(stack.make_open_api())
        self._admin = Client(app, role="admin")
        self._nova = Client(app).with_service_token()

    def provider(self, key: str) -> str:
        """Return the resource provider of the device with this key."""
        return provider_uuid(f"{self.compute}_{key}")

    def wait_for_providers(self, group: Mapping[str, str], providers: set[str]) -> None:
        """Wait until Placement offers these providers for a group of a profile.

        It may have those of earlier deployments, too.
        """

        def offered() -> set[str]:
            try:
                answers = shared().candidates({"": {}, _GROUP: group})
            except RuntimeError:
                # The agent has not yet created the resource class or a trait.
                return set()
            return {answer.mappings[_GROUP][0] for answer in answers}

        assert service.wait_until(lambda: offered() >= providers, timeout=_PATIENCE, step=0.5)

    def bind(self, group: Mapping[str, str], provider: str, instance: str) -> tuple[str, object]:
        """Bind a unit of a provider for a new profile with this group; wait for the end.

        Returns the state of the ARQ, and the information of its attach handle.
        """
        profile = self._admin.make_profile(dict(group))
        arqs = self._nova.post(_ARQS, {"device_profile_name": profile})["arqs"]
        self._nova.patch(_ARQS, bind_body(arqs, self.compute, provider, instance))

        def state() -> str:
            [arq] = self._nova.get(_ARQS, instance=instance)["arqs"]
            return str(arq["state"])

        assert service.wait_until(
            lambda: state() in {"Bound", "BindFailed"}, timeout=_PATIENCE, step=0.5
        )
        [arq] = self._nova.get(_ARQS, instance=instance)["arqs"]
        return arq["state"], arq["attach_handle_info"]

    def delete(self, instance: str) -> None:
        """Delete the ARQs of an instance; the agent releases the unit afterwards."""
        self._nova.delete(f"{_ARQS}?instance={instance}")

    def wait_for_cleaning(self, unit: str, after: str = "") -> tuple[str, list[str]]:
        """Wait until a unit of the only device was cleaned, since ``after`` if it is given.

        Returns when that was, and the names of the steps.
        """
        admin = replace(self._admin, version="2.100")
        [device] = admin.get("/devices")["devices"]
        found: dict[str, Any] = {}

        def is_over() -> bool:
            for record in admin.get(f"/devices/{device['uuid']}")["cleaning"]:
                if record["unit"] == unit:
                    found.update(record)
            return found.get("result") == "cleaned" and found["at"] > after

        assert service.wait_until(is_over, timeout=_PATIENCE, step=0.5), found
        return found["at"], [step["name"] for step in found["steps"]]
