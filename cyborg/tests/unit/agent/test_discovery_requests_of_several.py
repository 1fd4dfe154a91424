# SPDX-License-Identifier: Apache-2.0
"""Answers about several drivers and backends, and several requests at once."""

from dataclasses import replace

import pytest

from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.model.device import Backend, Device
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import Discovered, DiscoveryTask
from cyborg.rpc.threads import in_thread
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.waiting import result

(HARDWARE,) = report_of("compute", 8).drivers


@pytest.fixture
def requests() -> DiscoveryRequests:
    """Nobody waits for an answer that is not there."""
    return DiscoveryRequests(timeout=0)


def report(name: str, *devices: Device, backends: tuple[Backend, ...] = ()) -> DriverReport:
    return DriverReport(name, DriverState.READY, devices, backends=backends)


def ask(requests: DiscoveryRequests, key: str, driver: str | None = None) -> Discovered:
    return requests.request(DiscoveryTask(key, driver), wake=lambda: None)


def answer(requests: DiscoveryRequests, *after: DriverReport, **rejected: dict[str, str]) -> None:
    requests.answer(requests.pending(), None, Report(after), rejected=rejected, refusals={})


def test_request_is_answered_in_time_although_the_loop_hangs() -> None:
    requests = DiscoveryRequests(timeout=0.01)
    asked = in_thread(lambda: ask(requests, "key"))
    assert result(asked) == Discovered("key", done=False)
    assert [task.request_key for task in requests.pending()] == ["key"]


def test_all_requests_that_wait_are_answered(requests: DiscoveryRequests) -> None:
    for key, driver in (("first", "a"), ("second", "b"), ("third", None)):
        assert not ask(requests, key, driver).done
    assert [task.request_key for task in requests.pending()] == ["first", "second", "third"]
    answer(requests, report("a", *HARDWARE.devices[:1]), report("b", *HARDWARE.devices[1:3]))
    counts = {
        key: [found.discovered for found in ask(requests, key).drivers]
        for key in ("first", "second", "third")
    }
    assert counts == {"first": [1], "second": [2], "third": [1, 2]}
    assert requests.pending() == []


def test_answer_for_one_driver_keeps_what_is_new_of_another(requests: DiscoveryRequests) -> None:
    requests.drivers_changed(["a", "b"], None)
    after = (report("a", *HARDWARE.devices[:1]), report("b", *HARDWARE.devices[1:3]))
    added = []
    for driver in ("a", "b"):
        ask(requests, driver, driver)
        requests.answer(requests.pending(), Report(after), Report(after), rejected={}, refusals={})
        (found,) = ask(requests, driver).drivers
        added.append(found.added)
    assert added == [1, 2]


def test_device_with_one_rejected_part_has_failed_and_only_for_its_own_driver(
    requests: DiscoveryRequests,
) -> None:
    card = HARDWARE.devices[0]
    (part,) = card.deployables
    divided = replace(card, deployables=(part, replace(part, name="other part")))
    ask(requests, "key")
    answer(
        requests,
        report("a", divided, HARDWARE.devices[1]),
        report("b", divided),
        a={part.name: "it is another's"},
        b={HARDWARE.devices[1].deployables[0].name: "no"},
    )
    first, second = ask(requests, "key").drivers
    assert (first.discovered, first.failed, first.error) == (2, 1, "it is another's")
    assert (second.discovered, second.failed) == (1, 0)


def test_backend_whose_name_begins_another_name_has_its_own_counts(
    requests: DiscoveryRequests,
) -> None:
    names = ("node-1", "node-10")
    backends = tuple(Backend(name, "READY") for name in names)
    old = [replace(HARDWARE.devices[index], backend=names[1]) for index in range(3)]
    new = [*old[:1], replace(HARDWARE.devices[5], backend=names[0])]
    ask(requests, "key")
    requests.answer(
        requests.pending(),
        Report((report("a", *old, backends=backends),)),
        Report((report("a", *new, backends=backends),)),
        rejected={},
        refusals={},
    )
    ((found),) = ask(requests, "key").drivers
    counts = {one.name: (one.discovered, one.added, one.lost) for one in found.backends}
    assert counts == {"node-1": (1, 1, 0), "node-10": (1, 0, 2)}
