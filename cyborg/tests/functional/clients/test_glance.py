# SPDX-License-Identifier: Apache-2.0
"""Tests of image properties and downloads, against the simulated Glance."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session

from cyborg import exception
from cyborg.clients.glance import Glance
from cyborg.clients.image_signature import ImageCertificates
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.image_signer import ImageSigner

DATA = bytes(range(256)) * 8192


class Clock:
    """Counts the seconds that somebody wanted to sleep."""

    def __init__(self) -> None:
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_image_is_downloaded_with_its_properties(glance: SimulatedGlance, tmp_path: Path):
    image = glance.add(DATA, hw_function="x")
    client = Glance(glance.adapter(), retries=0)
    assert client.properties(image)["hw_function"] == "x"
    client.download(image, tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == DATA
    assert [one.name for one in tmp_path.iterdir()] == ["image"]
    # Its owner only can read it.
    assert (tmp_path / "image").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("version", ["/v2", "/v2/"])
def test_image_endpoint_may_have_a_version(glance: SimulatedGlance, version: str):
    image = glance.add(b"x")
    session = Session(auth=NoAuth(endpoint=glance.url + version))
    properties = Glance(Adapter(session, service_type="image"), retries=0).properties(image)
    assert properties["id"] == image
    assert glance.requests == [f"GET /v2/images/{image}"]


def test_missing_image_is_not_found_and_not_retried(glance: SimulatedGlance, tmp_path: Path):
    client, unknown = Glance(glance.adapter(), retries=3), str(uuid.uuid4())
    with pytest.raises(exception.NotFound, match=f"Image {unknown}"):
        client.download(unknown, tmp_path / "image")
    gone = glance.add(None, status="active", size=1, os_hash_algo="sha512", os_hash_value="00")
    with pytest.raises(exception.NotFound, match=f"Data of image {gone}"):
        client.download(gone, tmp_path / "image")
    assert len(glance.requests) == 3
    assert list(tmp_path.iterdir()) == []


def test_download_is_retried_after_temporary_errors(glance: SimulatedGlance, tmp_path: Path):
    clock = Clock()
    client = Glance(glance.adapter(), retries=2, sleep=clock.sleep)
    image = glance.add(DATA)
    glance.answer_calls(503, 500)
    glance.damage_downloads(2)
    client.download(image, tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == DATA
    assert clock.slept == 4


def test_download_fails_after_its_retries(glance: SimulatedGlance, tmp_path: Path):
    client = Glance(glance.adapter(), retries=1, sleep=Clock().sleep)
    image = glance.add(DATA)
    glance.damage_downloads(2)
    with pytest.raises(exception.ImageRefused, match="does not match its sha512"):
        client.download(image, tmp_path / "image")
    assert list(tmp_path.iterdir()) == []
    glance.answer_calls(502, 502)
    with pytest.raises(exception.Unavailable, match="502"):
        client.properties(image)


@pytest.mark.parametrize(
    ("properties", "reason", "is_read"),
    [
        ({"os_hash_algo": None, "os_hash_value": None}, "no os_hash_value", False),
        ({"os_hash_algo": "md5", "os_hash_value": "00" * 16}, "os_hash_algo md5", False),
        ({"os_hash_algo": "md-from-the-future"}, "md-from-the-future", False),
        ({"size": len(DATA) + 2}, f"has {len(DATA) + 2} bytes", False),
        ({"size": None}, "its size", False),
        ({"status": "queued"}, "queued", False),
        ({"status": "deactivated"}, "deactivated", False),
        ({"size": 3}, "more than 3", True),
        ({"size": len(DATA) + 1}, "and not", True),
    ],
)
def test_image_that_cannot_be_verified_is_refused(
    glance: SimulatedGlance, tmp_path: Path, properties: dict[str, Any], reason: str, is_read: bool
):
    image = glance.add(DATA, **properties)
    client = Glance(glance.adapter(), retries=0, max_size=len(DATA) + 1)
    with pytest.raises(exception.ImageRefused, match=reason):
        client.download(image, tmp_path / "image")
    data = [f"GET /v2/images/{image}/file"] if is_read else []
    assert glance.requests == [f"GET /v2/images/{image}", *data]
    assert list(tmp_path.iterdir()) == []


def test_image_is_found_by_its_function(glance: SimulatedGlance):
    client = Glance(glance.adapter(), retries=0)
    image = glance.add(DATA, **{"accel:function_id": "a&b"})
    glance.add(None, **{"accel:function_id": "a&b"})
    assert client.with_function("a&b") == image
    with pytest.raises(exception.ImageRefused, match="no active image"):
        client.with_function("a")
    glance.add(DATA, **{"accel:function_id": "a&b"})
    with pytest.raises(exception.ImageRefused, match="2 active images"):
        client.with_function("a&b")
    glance.answer_calls(503)
    with pytest.raises(exception.Unavailable):
        client.with_function("a&b")


def test_only_signed_images_are_downloaded_if_signatures_are_verified(
    glance: SimulatedGlance, tmp_path: Path
):
    clock, images = Clock(), tmp_path / "images"
    images.mkdir()
    signer = ImageSigner(tmp_path)
    certificates = ImageCertificates(tmp_path, lambda path: None)
    client = Glance(glance.adapter(), retries=3, certificates=certificates, sleep=clock.sleep)
    client.download(glance.add(DATA, **signer.properties(DATA)), images / "image")
    assert (images / "image").read_bytes() == DATA
    (images / "image").unlink()
    glance.requests.clear()
    # Its data is not even asked for.
    unsigned = glance.add(DATA)
    with pytest.raises(exception.ImageRefused, match="no property img_signature"):
        client.download(unsigned, images / "image")
    assert glance.requests == [f"GET /v2/images/{unsigned}"]
    # A Glance that lies has a hash that matches the data. Another attempt would change nothing.
    changed = glance.add(DATA + b"x", **signer.properties(DATA))
    glance.requests.clear()
    with pytest.raises(exception.ImageRefused, match="img_signature does not match its data"):
        client.download(changed, images / "image")
    assert glance.requests == [f"GET /v2/images/{changed}", f"GET /v2/images/{changed}/file"]
    assert list(images.iterdir()) == []
    assert clock.slept == 0
    # A download that was damaged is repeated before its signature counts.
    glance.damage_downloads(2)
    client.download(glance.add(DATA, **signer.properties(DATA)), images / "image")
    assert (images / "image").read_bytes() == DATA
    assert clock.slept == 2
