# SPDX-License-Identifier: Apache-2.0
"""The walking skeleton: discovered, asked for, bound, resolved, released; and the last handle."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from cyborg.tests.fixtures.compute_host import ComputeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body
from cyborg.tests.functional.life.steps import create_many

FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
TWO = {**FPGA, "resources:FPGA": "2"}


def test_arq_is_created_bound_and_deleted(
    compute: Callable[..., ComputeHost],
    profile: Callable[..., str],
    member: Client,
    placement: PlacementService,
    nova_api: SimulatedNova,
) -> None:
    host = compute()
    name = profile(TWO)
    instance = str(uuid4())
    (candidate,) = placement.candidates({"device_profile_0": TWO}, in_tree=host.root)
    assert candidate.mappings["device_profile_0"] == [host.fake_provider]

    arqs = member.post("/accelerator_requests", {"device_profile_name": name})["arqs"]
    assert [arq["state"] for arq in arqs] == ["Initial", "Initial"]
    nova = member.with_service_token()
    body = bind_body(arqs, host.compute, host.fake_provider, instance)
    nova.patch("/accelerator_requests", body)

    bound = nova.get("/accelerator_requests", instance=instance)["arqs"]
    assert {arq["state"] for arq in bound} == {"Bound"}
    assert {arq["attach_handle_type"] for arq in bound} == {"TEST_PCI"}
    assert len({arq["attach_handle_uuid"] for arq in bound}) == 2
    tags = [arq["uuid"] for arq in arqs]
    assert nova_api.wait_for_events(tags, timeout=5) == dict.fromkeys(tags, "completed")

    nova.delete(f"/accelerator_requests?instance={instance}")
    assert nova.get("/accelerator_requests", instance=instance)["arqs"] == []
    nova.delete(f"/accelerator_requests?instance={instance}")


def test_unbound_arq_is_bound_again(
    compute: Callable[..., ComputeHost], profile: Callable[..., str], member: Client
) -> None:
    host = compute()
    arqs = member.post("/accelerator_requests", {"device_profile_name": profile(FPGA)})["arqs"]
    nova = member.with_service_token()
    for _ in range(2):
        body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
        nova.patch("/accelerator_requests", body)
        nova.patch("/accelerator_requests", unbind_body(arqs))
        after = member.get(f"/accelerator_requests/{arqs[0]['uuid']}")
        assert (after["state"], after["instance_uuid"]) == ("Unbound", None)
        assert (after["attach_handle_type"], after["attach_handle_info"]) == ("", {})


def test_second_bind_of_an_instance_is_refused(
    compute: Callable[..., ComputeHost], profile: Callable[..., str], member: Client
) -> None:
    host = compute()
    name, instance = profile(FPGA), str(uuid4())
    nova = member.with_service_token()
    first = member.post("/accelerator_requests", {"device_profile_name": name})["arqs"]
    second = member.post("/accelerator_requests", {"device_profile_name": name})["arqs"]
    place = (host.compute, host.fake_provider, instance)
    nova.patch("/accelerator_requests", bind_body(first, *place))
    nova.patch("/accelerator_requests", bind_body(second, *place), status=400)
    untouched = member.get(f"/accelerator_requests/{second[0]['uuid']}")
    assert (untouched["state"], untouched["instance_uuid"]) == ("Initial", None)


def test_one_of_32_clients_gets_the_last_handle(
    compute: Callable[..., ComputeHost], profile: Callable[..., str], member: Client
) -> None:
    host = compute()
    nova = member.with_service_token()
    hold = member.post(
        "/accelerator_requests", {"device_profile_name": profile({**FPGA, "resources:FPGA": "15"})}
    )["arqs"]
    nova.patch(
        "/accelerator_requests", bind_body(hold, host.compute, host.fake_provider, str(uuid4()))
    )
    rivals = create_many(member, profile, "FPGA", 32)
    answers: Counter[int] = Counter()
    lock = threading.Lock()

    def bind(arqs: list[dict[str, Any]]) -> None:
        body = bind_body(arqs, host.compute, host.fake_provider, str(uuid4()))
        answer = nova.answer("PATCH", "/accelerator_requests", body)
        with lock:
            answers[answer] += 1

    threads = [threading.Thread(target=bind, args=(one,)) for one in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {202: 1, 409: 31}
    held = [
        arq["attach_handle_uuid"]
        for arq in member.get("/accelerator_requests", limit=100)["arqs"]
        if arq["state"] == "Bound"
    ]
    assert len(held) == len(set(held)) == 16
