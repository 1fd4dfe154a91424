# SPDX-License-Identifier: Apache-2.0
"""One cloud with the real Nova for all tests of this package."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.tests.fixtures.keystone import KeystoneService
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.real_nova import NotStarted
from cyborg.tests.functional.nova import cloud as clouds
from cyborg.tests.functional.nova.cloud import Cloud


@pytest.fixture(scope="package")
def cloud(placement: PlacementService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A Nova that does not start ends the run with the status of a broken environment."""
    directory = tmp_path_factory.mktemp("nova-cloud")
    place = directory / "keystone"
    place.mkdir()
    with ExitStack() as endings:
        keystone = endings.enter_context(KeystoneService(place))
        try:
            made = endings.enter_context(clouds.running(directory, keystone, placement))
        except NotStarted as error:
            pytest.exit(f"the environment broke, not the service: {error}", os.EX_TEMPFAIL)
        yield made


@pytest.fixture
def own_clouds(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let commands of this process find ``clouds.yaml`` of the cloud."""
    file = cloud.home / ".config" / "openstack" / "clouds.yaml"
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
    return file
