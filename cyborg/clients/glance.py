# SPDX-License-Identifier: Apache-2.0
"""Glance's REST API, as far as programming a device needs it: an image's properties and data."""

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

_T = TypeVar("_T")
_PEER = "Glance"
_CHUNK = 1 << 20
#: Seconds between two attempts.
_PAUSE = 1.0
#: What os_hash_algo may name; the older checksum is always MD5, which can be forged.
_ALGORITHMS = frozenset(
    {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}
)
_ACTIVE = "active"
#: The property of an image that names what a device does once the image is loaded.
_FUNCTION = "accel:function_id"


def _private(path: str, flags: int) -> int:
    """Open a file that its owner alone can read."""
    return os.open(path, flags, 0o600)


class Glance:
    """Calls over a keystoneauth adapter for the service type ``image``.

    ``retries`` is how many times a request is made again that found nobody, broke off or brought
    damaged data ([glance] num_retries); ``max_size`` is the size in bytes above which no image is
    downloaded ([glance] max_image_size). ``sleep`` waits between two attempts.
    """

    def __init__(
        self,
        adapter: Adapter,
        retries: int,
        *,
        max_size: int = 1 << 30,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._adapter = adapter
        self._retries = retries
        self._max_size = max_size
        self._sleep = sleep

    def properties(self, image_uuid: str) -> dict[str, Any]:
        """All properties of an image; exception.NotFound when it is not there or not ours to see.

        Raises exception.Unavailable when Glance does not say.
        """
        return self._persist(lambda: self._properties(image_uuid))

    def with_function(self, function_id: str) -> str:
        """Return the UUID of the one active image whose property accel:function_id has this value.

        Raises exception.ImageRefused when there is none or more than one, and
        exception.Unavailable when Glance does not say.
        """
        images = self._persist(lambda: self._with_function(function_id))
        if len(images) != 1:
            raise exception.ImageRefused(
                image=f"with {_FUNCTION} {function_id}",
                reason=f"Glance has {len(images) or 'no'} active image{'s' * (len(images) != 1)} "
                "with this property, and exactly one is needed",
            )
        return str(images[0]["id"])

    def download(self, image_uuid: str, into: Path) -> None:
        """Put an image's data into a file that only its owner can read.

        The file appears only when it is complete, and its size and hash (os_hash_algo,
        os_hash_value) are those that Glance has of the image. Raises exception.NotFound when there
        is no such image or no data in it, exception.ImageRefused for an image that is not active,
        too large, without a hash that proves its data, or received other than Glance describes it,
        and exception.Unavailable when the data did not arrive.
        """
        image = self.properties(image_uuid)
        self._check(image_uuid, image)
        part = into.with_name(into.name + ".part")
        try:
            self._persist(lambda: self._fetch(image_uuid, image, part))
            part.replace(into)
        finally:
            part.unlink(missing_ok=True)

    def _check(self, image_uuid: str, image: dict[str, Any]) -> None:
        """Refuse what need not be downloaded."""
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

    def _persist(self, attempt: Callable[[], _T]) -> _T:
        for _ in range(self._retries):
            try:
                return attempt()
            except (exception.Unavailable, exception.ImageRefused):
                self._sleep(_PAUSE)
        return attempt()

    def _properties(self, image_uuid: str) -> dict[str, Any]:
        properties: dict[str, Any] = http.document(_PEER, self._get(image_uuid))
        return properties

    def _with_function(self, function_id: str) -> list[dict[str, Any]]:
        query = {_FUNCTION: function_id, "status": _ACTIVE}
        answer = self._ask("", params=query)
        if answer.status_code != 200:
            raise exception.Unavailable(
                peer=_PEER, reason=f"the list of images was answered {answer.status_code}"
            )
        images = http.document(_PEER, answer).get("images", [])
        # A Glance that ignores the filter must not have a wrong image loaded.
        return [image for image in images if image.get(_FUNCTION) == function_id]

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
        return http.ask(_PEER, self._adapter, "GET", f"{self._prefix()}/images{path}", **arguments)

    def _prefix(self) -> str:
        """Catalogues hold Glance's address with and without its version."""
        try:
            endpoint = self._adapter.get_endpoint() or ""
        except ks_exceptions.ClientException as fault:
            raise exception.Unavailable(peer=_PEER, reason=str(fault)) from fault
        return "" if endpoint.rstrip("/").endswith("/v2") else "/v2"
