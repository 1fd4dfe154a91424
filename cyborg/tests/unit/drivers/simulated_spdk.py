# SPDX-License-Identifier: Apache-2.0
"""A simulated SPDK application: its JSON-RPC methods, its disks, and a UNIX socket that misbehaves.

The shapes of requests and answers are those of the examples in doc/jsonrpc.md of SPDK. No real
SPDK was asked.
"""

import base64
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cyborg.tests.fixtures.waiting import joined

JSON = dict[str, Any]
#: What a server does with one connection, given the request.
Script = Callable[[socket.socket, bytes], None]


class RpcError(Exception):
    """The error of a method: code and message."""


@dataclass
class SimulatedDisk:
    """An NVMe controller in the machine; ``namespaces`` maps numbers to their blocks."""

    address: str = "0000:5e:00.0"
    namespaces: dict[int, list[bytes]] = field(
        default_factory=lambda: {1: [bytes([block, 7]) * 256 for block in range(64)]}
    )
    state: str = "enabled"
    transport: str = "PCIe"
    formats: bool = True
    crypto: bool = True
    shared: bool = False
    erases: bool = True
    resets: bool = True
    health: JSON = field(
        default_factory=lambda: {
            "temperature_celsius": 32,
            "available_spare_percentage": 99,
            "available_spare_threshold_percentage": 10,
            "percentage_used": 2,
            "media_errors": 0,
        }
    )

    def admin(self, entry: bytes, length: int) -> tuple[int, bytes]:
        """Carry out an admin command; return status and data."""
        opcode, number = entry[0], int.from_bytes(entry[4:8], "little")
        (cdw10,) = struct.unpack_from("<I", entry, 40)
        if opcode == 0x06:
            return 0, self._identify(cdw10 & 0xFF, number)[:length]
        if opcode == 0x80 and self.formats:
            # Format with 4 KiB metadata-free blocks and type 1 protection must stay as it is.
            if cdw10 & 0x1FF != 0x21 or cdw10 >> 9 & 7 != (2 if self.crypto else 1):
                return 0x10A, b""
            if self.erases:
                self.namespaces[number] = [bytes(512)] * len(self.namespaces[number])
            return 0, b""
        return 0x01, b""

    def _identify(self, structure: int, number: int) -> bytes:
        data = bytearray(4096)
        if structure == 1:
            data[76] = 2 * self.shared
            data[256] = 2 * self.formats
            data[524] = 4 * self.crypto
        elif structure == 2:
            struct.pack_into(f"<{len(self.namespaces)}I", data, 0, *sorted(self.namespaces))
        elif number in self.namespaces:
            data[26], data[29] = 1, 1
        return bytes(data)


