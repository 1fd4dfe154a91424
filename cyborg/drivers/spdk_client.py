# SPDX-License-Identifier: Apache-2.0
"""Call the methods of an SPDK application by JSON-RPC 2.0 on its UNIX socket.

Each call has a connection of its own, so a late answer is never taken for that of another call.
An answer has no mark at its end and may come in pieces. Source: doc/jsonrpc.md of SPDK.
"""

import base64
import itertools
import json
import struct
from typing import Any, Final

from cyborg import exception
from cyborg.drivers.host import Host
from cyborg.drivers.privileged.nvme import AdminCommand

#: The application does not have the method: it is built or started without this function.
_NO_METHOD: Final = -32601
#: A submission queue entry: opcode, flags and identifier, namespace, CDW2, CDW3, addresses of
#: metadata and data, CDW10 to CDW15. NVM Express Base Specification 2.0, section 3.3.3.1.
_ENTRY: Final = struct.Struct("<BxxxI8x8x16x6I")
_COMPLETION_LENGTH: Final = 16
_READ: Final = 0x02


class SpdkClient:
    """The SPDK application that listens on a socket of this host.

    ``timeout``, in seconds, and ``cap``, in bytes, limit each answer. All methods raise
    exception.HostError: with ``code`` if SPDK has refused the call, else without it.
    """

    def __init__(self, host: Host, socket: str, *, timeout: float, cap: int) -> None:
        self._host = host
        self._socket = socket
        self._timeout = timeout
        self._cap = cap
        self._numbers = itertools.count(1)

    def is_there(self) -> bool:
        """Return whether the socket exists; SPDK may have left it behind."""
        return self._host.exists(self._socket)

    def call(self, method: str, *, patience: float = 0.0, **parameters: object) -> Any:
        """Return the result of a method; ``patience`` is added to the time limit, in seconds."""
        number = next(self._numbers)
        request: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method}
        if parameters:
            request["params"] = parameters
        text = self._host.exchange(
            self._socket,
            json.dumps(request).encode(),
            _is_complete,
            timeout=self._timeout + patience,
            cap=self._cap,
        )
        action = f"SPDK method {method}"
        answer = _parse(text)
        if not isinstance(answer, dict):
            raise exception.HostError(action=action, reason=f"{_shown(text)} is not a JSON object")
        error = answer.get("error")
        if isinstance(error, dict):
            code, message = error.get("code"), str(error.get("message"))
            reason = f"{_printable(message)} (code {_printable(str(code))})"
            raise exception.HostError(action=action, reason=reason, code=code)
        if answer.get("id") != number:
            raise exception.HostError(action=action, reason="it is the answer to another request")
        if "result" not in answer:
            raise exception.HostError(action=action, reason="the answer has no result")
        return answer["result"]

    def entries(self, method: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty if the application does not have the method."""
        try:
            result = self.call(method)
        except exception.HostError as error:
            if error.fields.get("code") == _NO_METHOD:
                return []
            raise
        if not isinstance(result, list) or not all(isinstance(entry, dict) for entry in result):
            reason = "the result is not a list of objects"
            raise exception.HostError(action=f"SPDK method {method}", reason=reason)
        return result

    def admin(self, controller: str, command: AdminCommand) -> bytes:
        """Send an NVMe admin command to a controller, and return its data."""
        entry = _ENTRY.pack(command.opcode, command.namespace, command.cdw10, 0, 0, 0, 0, 0)
        return self._send(
            controller, entry, command.data_length, kind="admin", timeout=command.timeout
        )

    def read_block(self, controller: str, namespace: int, block: int, length: int) -> bytes:
        """Read one block of a namespace; ``length`` is its size in bytes."""
        low, high = block & 0xFFFFFFFF, block >> 32
        # CDW12: one block less than it reads.
        entry = _ENTRY.pack(_READ, namespace, low, high, 0, 0, 0, 0)
        return self._send(controller, entry, length, kind="io", timeout=0.0)

    def _send(
        self, controller: str, entry: bytes, length: int, *, kind: str, timeout: float
    ) -> bytes:
        """Send a command; ``length`` is that of the data which the controller returns."""
        parameters: dict[str, object] = {
            "name": controller,
            "cmd_type": kind,
            "data_direction": "c2h" if length else "h2c",
            "cmdbuf": base64.urlsafe_b64encode(entry).decode(),
        }
        if length:
            parameters["data_len"] = length
        if timeout:
            parameters["timeout_ms"] = int(timeout * 1000)
        result = self.call("bdev_nvme_send_cmd", patience=timeout, **parameters)
        action = f"NVMe {kind} command {entry[0]:#04x} of {_printable(controller)}"
        completion = _decoded(result, "cpl")
        if len(completion) != _COMPLETION_LENGTH:
            raise exception.HostError(action=action, reason="the answer has no completion entry")
        # Without the phase tag: 8 bits of status code, 3 bits of status code type.
        status = int.from_bytes(completion[14:], "little") >> 1 & 0x7FF
        if status:
            reason = f"the disk answered status {status & 0xFF:#04x} of type {status >> 8}"
            raise exception.HostError(action=action, reason=reason)
        data = _decoded(result, "data") if length else b""
        if len(data) != length:
            reason = f"it returned {len(data)} bytes and not {length}"
            raise exception.HostError(action=action, reason=reason)
        return data


def _is_complete(text: bytes) -> bool:
    """Return whether the text is a JSON object, or can become none."""
    start = text.lstrip()[:1]
    if start not in (b"", b"{"):
        return True
    return text.rstrip().endswith(b"}") and _parse(text) is not None


def _parse(text: bytes) -> Any:
    """Return the JSON value at the start of a text; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text.decode(errors="replace").lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _decoded(result: object, field: str) -> bytes:
    """Return a field in the URL-safe form of Base64, with or without padding; empty if unset."""
    text = result.get(field) if isinstance(result, dict) else None
    if not isinstance(text, str) or not text.isascii():
        return b""
    bare = text.rstrip("=")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except ValueError:
        return b""


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace"))


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:200]
