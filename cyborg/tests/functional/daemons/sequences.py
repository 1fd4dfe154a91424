# SPDX-License-Identifier: Apache-2.0
"""Sequences of requests that schemathesis generates along links between requests.

A generated bind names values that exist: the host, its provider, and an instance that Nova knows
and that has an allocation in Placement, as after the scheduler's work.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import schemathesis
from hypothesis import Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.engine.recorder import ScenarioRecorder
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ensure_resource_availability,
    response_schema_conformance,
    status_code_conformance,
    use_after_free,
)

from cyborg.api import microversion
from cyborg.api.middleware.auth_token import PROJECT_ID
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.daemons.service import FPGA, Http, Service, bind_body
from cyborg.tests.unit.api.links import linked

#: What an operation deletes; the operation may fail, and then its object stays.
_OPERATED = ("/v2/devices", "/v2/drivers")


def gone_after_deletion(ctx: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """What a request itself deletes must not be found afterwards."""
    if case.operation.path.startswith(_OPERATED):
        return None
    return use_after_free(ctx, response, case)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    gone_after_deletion,
    ensure_resource_availability,
]
#: Requests of a sequence.
STEPS = 20
PROFILES, ARQS = "/v2/device_profiles", "/v2/accelerator_requests"
#: One of so many new profiles keeps its generated groups.
KEPT = 4
#: The last step of an accelerator request; the others are its states.
DELETED = "deleted"
#: Parameters of every list, whose random values are refused.
_PAGING = ("sort_key", "sort_dir", "marker")
VERSION = {microversion.HEADER: f"accelerator {microversion.MAXIMUM}"}


@dataclass
class Instances:
    """The instances of the binds: in Nova, and with an allocation of one unit in Placement."""

    service: Service
    placement: PlacementService
    nova: SimulatedNova
    http: Http
    uuids: list[str] = field(default_factory=list)

    def new(self) -> str:
        """A new instance; one of those that exist if they use all units."""
        uuid = str(uuid4())
        if not self._allocate(uuid):
            self.drop_unused()
            if not self._allocate(uuid):
                return self.uuids[-1]
        self.nova.own(uuid, PROJECT_ID, self.service.host)
        self.uuids.append(uuid)
        return uuid

    def drop_unused(self) -> None:
        """Delete the instances without accelerator requests, with their allocations."""
        arqs = self.http.get("/accelerator_requests")["arqs"]
        used = {arq["instance_uuid"] for arq in arqs}
        for uuid in set(self.uuids) - used:
            self.placement.free(uuid)
            self.nova.disown(uuid)
        self.uuids = [uuid for uuid in self.uuids if uuid in used]

    def _allocate(self, uuid: str) -> bool:
        return self.placement.claim(uuid, {self.service.provider: {"FPGA": 1}}, PROJECT_ID)


@dataclass
class Record:
    """What the requests of all sequences reached, and how they were answered."""

    instances: Instances
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: The states that each accelerator request had, and its deletion.
    lives: dict[str, list[str]] = field(default_factory=dict)
    #: Those whose device profile the same sequence created.
    linked: set[str] = field(default_factory=set)
    longest: tuple[float, str] = (0.0, "")

    def prepare(self, case: Any) -> None:
        """Give a request values that exist, where random values would only be refused."""
        label, body = case.operation.label, case.body
        case.query, body = _printable(case.query), _printable(body)
        case.body = body
        for name in _PAGING if case.query else ():
            case.query.pop(name, None)
        if any(parameter.name == "wait" for parameter in case.operation.query):
            # An agent that loads a driver restarts, and is down meanwhile.
            case.query = {**(case.query or {}), "wait": True}
        if label == f"POST {PROFILES}" and isinstance(body, list) and body:
            if isinstance(body[0], dict) and sum(self.answers.values()) % KEPT:
                body[0]["groups"] = [FPGA]
        elif label == f"PATCH {ARQS}/{{id}}" and case.path_parameters["id"] in self.lives:
            case.body = self._change(case.path_parameters["id"], body)
        elif label == f"DELETE {ARQS}":
            # Exactly one of the two is allowed.
            query = dict(case.query or {})
            if _words(query.get("arqs")) & self.lives.keys():
                query.pop("instance", None)
            elif query.get("instance") in self.instances.uuids:
                query.pop("arqs", None)
            case.query = query

    def _change(self, uuid: str, generated: Any) -> Any:
        """The body that binds an ARQ, or unbinds it if the generated one does that to others."""
        if {one["op"] for ops in generated.values() for one in ops} == {"remove"}:
            return {uuid: [{"path": "/hostname", "op": "remove"}]}
        service = self.instances.service
        return bind_body({"uuid": uuid}, service.host, service.provider, self.instances.new())

    def note(self, case: Any, response: Response, recorder: ScenarioRecorder) -> None:
        """Count an answer, and what it says about accelerator requests."""
        label, status = case.operation.label, response.status_code
        self.answers[label, status] += 1
        self.longest = max(self.longest, (response.elapsed, label))
        if label == f"POST {ARQS}" and status == 201:
            node = recorder.cases[case.id]
            parent = recorder.find_parent(case_id=case.id)
            made = parent is not None and parent.operation.label == f"POST {PROFILES}"
            for arq in response.json()["arqs"]:
                self.lives[arq["uuid"]] = [arq["state"]]
                if made and node.is_transition_applied:
                    self.linked.add(arq["uuid"])
        elif label == f"PATCH {ARQS}/{{id}}" and status == 202:
            for uuid in case.body:
                arq = self.instances.http.get(f"/accelerator_requests/{uuid}")
                self.lives[uuid].append(arq["state"])
        elif label.startswith(f"DELETE {ARQS}") and status == 204:
            query: dict[str, Any] = {**(case.path_parameters or {}), **(case.query or {})}
            named = _words(query.get("id")) | _words(query.get("arqs"))
            for uuid in named & self.lives.keys():
                self.lives[uuid].append(DELETED)

    @property
    def complete(self) -> bool:
        """Whether a sequence led from a new profile to an ARQ, its bind and its deletion."""
        lives = [self.lives[uuid] for uuid in self.linked]
        return any("Bound" in life and life[-1] == DELETED for life in lives)

    @property
    def figures(self) -> str:
        """One line: requests by class of status, and the longest answer."""
        classes = Counter(status // 100 for _, status in self.answers.elements())
        operations = len({label for label, _ in self.answers})
        words = ", ".join(f"{classes[number]} answered {number}xx" for number in (2, 4, 5))
        seconds, label = self.longest
        return (
            f"sequences: {operations} operations, {self.answers.total()} requests, {words}; "
            f"longest answer {seconds:.3f} s ({label})"
        )


def _printable(value: Any) -> Any:
    """The same value without control characters, which the API refuses in every string."""
    if isinstance(value, str):
        return "".join(one for one in value if one.isprintable())
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(member) for name, member in value.items()}
    return value


def _words(value: Any) -> set[str]:
    return set(value if isinstance(value, list) else str(value).split(","))


def run(schema: Any, record: Record, counts: range, *, enough: Callable[[], bool]) -> None:
    """Send sequences of requests and check each answer, until ``enough`` is true.

    The number of runs is one of ``counts``. The number of a run is the seed of its choices.
    """

    def before_call(self: Any, case: Any) -> None:
        record.prepare(case)

    def get_call_kwargs(self: Any, case: Any) -> dict[str, Any]:
        return {"headers": VERSION, "base_url": record.instances.http.url, "timeout": PATIENCE}

    def after_call(self: Any, response: Response, case: Any) -> None:
        self.recorder.record_response(case_id=case.id, response=response)
        record.note(case, response, self.recorder)

    def validate_response(
        self: Any, response: Response, case: Any, _checks: Any = None, **sent: Any
    ) -> None:
        case.validate_response(
            response, checks=CHECKS, recorder=self.recorder, transport_kwargs=sent
        )

    hooks = (before_call, get_call_kwargs, after_call, validate_response)
    base = schema.as_state_machine()
    machine: Any = type("Machine", (base,), {hook.__name__: hook for hook in hooks})
    options = settings(
        # The first example of a run is always the shortest one.
        max_examples=2,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
    )
    for number in range(counts.stop):
        if number >= counts.start and enough():
            return
        # The same choices have other results while rows of earlier sequences exist.
        with suppress(FlakyStrategyDefinition):
            seed(number)(machine).run(settings=options)


def described(url: str) -> Any:
    """The document as the API serves it, with the links of ``linked`` only; all requests are valid.

    ``test_generated_requests`` sends invalid ones.
    """
    document = Http(url, version=microversion.MAXIMUM).get("/openapi.json")
    schema = schemathesis.openapi.from_dict(linked(document))
    schema.config.phases.stateful.inference.algorithms = []
    schema.config.generation.update(modes=[GenerationMode.POSITIVE])
    return schema
