# SPDX-License-Identifier: Apache-2.0
"""Glance's REST API, as far as programming a device needs it: an image's properties and data."""

import hashlib
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


class Glance:
    """Calls over a keystoneauth adapter for the service type ``image``.

    ``retries`` is how many times a request is made again that found nobody, broke off or brought
    damaged data ([glance] num_retries); ``sleep`` waits between two attempts.
    """

    def __init__(
        self, adapter: Adapter, retries: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._adapter = adapter
        self._retries = retries
        self._sleep = sleep

    def properties(self, image_uuid: str) -> dict[str, Any]:
        """All properties of an image; exception.NotFound when it is not there or not ours to see.

        Raises exception.Unavailable when Glance does not say.
        """
        return self._persist(lambda: self._properties(image_uuid))

    def download(self, image_uuid: str, into: Path) -> None:
        """Put an image's data into a file, which appears only when it is complete.

        The data is compared with the image's hash where Glance has one that we can compute. Raises
        exception.NotFound when there is no such image or no data in it, and
        exception.Unavailable when the data did not arrive whole.
        """
        image = self.properties(image_uuid)
        part = into.with_name(into.name + ".part")
        try:
            self._persist(lambda: self._fetch(image_uuid, image, part))
            part.replace(into)
        finally:
            part.unlink(missing_ok=True)

    def _persist(self, attempt: Callable[[], _T]) -> _T:
        for _ in range(self._retries):
            try:
                return attempt()
            except exception.Unavailable:
                self._sleep(_PAUSE)
        return attempt()

    def _properties(self, image_uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = http.document(_PEER, self._get(image_uuid))
        return found

    def _fetch(self, image_uuid: str, image: dict[str, Any], part: Path) -> None:
        algorithm, value = str(image.get("os_hash_algo")), image.get("os_hash_value")
        digest = hashlib.new(algorithm) if algorithm in hashlib.algorithms_available else None
        answer = self._get(image_uuid, "/file", stream=True)
        try:
            with answer, part.open("wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    if digest is not None:
                        digest.update(chunk)
        except requests.RequestException as fault:
            raise exception.Unavailable(
                peer=_PEER, reason=f"the data of image {image_uuid} broke off"
            ) from fault
        if digest is not None and digest.hexdigest() != value:
            raise exception.Unavailable(
                peer=_PEER, reason=f"the data of image {image_uuid} arrived damaged"
            )

    def _get(self, image_uuid: str, rest: str = "", stream: bool = False) -> requests.Response:
        path = f"{self._prefix()}/images/{quote(image_uuid, safe='')}{rest}"
        answer = http.ask(_PEER, self._adapter, "GET", path, stream=stream)
        if answer.status_code == 200:
            return answer
        answer.close()
        if answer.status_code in (204, 404):
            noun = "Data of image" if answer.status_code == 204 else "Image"
            raise exception.NotFound(noun=noun, key=image_uuid)
        raise exception.Unavailable(
            peer=_PEER, reason=f"GET {path} was answered {answer.status_code}"
        )

    def _prefix(self) -> str:
        """Catalogues hold Glance's address with and without its version."""
        try:
            endpoint = self._adapter.get_endpoint() or ""
        except ks_exceptions.ClientException as fault:
            raise exception.Unavailable(peer=_PEER, reason=str(fault)) from fault
        return "" if endpoint.rstrip("/").endswith("/v2") else "/v2"
