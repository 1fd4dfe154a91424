# SPDX-License-Identifier: Apache-2.0
"""The three daemons together, and clients that go through all they offer."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import requests

from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.log_lines import too_frequent
from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.fixtures.waiting import PATIENCE, eventually, joined

FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}


class Http:
    """A client of a service; ``url`` is without a version, ``headers`` may hold tokens."""

    def __init__(
        self,
        url: str,
        *,
        version: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._session = requests.Session()
        self._session.headers.update(headers or {})
        if version:
            self._session.headers["OpenStack-API-Version"] = f"accelerator {version}"

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        """One request; the answer whatever it is."""
        return self._session.request(method, f"{self.url}{path}", json=body, timeout=PATIENCE)

    def do(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """One request that must be answered with ``status``; the parsed body, None if empty."""
        answer = self.ask(method, f"/v2{path}", body)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        """The parsed answer of a GET."""
        return self.do("GET", path)

    def write(self) -> int:
        """Make a device profile; the status of the answer."""
        body = [{"name": f"profile-{uuid4().hex}", "groups": [{"resources:FPGA": "1"}]}]
        return self.ask("POST", "/v2/device_profiles", body).status_code

    def ended(self, method: str, path: str, body: Any) -> Any:
        """The operation that a request begins, when it is over."""
        return self.over(self.do(method, path, body, status=202))

    def over(self, operation: Any) -> Any:
        """An operation that was begun, when it is over."""
        path = f"/operations/{operation['uuid']}"
        eventually(lambda: self.get(path)["state"] != "running", "the end of an operation")
        return self.get(path)

    def healthy(self) -> bool:
        """Whether database and bus answer, in the eyes of this API."""
        return self.ask("GET", "/healthcheck").status_code == 200


@dataclass
class Service:
    """A conductor and an agent, running, and an API in front of them."""

    deployment: Deployment
    host: str
    conductor: Program
    agent: Program
    api: Program
    url: str
    headers: Mapping[str, str] | None = None

    def client(self) -> Http:
        """A new client of the API."""
        return Http(self.url, headers=self.headers)

    @property
    def programs(self) -> tuple[Program, Program, Program]:
        """All three."""
        return self.api, self.conductor, self.agent

    @property
    def provider(self) -> str:
        """The resource provider of the fake device."""
        return provider_uuid(f"{self.host.replace('.', '_')}_FakeDevice")


def start_service(
    deployment: Deployment, host: str, *, headers: Mapping[str, str] | None = None
) -> Service:
    """Start all three, and wait until they know each other."""
    conductor, agent = deployment.conductor(), deployment.agent()
    api, url = deployment.api()
    service = Service(deployment, host, conductor, agent, api, url, headers)
    http = service.client()
    eventually(http.healthy, lambda: api.output)
    devices = f"/devices?hostname={host}"
    eventually(lambda: bool(http.get(devices)["devices"]), lambda: agent.output)
    return service


def go_through_everything(
    http: Http, host: str, provider: str, *, when_bound: Callable[[], None] = lambda: None
) -> None:
    """Read and write each of the five resources.

    ``when_bound`` is called while an ARQ is Bound, which is deleted afterwards.
    """
    name = f"profile-{uuid4().hex}"
    made = http.do("POST", "/device_profiles", [{"name": name, "groups": [FPGA]}], status=201)
    assert http.get(f"/device_profiles/{made['uuid']}")["device_profile"]["name"] == name
    (arq,) = http.do("POST", "/accelerator_requests", {"device_profile_name": name}, status=201)[
        "arqs"
    ]
    instance = str(uuid4())
    http.do("PATCH", "/accelerator_requests", bind_body(arq, host, provider, instance), status=202)
    (bound,) = http.get(f"/accelerator_requests?instance={instance}")["arqs"]
    assert (bound["state"], bound["hostname"]) == ("Bound", host)
    when_bound()
    http.do("DELETE", f"/accelerator_requests?instance={instance}", status=204)
    http.do("DELETE", f"/device_profiles/{name}", status=204)

    (device,) = http.get(f"/devices?hostname={host}")["devices"]
    for verb in ("disable", "enable"):
        http.do("POST", f"/devices/{device['uuid']}/{verb}", status=204)
    (deployable,) = [
        one for one in http.get("/deployables")["deployables"] if one["num_accelerators"] == 16
    ]
    assert http.get(f"/deployables/{deployable['uuid']}")["uuid"] == deployable["uuid"]
    image = [{"path": "/program", "op": "replace", "value": [{"image_uuid": str(uuid4())}]}]
    http.do("PATCH", f"/deployables/{deployable['uuid']}/program", image, status=409)
    body = {"deployable_id": deployable["uuid"], "key": "colour", "value": "blue"}
    attribute = http.do("POST", "/attributes", body, status=201)
    assert attribute["uuid"] in [one["uuid"] for one in http.get("/attributes")["attributes"]]
    http.do("DELETE", f"/attributes/{attribute['uuid']}", status=204)


def bind_body(arq: dict[str, Any], host: str, provider: str, instance: str) -> Any:
    """The body of Nova's PATCH for one ARQ."""
    fields = {"hostname": host, "device_rp_uuid": provider, "instance_uuid": instance}
    return {
        arq["uuid"]: [
            {"path": f"/{name}", "op": "add", "value": value} for name, value in fields.items()
        ]
    }


def all_at_once(count: int, work: Callable[[int], object]) -> Counter[str]:
    """Run ``work`` in ``count`` threads; how often each answer, or exception, came out."""
    results: Counter[str] = Counter()
    lock = threading.Lock()

    def one(number: int) -> None:
        try:
            result = str(work(number))
        except (AssertionError, requests.RequestException) as fault:
            result = f"{type(fault).__name__}: {fault}"
        with lock:
            results[result] += 1

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    joined(*threads)
    return results


@contextmanager
def few_lines(*programs: Program) -> Iterator[None]:
    """No program repeats a line in an outage more often than the limit of its log allows."""
    before, began = [len(one.output) for one in programs], time.monotonic()
    yield
    seconds = time.monotonic() - began
    for program, length in zip(programs, before, strict=True):
        repeated = too_frequent(program.output[length:], seconds=seconds)
        assert not repeated, program.log
