# SPDX-License-Identifier: Apache-2.0
"""Tests of image properties and downloads, against the simulated Glance."""

import uuid
from pathlib import Path

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session

from cyborg import exception
from cyborg.clients.glance import Glance
from cyborg.testing.glance import SimulatedGlance

DATA = bytes(range(256)) * 8192


class Clock:
    """Counts the seconds that somebody wanted to sleep."""

    def __init__(self) -> None:
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_an_image_arrives_whole_with_its_properties(glance: SimulatedGlance, tmp_path: Path):
    image = glance.add(DATA, hw_function="x")
    client = Glance(glance.adapter(), retries=0)
    assert client.properties(image)["hw_function"] == "x"
    client.download(image, tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == DATA
    assert [one.name for one in tmp_path.iterdir()] == ["image"]


@pytest.mark.parametrize("version", ["/v2", "/v2/"])
def test_a_catalogue_may_name_the_version(glance: SimulatedGlance, version: str):
    image = glance.add(b"x")
    session = Session(auth=NoAuth(endpoint=glance.url + version))
    properties = Glance(Adapter(session, service_type="image"), retries=0).properties(image)
    assert properties["id"] == image
    assert glance.requests == [f"GET /v2/images/{image}"]


def test_what_is_not_there_is_not_found_and_not_asked_for_again(
    glance: SimulatedGlance, tmp_path: Path
):
    client, unknown, empty = (
        Glance(glance.adapter(), retries=3),
        str(uuid.uuid4()),
        glance.add(None),
    )
    with pytest.raises(exception.NotFound, match=f"Image {unknown}"):
        client.download(unknown, tmp_path / "image")
    with pytest.raises(exception.NotFound, match=f"Data of image {empty}"):
        client.download(empty, tmp_path / "image")
    assert len(glance.requests) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_passing_fault_is_outlasted(glance: SimulatedGlance, tmp_path: Path):
    clock = Clock()
    client = Glance(glance.adapter(), retries=2, sleep=clock.sleep)
    image = glance.add(DATA)
    glance.answer_calls(503, 500)
    glance.damage_downloads(2)
    client.download(image, tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == DATA
    assert clock.slept == 4


def test_a_lasting_fault_is_told(glance: SimulatedGlance, tmp_path: Path):
    client = Glance(glance.adapter(), retries=1, sleep=Clock().sleep)
    image = glance.add(DATA)
    glance.damage_downloads(2)
    with pytest.raises(exception.Unavailable, match="damaged"):
        client.download(image, tmp_path / "image")
    assert list(tmp_path.iterdir()) == []
    glance.answer_calls(502, 502)
    with pytest.raises(exception.Unavailable, match="502"):
        client.properties(image)


@pytest.mark.parametrize("algorithm", [None, "md-from-the-future"])
def test_data_without_a_hash_that_we_know_is_taken_as_it_is(
    glance: SimulatedGlance, tmp_path: Path, algorithm: str | None
):
    image = glance.add(DATA, os_hash_algo=algorithm, os_hash_value="00")
    Glance(glance.adapter(), retries=0).download(image, tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == DATA
