# SPDX-License-Identifier: Apache-2.0
"""Parse the serial numbers that PCI cards have in their registers and their VPD; pure.

Both inputs come from hardware and may hold anything: what is not valid has no serial number. The
layouts are those of the PCI Express Base Specification (Device Serial Number Extended Capability)
and of the PCI Local Bus Specification 3.0, appendix I (Vital Product Data).
"""

import re
from collections.abc import Iterator

#: Extended capabilities are between these offsets of the configuration space, in bytes.
_FIRST, _END = 0x100, 0x1000
_DSN = 0x0003
#: Tags of VPD: the large resource with the read-only fields, and the small one at the end.
_READ_ONLY, _LAST = 0x10, 0x0F
#: The form of the kernel's file ``serial_number``; another file of this name has another form.
_FILE = re.compile(r"[0-9a-f]{2}(-[0-9a-f]{2}){7}")
_LONGEST = 200


def dsn_of_config(config: bytes) -> str | None:
    """Return the Device Serial Number as eight pairs of hex digits; None if there is none.

    ``config`` is the content of the file ``config``, which ends early for readers without
    privileges and for functions without extended capabilities.
    """
    offset, visited = _FIRST, set()
    while _FIRST <= offset <= min(_END, len(config)) - 12 and offset not in visited:
        visited.add(offset)
        header = _word(config, offset)
        if header & 0xFFFF == _DSN:
            value = _word(config, offset + 8) << 32 | _word(config, offset + 4)
            return plain(value.to_bytes(8, "big").hex("-"))
        offset = header >> 20 & ~3
    return None


def dsn_of_file(text: str) -> str | None:
    """Return the Device Serial Number of a file ``serial_number``, None if it has none."""
    return plain(text) if _FILE.fullmatch(text.strip()) else None


def vpd_serial_number(vpd: bytes) -> str | None:
    """Return the field SN of Vital Product Data; None if it has none or is not valid.

    Data whose checksum (field RV) is wrong is not valid; some boards have no checksum.
    """
    serial = None
    for keyword, begin, end in _vpd_fields(vpd):
        if end > len(vpd):
            return None
        if keyword == b"SN":
            serial = plain(vpd[begin:end].decode("ascii", errors="replace"))
        elif keyword == b"RV":
            # All bytes up to the first one of the field add up to 0.
            valid = end > begin and sum(vpd[: begin + 1]) & 0xFF == 0
            return serial if valid else None
    return serial


def plain(text: str) -> str | None:
    """Return a serial number as one printable line; None for one that identifies nothing.

    Manufacturers fill unused fields with blanks, zeros or the digit F.
    """
    if "\N{REPLACEMENT CHARACTER}" in text:
        return None
    line = printable(text)
    digits = line.lower().removeprefix("0x").replace("-", "").replace(" ", "")
    return line if digits.strip("0") and digits.strip("f") else None


def printable(text: str) -> str:
    """Return a text as one printable line of limited length."""
    words = "".join(character if character.isprintable() else " " for character in text).split()
    return " ".join(words)[:_LONGEST]


def _vpd_fields(vpd: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the read-only fields: keyword, begin and end of the content, which may be cut off."""
    offset = 0
    while offset < len(vpd):
        tag = vpd[offset]
        if tag & 0x80:
            size, begin = int.from_bytes(vpd[offset + 1 : offset + 3], "little"), offset + 3
            kind = tag & 0x7F
        else:
            size, begin, kind = tag & 0x07, offset + 1, tag >> 3
            if kind == _LAST:
                return
        offset = begin + size
        if kind == _READ_ONLY:
            while begin + 3 <= offset:
                end = begin + 3 + (vpd[begin + 2] if begin + 2 < len(vpd) else size)
                yield vpd[begin : begin + 2], begin + 3, end
                begin = end


def _word(config: bytes, offset: int) -> int:
    return int.from_bytes(config[offset : offset + 4], "little")
