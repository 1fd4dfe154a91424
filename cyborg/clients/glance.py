# SPDX-License-Identifier: Apache-2.0
"""Client of Glance's REST API: the properties and the data of images for devices."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from cyborg import exception
from cyborg.clients import http
from cyborg.clients.image_signature import ImageCertificates

_T = TypeVar("_T")
_PEER = "Glance"
_CHUNK = 1 << 20
#: Seconds between two attempts.
_PAUSE = 1.0
#: Accepted values of os_hash_algo. The older property checksum is always MD5, which can be forged.
_ALGORITHMS = frozenset(
    {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}
)
_ACTIVE = "active"
#: The property of an image that names the function of a device with this image.
_FUNCTION = "accel:function_id"


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read."""
    return os.open(path, flags, 0o600)


class Glance:
    """Call Glance through a keystoneauth adapter for the service type ``image``.

    ``retries`` is how many times a request is repeated that got no answer, was interrupted or
    returned damaged data ([glance] num_retries). ``max_size`` is the size in bytes above which no
    image is downloaded ([glance] max_image_size). ``certificates`` are those one of which must have
    signed each image; None: signatures are not verified. ``sleep`` waits between two attempts.
    """

    def __init__(
        self,
        adapter: Adapter,
        retries: int,
        *,
        max_size: int = 1 << 30,
        certificates: ImageCertificates | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._adapter = adapter
        self._retries = retries
        self._max_size = max_size
        self._certificates = certificates
        self._sleep = sleep

    def properties(self, image_uuid: str) -> dict[str, Any]:
        """Return all properties of an image.

        Raises exception.NotFound if the image does not exist or is not visible to the account, and
        exception.Unavailable if Glance does not answer.
        """
        return self._retry(lambda: http.document(_PEER, self._get(image_uuid)))

    def with_function(self, function_id: str) -> str:
        """Return the UUID of the one active image whose property accel:function_id has this value.

        Raises exception.ImageRefused if there is none or more than one, and
        exception.Unavailable if Glance does not answer.
        """

        def read() -> list[dict[str, Any]]:
            answer = self._ask("", params={_FUNCTION: function_id, "status": _ACTIVE})
            if answer.status_code != 200:
                raise exception.Unavailable(
                    peer=_PEER, reason=f"the list of images was answered {answer.status_code}"
                )
            images = http.document(_PEER, answer).get("images", [])
            # A Glance that ignores the filter must not cause a wrong image to be loaded.
            return [image for image in images if image.get(_FUNCTION) == function_id]

        images = self._retry(read)
        if len(images) != 1:
            raise exception.ImageRefused(
                image=f"with {_FUNCTION} {function_id}",
                reason=f"Glance has {len(images) or 'no'} active image{'s' * (len(images) != 1)} "
                "with this property, and exactly one is needed",
            )
        return str(images[0]["id"])

    def download(self, image_uuid: str, into: Path) -> None:
        """Download the data of an image into a file that only its owner can read.

        The file is created when the download is complete, its size and hash (os_hash_algo,
        os_hash_value) match Glance's, and its signature is verified, if signatures are. Raises
        exception.NotFound if the image or its data does not exist, exception.ImageRefused for an
        image that is not active, too large, without a usable hash or signature, or different from
        its description in Glance, and exception.Unavailable if the data did not arrive.
        """
        image = self.properties(image_uuid)
        self._check(image_uuid, image)
        signature = None
        if self._certificates is not None:
            signature = self._certificates.signature(image_uuid, image)
        part = into.with_name(into.name + ".part")
        try:
            self._retry(lambda: self._fetch(image_uuid, image, part))
            if signature is not None:
                signature.verify(part)
            part.replace(into)
        finally:
            part.unlink(missing_ok=True)

    def _check(self, image_uuid: str, image: dict[str, Any]) -> None:
        """Raise exception.ImageRefused for an image that must not be downloaded."""
        reason = None
        size, algorithm = image.get("size"), image.get("os_hash_algo")
        if image.get("status") != _ACTIVE:
            reason = f"it is {image.get('status')}, not {_ACTIVE}"
        elif not isinstance(size, int):
            reason = "Glance does not tell its size"
        elif size > self._max_size:
            reason = f"it has {size} bytes, and [glance] max_image_size allows {self._max_size}"
        elif not algorithm or not image.get("os_hash_value"):
            reason = "it has no os_hash_value in Glance, so that its data cannot be verified"
        elif algorithm not in _ALGORITHMS:
            reason = f"its os_hash_algo {algorithm} is not one of {', '.join(sorted(_ALGORITHMS))}"
        if reason is not None:
            raise exception.ImageRefused(image=image_uuid, reason=reason)

    def _retry(self, attempt: Callable[[], _T]) -> _T:
        for _ in range(self._retries):
            try:
                return attempt()
            except (exception.Unavailable, exception.ImageRefused):
                self._sleep(_PAUSE)
        return attempt()

    def _fetch(self, image_uuid: str, image: dict[str, Any], part: Path) -> None:
        algorithm, size = image["os_hash_algo"], image["size"]
        digest, received = hashlib.new(algorithm), 0
        answer = self._get(image_uuid, "/file", stream=True)
        try:
            with answer, open(part, "wb", opener=_private) as file:
                for chunk in answer.iter_content(_CHUNK):
                    received += len(chunk)
                    if received > size:
                        break
                    file.write(chunk)
                    digest.update(chunk)
        except requests.RequestException as fault:
            raise exception.Unavailable(
                peer=_PEER, reason=f"the data of image {image_uuid} broke off"
            ) from fault
        if received != size:
            what = f"more than {size}" if received > size else f"{received} and not {size}"
            raise exception.ImageRefused(image=image_uuid, reason=f"{what} bytes were received")
        if digest.hexdigest() != image["os_hash_value"]:
            raise exception.ImageRefused(
                image=image_uuid, reason=f"the received data does not match its {algorithm} hash"
            )

    def _get(self, image_uuid: str, rest: str = "", stream: bool = False) -> requests.Response:
        path = f"/{quote(image_uuid, safe='')}{rest}"
        answer = self._ask(path, stream=stream)
        if answer.status_code == 200:
            return answer
        answer.close()
        if answer.status_code in (204, 404):
            noun = "Data of image" if answer.status_code == 204 else "Image"
            raise exception.NotFound(noun=noun, key=image_uuid)
        raise exception.Unavailable(
            peer=_PEER, reason=f"GET /images{path} was answered {answer.status_code}"
        )

    def _ask(self, path: str, **arguments: Any) -> requests.Response:
        try:
            endpoint = self._adapter.get_endpoint() or ""
        except ks_exceptions.ClientException as fault:
            raise exception.Unavailable(peer=_PEER, reason=str(fault)) from fault
        # The endpoint in the catalogue may contain the version.
        prefix = "" if endpoint.rstrip("/").endswith("/v2") else "/v2"
        return http.ask(_PEER, self._adapter, "GET", f"{prefix}/images{path}", **arguments)
