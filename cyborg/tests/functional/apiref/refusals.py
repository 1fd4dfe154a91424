# SPDX-License-Identifier: Apache-2.0
"""One request for each code by which the API refuses, and the documents that need no token."""

from typing import Any, Final, cast
from uuid import uuid4

import webtest

from cyborg.db.engine import Reader
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.fixtures.direct_bus import DirectBus, Exchange
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.apiref.recorder import Recorder
from cyborg.tests.functional.apiref.site import Site, mounted
from cyborg.tests.functional.apiref.story import PROJECT
from cyborg.tests.functional.life.http import Client

_MEGABYTE = 1 << 20
_AS_TEXT: Final[dict[str, Any]] = {
    "content_type": "text/plain",
    "headers": {
        "X-Identity-Status": "Confirmed",
        "X-Roles": "admin",
        "X-Project-Id": PROJECT,
        "X-User-Id": PROJECT,
    },
}


class _Broken:
    """A reader with a fault that nobody has thought of."""

    def reader(self) -> Any:
        """See Reader."""
        raise RuntimeError("a fault of the service")


def tell(site: Site, recorder: Recorder) -> None:
    """Ask for what is public, then for what cannot be had."""
    ask, http = recorder.ask, site.http
    for name, path in {"root": "/", "v2": "/v2"}.items():
        recorder.keep(f"versions/{name}-resp", http.get(path).json)
    health = http.get("/healthcheck", headers={"Accept": "application/json"})
    recorder.keep("health/show-resp", health.json)
    user, admin = Client(http, project=PROJECT), Client(http, role="admin")
    unknown = f"/accelerator_requests/{uuid4()}"
    profile = {"name": "b", "groups": [{"resources:PGPU": "one"}]}
    ask("errors/400", admin, "POST /device_profiles", [profile], status=400)
    nobody = site.guarded().get("/v2/devices", status=401)
    recorder.keep("errors/401-resp", nobody.json)
    ask("errors/403", user, "GET /devices", status=403)
    ask("errors/404", user, f"GET {unknown}", status=404)
    ask("errors/405", user, "PUT /devices", status=405)
    ask("errors/406", Client(http, version="2.99"), "GET /devices", status=406)
    large = [{"name": "x" * _MEGABYTE}]
    recorder.keep("errors/413-resp", admin.send("POST", "/device_profiles", large, 413))
    text = http.post("/v2/device_profiles", b"a100", **_AS_TEXT, status=415)
    recorder.keep("errors/415-resp", text.json)
    faulty = Client(_api(site, reader=cast(Reader, _Broken())), role="admin")
    ask("errors/500", faulty, "GET /devices", status=500)
    alone = ConductorClient(DirectBus(Exchange()), timeout=PATIENCE)
    forsaken = Client(_api(site, conductor=alone), project=PROJECT)
    body = {"device_profile_name": "a100"}
    ask("errors/503", forsaken, "POST /accelerator_requests", body, status=503)


def _api(site: Site, **given: Any) -> webtest.TestApp:
    """Return another API, whose reader or conductor is given."""
    api = site.processes.api
    given = {"reader": api.reader, "conductor": api.conductor, **given}
    return mounted(site.processes.environment.api(site.conf, **given).app)
