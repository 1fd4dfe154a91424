# SPDX-License-Identifier: Apache-2.0
"""The NVMe admin commands that the agent sends; numbers from the NVMe base specification 2.0."""

import itertools
import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

#: NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h: _IOWR('N', 0x41, struct nvme_passthru_cmd).
ADMIN_IOCTL: Final = 0xC0484E41
#: struct nvme_passthru_cmd: opcode, flags, namespace, CDW2, CDW3, metadata, address, their lengths,
#: CDW10 to CDW15, timeout in milliseconds, result.
_COMMAND: Final = struct.Struct("=BBxxIIIQQII6III")
#: The operation codes of the commands.
IDENTIFY, FORMAT, GET_LOG_PAGE, SANITIZE, VIRTUALIZE = 0x06, 0x80, 0x02, 0x84, 0x1C
_IDENTIFY_LENGTH: Final = 4096
_SANITIZE_LOG: Final = 0x81
_HEALTH_LOG: Final = 0x02
#: The structure of the controller itself, as opposed to that of a namespace.
_CNS_CONTROLLER: Final = 1
#: The namespaces that the controller has.
_CNS_NAMESPACES: Final = 2
#: All controllers of the subsystem; what a controller can give to those of virtual functions; and
#: these controllers, which have entries of 32 bytes.
_CNS_CONTROLLERS, _CNS_CAPABILITIES, _CNS_SECONDARY = 0x13, 0x14, 0x15
_SECONDARY: Final = struct.Struct("<HHB3xHHH18x")
_LOG_LENGTH: Final = 512
#: All namespaces: the namespace of a log page of the whole controller.
_ALL: Final = 0xFFFFFFFF
#: A format of a large disk may take minutes; the other commands only begin work or read.
_FORMAT_TIMEOUT: Final = 1800
_TIMEOUT: Final = 60


class Erase(StrEnum):
    """How a format erases the data of a namespace."""

    USER_DATA = "user-data"
    CRYPTO = "crypto"


class SanitizeMethod(StrEnum):
    """How a sanitize operation erases all data of an NVMe subsystem."""

    BLOCK = "block"
    OVERWRITE = "overwrite"
    CRYPTO = "crypto"


class SanitizeState(StrEnum):
    """The result of the last sanitize operation."""

    NEVER = "never"
    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"


class SanitizeProgress(NamedTuple):
    """The state of a sanitize operation, and how far it is: a fraction from 0 to 1."""

    state: SanitizeState
    fraction: float


class ControllerFacts(NamedTuple):
    """What a controller says about erasing, from its answer to ``identify_controller``.

    ``formats``: it has the format command. ``crypto``: a format can destroy the key of the data.
    ``shared``: the subsystem has, or may have, other controllers. ``private``: a format of the
    namespaces that this controller has does not affect them. ``sanitizes`` are the supported
    methods.
    """

    formats: bool
    crypto: bool
    shared: bool
    private: bool
    sanitizes: tuple[SanitizeMethod, ...]


class ControllerHealth(NamedTuple):
    """What a controller says about its health.

    ``warnings`` are the numbers of the bits that are set in the critical warning. ``spare`` is the
    rest of the spare blocks, ``threshold`` how little of it is too little, and ``used`` the part of
    the life that has passed, all in percent; ``used`` may exceed 100.
    """

    warnings: tuple[int, ...]
    celsius: int
    spare: int
    threshold: int
    used: int
    media_errors: int


class VirtualController(NamedTuple):
    """The controller of a virtual function; ``vf`` is the number of the function, from 1."""

    identifier: int
    vf: int
    online: bool


class Share(NamedTuple):
    """How many queues, each with that for submissions, and interrupts one controller gets."""

    queues: int
    interrupts: int


class Flexible(NamedTuple):
    """What a physical function can give to the controllers of its virtual functions.

    ``held``: it has some of that itself, until it has released it and was reset. ``most`` is the
    largest share of one of them, 0 if the controller names none; shares are multiples of ``step``.
    """

    identifier: int
    total: Share
    held: bool
    most: Share
    step: Share


class Management(IntEnum):
    """What the command for virtualization management does."""

    RELEASE = 1
    ASSIGN = 8
    ONLINE = 9