class SimulatedSpdk:
    """The application; ``requests`` are the methods that were called, with their parameters.

    ``exports`` are the answers of the methods that list what gives block devices to others;
    a method that is not in it does not exist. ``claimed`` are claimed block devices, ``hidden``
    namespaces without a block device. ``before`` is called with each method before it runs.
    """

    def __init__(self, **disks: SimulatedDisk) -> None:
        self.disks = disks or {"Nvme0": SimulatedDisk()}
        self.exports: dict[str, list[JSON]] = {
            "nvmf_get_subsystems": [
                {"nqn": "nqn.2014-08.org.nvmexpress.discovery", "subtype": "Discovery"}
            ],
            "vhost_get_controllers": [],
        }
        self.claimed: set[str] = set()
        self.hidden: set[str] = set()
        self.others: list[JSON] = []
        self.requests: list[tuple[str, JSON]] = []
        self.before: Callable[[str], None] = lambda method: None

    def answer(self, request: bytes) -> bytes:
        """Answer a request."""
        message = json.loads(request)
        assert message["jsonrpc"] == "2.0"
        method, parameters = message["method"], message.get("params", {})
        self.requests.append((method, parameters))
        self.before(method)
        answer: JSON = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = self._call(method, parameters)
        except RpcError as error:
            answer["error"] = {"code": error.args[0], "message": error.args[1]}
        return json.dumps(answer).encode()

    def called(self, method: str) -> int:
        """Return how often a method was called."""
        return [name for name, _ in self.requests].count(method)

    def bdevs(self) -> list[JSON]:
        """Return the answer of ``bdev_get_bdevs``."""
        return [
            {
                "name": f"{name}n{number}",
                "aliases": [f"alias-{name}n{number}"],
                "product_name": "NVMe disk",
                "block_size": 512,
                "num_blocks": len(blocks),
                "uuid": f"7d3f6a1e-0000-4000-8000-00000000000{number}",
                "claimed": f"{name}n{number}" in self.claimed,
                **({"claim_type": "exclusive_write"} if f"{name}n{number}" in self.claimed else {}),
                "driver_specific": {
                    "nvme": [
                        {
                            "trid": {"trtype": disk.transport, "traddr": disk.address},
                            "ctrlr_data": {
                                "vendor_id": "0x144d",
                                "model_number": "SAMSUNG MZQL21T9HCJR",
                                "serial_number": "S64GNE0T",
                            },
                            "ns_data": {"id": number, "can_share": False},
                        }
                    ]
                },
            }
            for name, disk in self.disks.items()
            for number, blocks in disk.namespaces.items()
            if f"{name}n{number}" not in self.hidden
        ] + self.others

    def _call(self, method: str, parameters: JSON) -> Any:
        if method in self.exports:
            return self.exports[method]
        if method == "spdk_get_version":
            return {"version": "SPDK v25.05", "fields": {"major": 25, "minor": 5}}
        if method == "bdev_get_bdevs":
            return self.bdevs()
        if method == "bdev_nvme_get_controllers":
            return [
                {
                    "name": name,
                    "ctrlrs": [
                        {
                            "state": disk.state,
                            "trid": {"trtype": disk.transport, "traddr": disk.address},
                        }
                    ],
                }
                for name, disk in self.disks.items()
            ]
        if method not in {
            "bdev_nvme_get_controller_health_info",
            "bdev_nvme_reset_controller",
            "bdev_nvme_send_cmd",
        }:
            raise RpcError(-32601, "Method not found")
        if parameters.get("name") not in self.disks:
            raise RpcError(-32602, "No such device")
        disk = self.disks[parameters["name"]]
        if method == "bdev_nvme_get_controller_health_info":
            return disk.health
        if method == "bdev_nvme_reset_controller":
            return disk.resets
        return self._send(disk, parameters)

    def _send(self, disk: SimulatedDisk, parameters: JSON) -> JSON:
        entry = base64.urlsafe_b64decode(parameters["cmdbuf"])
        length = parameters.get("data_len", 0)
        assert len(entry) == 64
        assert parameters["data_direction"] == ("c2h" if length else "h2c")
        if parameters["cmd_type"] == "admin":
            status, data = disk.admin(entry, length)
        else:
            number, low, high = struct.unpack_from("<I32xII", entry, 4)
            status, data = 0, disk.namespaces[number][low | high << 32]
        completion = bytes(14) + (status << 1).to_bytes(2, "little")
        answer = {"cpl": base64.urlsafe_b64encode(completion).decode()}
        if length:
            answer["data"] = base64.urlsafe_b64encode(data).decode()
        return answer


class SpdkSocket:
    """A UNIX socket below ``directory`` on which ``script`` serves each connection.

    Like that of SPDK, the server keeps a connection open after its answer. ``stopped`` ends the
    scripts that wait.
    """

    def __init__(self, directory: Path, script: Script) -> None:
        self.path = str(directory / "spdk.sock")
        self.stopped = threading.Event()
        self._script = script
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        joined(self._thread)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._script(connection, connection.recv(65536))
                    # Until the other side has closed.
                    connection.recv(1)
                except OSError:
                    continue


def in_pieces(answer: Callable[[bytes], bytes], size: int) -> Script:
    """Return a script that sends its answer in pieces of this size."""

    def script(connection: socket.socket, request: bytes) -> None:
        text = answer(request)
        for start in range(0, len(text), size):
            connection.sendall(text[start : start + size])

    return script
