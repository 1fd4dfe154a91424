# SPDX-License-Identifier: Apache-2.0
"""What ``pytest --cyborg-driver`` runs."""

import pytest

from cyborg.drivers.base import Driver
from cyborg.testing.driver_kit import DriverContract
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.plugin import KEY


class TestContract(DriverContract):
    """The shared contract, for the driver and the host that were asked for."""

    @pytest.fixture(autouse=True)
    def _asked_for(self, request: pytest.FixtureRequest) -> None:
        self._subject = request.config.stash[KEY]

    def make_host(self) -> FakeHost:
        """See DriverContract."""
        return self._subject.make_host()

    def make_driver(self, host: FakeHost) -> Driver:
        """See DriverContract."""
        return self._subject.make_driver(host)