class Resource(IntEnum):
    """What virtualization management gives to controllers."""

    QUEUES = 0
    INTERRUPTS = 1


@dataclass(frozen=True)
class AdminCommand:
    """One admin command; ``timeout`` in seconds."""

    opcode: int
    namespace: int = 0
    cdw10: int = 0
    cdw11: int = 0
    data_length: int = 0
    timeout: int = _TIMEOUT

    def encode(self, address: int) -> bytes:
        """Return the structure for the kernel; ``address`` is that of a buffer for the data."""
        words = (self.cdw10, self.cdw11, 0, 0, 0, 0)
        lengths = (0, self.data_length)
        target = address if self.data_length else 0
        return _COMMAND.pack(
            *(self.opcode, 0, self.namespace, 0, 0, 0, target),
            *(*lengths, *words, self.timeout * 1000, 0),
        )


def identify_controller() -> AdminCommand:
    """Return the command that reads the properties of the controller."""
    return AdminCommand(IDENTIFY, cdw10=_CNS_CONTROLLER, data_length=_IDENTIFY_LENGTH)


def identify_controllers() -> AdminCommand:
    """Return the command that lists the controllers of the NVMe subsystem."""
    return AdminCommand(IDENTIFY, cdw10=_CNS_CONTROLLERS, data_length=_IDENTIFY_LENGTH)


def controller_count(controllers: bytes) -> int:
    """Return the number of controllers in the answer to ``identify_controllers``."""
    return int.from_bytes(controllers[:2], "little")


def identify_flexible() -> AdminCommand:
    """Return the command that reads what a controller can give to virtual functions."""
    return AdminCommand(IDENTIFY, cdw10=_CNS_CAPABILITIES, data_length=_IDENTIFY_LENGTH)


def flexible(capabilities: bytes) -> Flexible:
    """Return what the answer to ``identify_flexible`` says.

    For queues from byte 32, and for interrupts from byte 64: the total of the flexible resources
    (VQFRT), those assigned, those of the physical function itself (VQRFAP), its own, the most of a
    virtual function (VQFRSM), and the granularity (VQGRAN).
    """
    queues, interrupts = (struct.unpack_from("<IIHHHH", capabilities, at) for at in (32, 64))
    return Flexible(
        identifier=int.from_bytes(capabilities[:2], "little"),
        total=Share(queues[0], interrupts[0]),
        held=bool(queues[2] or interrupts[2]),
        most=Share(queues[4], interrupts[4]),
        step=Share(max(1, queues[5]), max(1, interrupts[5])),
    )


def identify_virtual_controllers() -> AdminCommand:
    """Return the command that lists the controllers of virtual functions."""
    return AdminCommand(IDENTIFY, cdw10=_CNS_SECONDARY, data_length=_IDENTIFY_LENGTH)


