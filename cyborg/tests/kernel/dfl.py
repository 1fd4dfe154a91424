# SPDX-License-Identifier: Apache-2.0
"""An FPGA card for the DFL drivers of the kernel: its registers, and a thread that answers.

The PCI function is one whose BAR 0 is plain RAM: QEMU's bochs-display. ``Card`` writes a Device
Feature List with a management engine (FME), a port and its accelerator (AFU) into it. The thread
plays the hardware that loads images. The drivers are those of ``drivers/fpga`` in Linux 6.12, and
the registers are in dfl.h, dfl-fme-mgr.c, dfl-fme-error.c, dfl-afu-main.c and dfl-afu-error.c.

What differs from hardware:

* RAM keeps what is written to it. So the words of an image cannot be collected, and only the last
  one stays in the data register: the thread takes it for the function that the image has. Registers
  that hardware clears when a one is written to them keep their value.
* The kernel waits 1 ms for the reset of a port (RST_POLL_TIMEOUT), which no thread can promise to
  meet. So the card acknowledges before the kernel asks: the bit is set while no image is loaded, so
  that the kernel finds it when it resets the port, and not set when the kernel ends the reset. Only
  the reset at the bind of the driver times out at its end, which the kernel logs and ignores.

The kernel needs the parameter ``iomem=relaxed``: by default it refuses root the registers that a
driver has.
"""

import mmap
import struct
import threading
from contextlib import ExitStack
from typing import Final

#: Seconds between two looks at the registers; the kernel waits 8 s for images (PR_WAIT_TIMEOUT).
_STEP: Final = 0.002
#: Seconds after which the kernel has seen that the port is out of its reset.
_SEEN: Final = 0.1
#: Bytes of the BAR that are mapped.
_LENGTH: Final = 0x20000
_FIU, _PRIVATE, _AFU = (kind << 60 for kind in (4, 3, 1))
_END: Final = 1 << 40
#: The management engine: header, global errors, partial reconfiguration.
_FME: Final = 0x0
_FME_ERRORS: Final = 0x1000
_PR: Final = 0x2000
_PR_CONTROL, _PR_STATUS, _PR_DATA, _PR_ERROR = (_PR + place for place in (0x8, 0x10, 0x18, 0x20))
_PR_RESET, _PR_RESET_ACK, _PR_START, _PR_COMPLETE = (1 << bit for bit in (0, 4, 12, 13))
_PR_FAILED: Final = 1 << 16
#: What the CPU reads from a function that does not decode its addresses, in a reset for example.
_NOTHING: Final = (1 << 64) - 1
_CREDITS: Final = 256
#: The port: header, errors, accelerator.
_PORT: Final = 0x10000
_PORT_CONTROL: Final = _PORT + 0x38
_PORT_ERRORS: Final = _PORT + 0x1000
_PORT_RESET, _PORT_RESET_ACK = 1 << 0, 1 << 4
_ACCELERATOR: Final = _PORT + 0x4000
_ACCELERATOR_KB: Final = 64
#: Registers that a test sets: errors as the kernel shows them, and the power state of the port.
CATASTROPHIC_ERRORS: Final = _FME_ERRORS + 0x60
NONFATAL_ERRORS: Final = _FME_ERRORS + 0x50
ENGINE_ERRORS: Final = _FME_ERRORS + 0x10
PORT_ERRORS: Final = _PORT_ERRORS + 0x10
PORT_STATUS: Final = _PORT + 0x40
#: Bits of the error of an image: the card found a wrong checksum.
CRC_ERROR: Final = 1 << 1
#: The first 96 bits of the functions of images.
_SERIES: Final = 0xD8424DC4A4A3C413F89E4336


def function_of(word: int) -> str:
    """Return the function of an image that ends with this word of 32 bits."""
    return f"{_SERIES << 32 | word:032x}"


def next_header(distance: int) -> int:
    """Return the part of a Device Feature Header that says where the next one is."""
    return distance << 16


class Registers:
    """BAR 0 of a function, in registers of 64 bits; a context that ends the mapping."""

    def __init__(self, address: str) -> None:
        with open(f"/sys/bus/pci/devices/{address}/resource0", "r+b", buffering=0) as file:
            self._memory = mmap.mmap(file.fileno(), _LENGTH)

    def __enter__(self) -> "Registers":
        return self

    def __exit__(self, *_error: object) -> None:
        self._memory.close()

    def __getitem__(self, place: int) -> int:
        (value,) = struct.unpack_from("=Q", self._memory, place)
        return int(value)

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("=Q", self._memory, place, value)

    def clear(self) -> None:
        """Set all registers to 0."""
        self._memory[:] = bytes(_LENGTH)

    def set_uuid(self, place: int, uuid: str) -> None:
        """Set two registers, the first of which has the low half."""
        self[place], self[place + 8] = int(uuid[16:], 16), int(uuid[:16], 16)


