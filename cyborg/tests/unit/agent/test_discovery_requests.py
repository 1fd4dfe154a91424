# SPDX-License-Identifier: Apache-2.0
"""Discovery requests: which are open, and what is counted in the answer of each."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cyborg.agent.discovery_requests import DiscoveryRequests
from cyborg.model.device import Backend, BackendService, Device
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.model.work import BackendFindings, Discovered, DiscoveryTask, DriverFindings
from cyborg.tests.fixtures.host_reports import DRIVER, report_of

HOST = "compute"


@pytest.fixture
def requests() -> DiscoveryRequests:
    """Nobody waits for an answer that is not there."""
    return DiscoveryRequests(timeout=0)


def devices(*numbers: int, backend: str | None = None) -> tuple[Device, ...]:
    (driver,) = report_of(HOST, 8).drivers
    return tuple(replace(driver.devices[number], backend=backend) for number in numbers)


def ready(*numbers: int, driver: str = DRIVER, **more: Any) -> DriverReport:
    return DriverReport(driver, DriverState.READY, devices(*numbers), **more)


def ask(requests: DiscoveryRequests, key: str = "key", driver: str | None = None) -> Discovered:
    return requests.request(DiscoveryTask(key, driver), wake=lambda: None)


def answer(
    requests: DiscoveryRequests, before: Report | None, *after: DriverReport, **reasons: Any
) -> None:
    """The agent loop has looked: before, and what the drivers report now."""
    given = {"rejected": {}, "refusals": {}, **reasons}
    requests.answer(requests.pending(), before, Report(after), **given)


def test_repeated_request_is_the_same(requests: DiscoveryRequests) -> None:
    """It wakes the loop once, is answered once, and its answer stays."""
    wakes: list[str] = []
    for key in ("first", "second", "first"):
        task = DiscoveryTask(key)
        early = requests.request(task, wake=partial(wakes.append, key))
        assert early == Discovered(key, done=False)
    assert wakes == ["first", "second"]
    tasks = requests.pending()
    assert [task.request_key for task in tasks] == ["first", "second"]
    requests.answer(tasks[:1], None, Report((ready(0),)), rejected={}, refusals={})
    (kept,) = ask(requests, "first").drivers
    assert [task.request_key for task in requests.pending()] == ["second"]
    requests.answer(tasks, None, Report(()), rejected={}, refusals={})
    assert ask(requests, "first") == Discovered("first", drivers=(kept,))
    assert ask(requests, "second") == Discovered("second")


def test_only_the_last_hundred_requests_are_remembered(requests: DiscoveryRequests) -> None:
    for number in range(101):
        ask(requests, str(number))
    tasks = requests.pending()
    assert [task.request_key for task in tasks] == [str(number) for number in range(1, 101)]
    requests.answer([DiscoveryTask("0")], None, Report(()), rejected={}, refusals={})
    assert requests.pending() == tasks


def test_request_for_one_driver_is_answered_for_that_one(requests: DiscoveryRequests) -> None:
    """Drivers that are not enabled are in no answer."""
    for driver in (None, "second", "stopped", "missing"):
        ask(requests, str(driver), driver)
    stopped = DriverReport("stopped", DriverState.STOPPED)
    answer(requests, None, ready(0), ready(1, driver="second"), stopped)
    assert [found.name for found in ask(requests, "None").drivers] == [DRIVER, "second"]
    assert [found.name for found in ask(requests, "second").drivers] == ["second"]
    for driver in ("stopped", "missing"):
        assert ask(requests, driver).drivers == (
            DriverFindings(driver, DriverState.STOPPED, error="it is not loaded here"),
        )


def test_driver_that_cannot_be_as_ordered_says_why(requests: DiscoveryRequests) -> None:
    ask(requests)
    refusals = {DRIVER: "a guest uses it", "other": "there is no such driver"}
    answer(requests, None, ready(0), refusals=refusals)
    known, unknown = ask(requests).drivers
    assert (known.name, known.discovered, known.accepted) == (DRIVER, 1, False)
    assert known.error == "a guest uses it"
    assert unknown == DriverFindings(
        "other", DriverState.STOPPED, error="there is no such driver", accepted=False
    )


def test_devices_of_a_driver_are_new_although_they_were_reported_before(
    requests: DiscoveryRequests,
) -> None:
    """Between the load of the driver and the request; the next request counts none of them."""
    requests.drivers_changed([DRIVER], None)
    requests.drivers_changed([DRIVER], Report((ready(0),)))
    ask(requests, "other", "other")
    answer(requests, Report((ready(0, 1),)), ready(0, 1))
    counts = []
    for key in ("first", "second"):
        ask(requests, key, DRIVER)
        answer(requests, Report((ready(0, 1),)), ready(0, 1))
        (found,) = ask(requests, key).drivers
        counts.append(found.added)
    assert counts == [2, 0]


def test_devices_of_an_unloaded_driver_are_lost(requests: DiscoveryRequests) -> None:
    requests.drivers_changed([DRIVER], Report((ready(0, 1), ready(2, driver="other"))))
    ask(requests, "first")
    answer(requests, Report((ready(),)), ready())
    (found,) = ask(requests, "first").drivers
    assert found.lost == 2
    ask(requests, "second")
    answer(requests, Report((ready(),)), ready())
    (found,) = ask(requests, "second").drivers
    assert found.lost == 0


def test_each_backend_has_its_own_counts(requests: DiscoveryRequests) -> None:
    """One that the driver does not have any more is stopped, and its devices are lost."""
    service = BackendService("compression", "READY")
    old, kept, new = Backend("c", "READY"), Backend("b", "READY"), Backend("a", "DEGRADED")
    before = DriverReport(
        DRIVER,
        DriverState.READY,
        (*devices(0, 1, backend="b"), *devices(2, backend="c")),
        backends=(kept, old),
    )
    after = DriverReport(
        DRIVER,
        DriverState.READY,
        (*devices(1, 3, 4, backend="b"), *devices(5, backend="a")),
        backends=(replace(kept, services=(service,)), new),
    )
    ask(requests)
    answer(requests, Report((before,)), after, rejected={DRIVER: {f"{HOST}_5": "no"}})
    (found,) = ask(requests).drivers
    assert found.backends == (
        BackendFindings("a", "DEGRADED", discovered=1, added=1, failed=1),
        BackendFindings("b", "READY", (service,), discovered=3, added=2, lost=1),
        BackendFindings("c", DriverState.STOPPED, lost=1),
    )


def test_devices_are_counted_against_the_last_report(requests: DiscoveryRequests) -> None:
    ask(requests)
    changed = replace(devices(1)[0], model="another")
    after = DriverReport(DRIVER, DriverState.READY, (devices(0)[0], changed, *devices(3, 4)))
    answer(requests, Report((ready(0, 1, 2),)), after)
    assert ask(requests).drivers == (
        DriverFindings(DRIVER, DriverState.READY, discovered=4, added=2, changed=1, lost=1),
    )
    # A failed driver has found nothing.
    ask(requests, "failed")
    failed = replace(ready(0), state=DriverState.FAILED, error="no firmware")
    answer(requests, Report((ready(0, 1),)), failed)
    assert ask(requests, "failed").drivers == (
        DriverFindings(DRIVER, DriverState.FAILED, error="no firmware"),
    )


@pytest.mark.parametrize(
    ("own", "error"), [(None, "it is another's; too old"), ("it is slow", "it is slow")]
)
def test_rejected_devices_have_failed(
    requests: DiscoveryRequests, own: str | None, error: str
) -> None:
    ask(requests)
    reasons = {f"{HOST}_0": "it is another's", f"{HOST}_1": "it is another's", "gone": "too old"}
    rejected = {DRIVER: reasons, "other": {f"{HOST}_2": "no"}}
    answer(requests, None, ready(0, 1, 2, error=own), rejected=rejected)
    (found,) = ask(requests).drivers
    assert (found.discovered, found.failed) == (3, 2)
    assert (found.error, found.accepted) == (error, True)