def virtual_controllers(listed: bytes) -> tuple[VirtualController, ...]:
    """Return what the answer to ``identify_virtual_controllers`` lists.

    At most 127 entries fit into one answer.
    """
    count = min(listed[0], (len(listed) - _SECONDARY.size) // _SECONDARY.size)
    rows = (_SECONDARY.unpack_from(listed, _SECONDARY.size * (1 + i)) for i in range(count))
    return tuple(VirtualController(row[0], row[3], bool(row[2] & 1)) for row in rows)


def manage(
    controller: int, action: Management, resource: Resource = Resource.QUEUES, count: int = 0
) -> AdminCommand:
    """Return the command that gives a controller ``count`` resources, or changes its state."""
    cdw10 = action | resource << 8 | controller << 16
    return AdminCommand(VIRTUALIZE, cdw10=cdw10, cdw11=count)


def controller_facts(identity: bytes) -> ControllerFacts:
    """Return the facts of a controller: CMIC (byte 76), OACS (256), SANICAP (328), FNA (524).

    CMIC only tells whether the subsystem may have several controllers, and FNA whether a format is
    of one namespace: whether others have this namespace, too, ``is_private`` tells.
    """
    (oacs,), (sanicap,) = struct.unpack_from("<H", identity, 256), identity[328:329]
    methods = (SanitizeMethod.CRYPTO, SanitizeMethod.BLOCK, SanitizeMethod.OVERWRITE)
    return ControllerFacts(
        formats=bool(oacs >> 1 & 1),
        crypto=bool(identity[524] >> 2 & 1),
        shared=bool(identity[76] >> 1 & 0x3),
        private=not identity[524] & 0x3,
        sanitizes=tuple(method for bit, method in enumerate(methods) if sanicap >> bit & 1),
    )


def identify_namespaces() -> AdminCommand:
    """Return the command that lists the namespaces of the controller."""
    return AdminCommand(IDENTIFY, cdw10=_CNS_NAMESPACES, data_length=_IDENTIFY_LENGTH)


def namespace_numbers(listed: bytes) -> tuple[int, ...]:
    """Return the numbers in the answer to ``identify_namespaces``, which end with 0."""
    numbers = (number for (number,) in struct.iter_unpack("<I", listed))
    return tuple(itertools.takewhile(bool, numbers))


def identify_namespace(namespace: int) -> AdminCommand:
    """Return the command that reads the properties of a namespace."""
    return AdminCommand(IDENTIFY, namespace, data_length=_IDENTIFY_LENGTH)


def is_private(identity: bytes) -> bool:
    """Return whether only one controller can have a namespace (NMIC, byte 30)."""
    return not identity[30] & 1


def format_namespace(namespace: int, identity: bytes, erase: Erase) -> AdminCommand:
    """Return the command that erases a namespace and keeps its block size and its protection.

    ``identity`` is the answer to ``identify_namespace``: byte 26 has the format in use (FLBAS),
    byte 29 the protection of the data (DPS).
    """
    flbas, dps = identity[26], identity[29]
    metadata, protection, first = flbas >> 4 & 1, dps & 0x7, dps >> 3 & 1
    erase_code = {Erase.USER_DATA: 1, Erase.CRYPTO: 2}[erase]
    low = flbas & 0xF | metadata << 4 | protection << 5 | first << 8
    cdw10 = low | erase_code << 9 | (flbas >> 5 & 0x3) << 12
    return AdminCommand(FORMAT, namespace, cdw10, timeout=_FORMAT_TIMEOUT)


def sanitize(method: SanitizeMethod) -> AdminCommand:
    """Return the command that begins to sanitize; an overwrite makes one pass with zeros."""
    codes = {SanitizeMethod.BLOCK: 2, SanitizeMethod.OVERWRITE: 3, SanitizeMethod.CRYPTO: 4}
    passes = 1 if method is SanitizeMethod.OVERWRITE else 0
    return AdminCommand(SANITIZE, cdw10=codes[method] | passes << 4)


def sanitize_log() -> AdminCommand:
    """Return the command that reads the log page of sanitize operations."""
    return _log_page(_SANITIZE_LOG)


def health_log() -> AdminCommand:
    """Return the command that reads the log page with the health of the whole controller."""
    return _log_page(_HEALTH_LOG)


def _log_page(page: int) -> AdminCommand:
    dwords = _LOG_LENGTH // 4 - 1
    return AdminCommand(GET_LOG_PAGE, _ALL, page | dwords << 16, data_length=_LOG_LENGTH)


def controller_health(log: bytes) -> ControllerHealth:
    """Return what the log page says; section "SMART / Health Information" of the specification."""
    warnings, kelvin, spare, threshold, used = struct.unpack_from("<BHBBB", log)
    return ControllerHealth(
        warnings=tuple(bit for bit in range(8) if warnings >> bit & 1),
        celsius=kelvin - 273,
        spare=spare,
        threshold=threshold,
        used=used,
        media_errors=int.from_bytes(log[160:176], "little"),
    )


def sanitize_progress(log: bytes) -> SanitizeProgress:
    """Return what the log page says: SPROG counts to 65536, the low bits of SSTAT are the state."""
    progress, status = struct.unpack_from("<HH", log)
    states = {0: SanitizeState.NEVER, 2: SanitizeState.RUNNING, 3: SanitizeState.FAILED}
    state = states.get(status & 0x7, SanitizeState.DONE)
    return SanitizeProgress(state, progress / 65536 if state is SanitizeState.RUNNING else 1.0)