class Card:
    """A card that the driver dfl-pci can have; ``undo`` ends its thread.

    The function must have no driver, and be enabled. ``region`` is the id of the region that can be
    reconfigured, and ``word`` is the last one of the image that the card has.
    """

    def __init__(self, address: str, undo: ExitStack, *, region: str, word: int) -> None:
        self.address = address
        #: How many images the card got, good or not.
        self.images = 0
        self._error = 0
        self.registers = undo.enter_context(Registers(address))
        self.registers.clear()
        self._write_engine(region)
        self._write_port(word)
        self._ended = threading.Event()
        thread = threading.Thread(target=self._run)
        undo.callback(thread.join)
        undo.callback(self._ended.set)
        thread.start()

    @property
    def function(self) -> str:
        """Return the function that the card has."""
        return f"{self.registers[_ACCELERATOR + 16]:016x}{self.registers[_ACCELERATOR + 8]:016x}"

    def fail(self, error: int) -> None:
        """Let the next image end with these bits of the error register."""
        self._error = error

    def acknowledge_reset(self) -> None:
        """Acknowledge a reset of the port that the kernel does not end after an image."""
        self.registers[_PORT_CONTROL] |= _PORT_RESET_ACK

    def _write_engine(self, region: str) -> None:
        registers = self.registers
        registers[_FME] = _FIU | next_header(_FME_ERRORS)
        # One port, which is on BAR 0 and implemented; version 2 of the fabric.
        registers[_FME + 0x30] = 1 << 17 | 2
        registers[_FME + 0x38] = 1 << 60 | _PORT
        registers[_FME + 0x60] = 0x50120266FA3C5E1
        registers[_FME_ERRORS] = _PRIVATE | next_header(_PR - _FME_ERRORS) | 1 << 12 | 0x4
        registers[_PR] = _PRIVATE | _END | 0x5
        registers[_PR_STATUS] = _CREDITS
        registers.set_uuid(_PR + 0xA8, region)

    def _write_port(self, word: int) -> None:
        registers = self.registers
        registers[_PORT] = _FIU | next_header(_PORT_ERRORS - _PORT) | 0x1
        registers[_PORT + 0x18] = _ACCELERATOR - _PORT
        registers[_PORT + 0x30] = _ACCELERATOR_KB << 8
        registers[_PORT_CONTROL] = _PORT_RESET_ACK
        registers[_PORT_ERRORS] = _PRIVATE | _END | 0x10
        registers[_ACCELERATOR] = _AFU | _END
        registers.set_uuid(_ACCELERATOR + 0x8, function_of(word))

    def _run(self) -> None:
        while not self._ended.wait(_STEP):
            self._answer()

    def _answer(self) -> None:
        """Do what the hardware does in the state that the registers have.

        It writes a register only while the kernel waits for that, and so does not write it.
        """
        registers = self.registers
        port, control = registers[_PORT_CONTROL], registers[_PR_CONTROL]
        if _NOTHING in (port, control):
            return
        if control & _PR_RESET and not control & _PR_RESET_ACK:
            registers[_PORT_CONTROL] = port & ~_PORT_RESET_ACK
            registers[_PR_ERROR], registers[_PR_STATUS] = 0, _CREDITS
            registers[_PR_CONTROL] = control | _PR_RESET_ACK
        elif control & _PR_START and control & _PR_COMPLETE:
            self.images += 1
            error, self._error = self._error, 0
            if error:
                registers[_PR_ERROR], registers[_PR_STATUS] = error, _CREDITS | _PR_FAILED
                # The kernel leaves the port in its reset.
                registers[_PORT_CONTROL] = port | _PORT_RESET_ACK
            else:
                word = registers[_PR_DATA] & 0xFFFFFFFF
                registers.set_uuid(_ACCELERATOR + 0x8, function_of(word))
            registers[_PR_CONTROL] = control & ~(_PR_START | _PR_COMPLETE | _PR_RESET_ACK)
        elif not port & (_PORT_RESET | _PORT_RESET_ACK):
            self._ended.wait(_SEEN)
            if registers[_PORT_CONTROL] == port:
                registers[_PORT_CONTROL] = port | _PORT_RESET_ACK
