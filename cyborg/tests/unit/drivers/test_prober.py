# SPDX-License-Identifier: Apache-2.0
"""A device that hangs costs its own answer only, and one thread."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from cyborg import exception
from cyborg.drivers.host import TEXT_LIMIT
from cyborg.drivers.prober import Prober
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import Gate, eventually, joined


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return where a call hangs."""
    gate = Gate()
    yield gate
    gate.set()


def probers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "prober"}


def test_results_and_errors_of_calls_are_those_of_the_caller() -> None:
    prober, before = Prober(), probers()
    assert [prober.run("device", partial(int, text)) for text in "012"] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        prober.run("device", lambda: 1 / 0)
    # One thread does all.
    assert len(probers() - before) == 1


def test_a_device_that_hangs_is_asked_once_until_it_answers(gate: Gate) -> None:
    prober, before = Prober(0.05, wait=gate.wait_for), probers()
    with pytest.raises(exception.HostError, match=r"did not answer within 0.05 seconds"):
        prober.run("broken", gate.hold)
    for _ in range(3):
        with pytest.raises(exception.HostError, match="an earlier call still hangs"):
            prober.run("broken", gate.hold)
        assert prober.run("other", lambda: "answer") == "answer"
    assert len(probers() - before) == 2
    gate.set()

    def answers() -> bool:
        with suppress(exception.HostError):
            return prober.run("broken", lambda: True)
        return False

    eventually(answers)


def test_threads_end_with_their_prober(gate: Gate) -> None:
    """Each verb of a driver makes a scan with a prober of its own."""
    before, prober = probers(), Prober(0.05, wait=gate.wait_for)
    prober.run("device", int)
    with pytest.raises(exception.HostError):
        prober.run("broken", gate.hold)
    prober.run("device", int)
    threads = probers() - before
    assert len(threads) == 2
    del prober
    gate.set()
    joined(*threads)


def test_a_file_that_hangs_refuses_its_own_device_only(gate: Gate) -> None:
    class Broken(FakeHost):
        def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
            if path.endswith(f"{servers.QAT_PF}/sriov_numvfs"):
                gate.hold()
            return super().read_text(path, limit)

    server = servers.server()
    server.__class__ = Broken
    for address in servers.QAT_VFS:
        server.remove(f"/sys/bus/pci/devices/{address}")
    scan = Scan(server, prober=Prober(0.05, wait=gate.wait_for))
    reasons = {
        str(address): scan.refusal(function, managed=False)
        for address, function in scan.functions.items()
    }
    assert "did not answer within 0.05 seconds" in str(reasons[servers.QAT_PF])
    assert (reasons[servers.FPGA], reasons[servers.GPU]) == (None, None)
    # The answer of a scan stays, and is not asked for again.
    function = scan.functions[PciAddress.parse(servers.QAT_PF)]
    assert scan.refusal(function, managed=False) == reasons[servers.QAT_PF]
