# SPDX-License-Identifier: Apache-2.0
"""Serial numbers out of registers and VPD, also where they hold garbage."""

import random

import pytest

from cyborg.drivers.serial_numbers import dsn_of_config, dsn_of_file, plain, vpd_serial_number

DSN = "00-1b-21-ff-ff-12-34-56"


def capability(kind: int, following: int, content: bytes = b"") -> bytes:
    return (kind | 1 << 16 | following << 20).to_bytes(4, "little") + content


def serial(text: str = DSN) -> bytes:
    """Return the registers of a Device Serial Number: the lower half of the number is first."""
    number = bytes.fromhex(text.replace("-", ""))
    return number[:3:-1] + number[3::-1]


def config(capabilities: dict[int, bytes], size: int = 4096) -> bytes:
    space = bytearray(4096)
    for offset, content in capabilities.items():
        space[offset : offset + len(content)] = content
    return bytes(space[:size])


SECOND = {0x100: capability(0x0001, 0x140), 0x140: capability(0x0003, 0, serial())}


def test_device_serial_number_is_read_behind_other_capabilities() -> None:
    assert dsn_of_config(config(SECOND)) == DSN
    assert dsn_of_config(config({0x100: capability(3, 0, serial())})) == DSN
    assert dsn_of_config(config({0xFF4: capability(3, 0, serial()), 0x100: capability(1, 0xFF4)}))


@pytest.mark.parametrize("size", [0, 64, 256, 259, 0x140, 0x14B])
def test_config_that_ends_early_has_no_number(size: int) -> None:
    assert dsn_of_config(config(SECOND, size)) is None
    assert dsn_of_config(config(SECOND, 0x14C)) == DSN


@pytest.mark.parametrize(
    "space",
    [
        config({}),
        b"\xff" * 4096,
        config({0x100: capability(1, 0x100)}),
        config({0x100: capability(1, 0x140), 0x140: capability(2, 0x100)}),
        config({0x100: capability(1, 0x40), 0x40: capability(3, 0, serial())}),
        config({0x100: capability(1, 0xFFC), 0xFFC: capability(3, 0)}),
        config({0x100: capability(3, 0, bytes(8))}),
        config({0x100: capability(3, 0, b"\xff" * 8)}),
    ],
    ids=["none", "no answer", "itself", "loop", "low", "end", "zeros", "ones"],
)
def test_config_without_a_valid_number_has_none(space: bytes) -> None:
    assert dsn_of_config(space) is None


def test_garbage_in_config_never_fails() -> None:
    rng = random.Random(1)
    for _ in range(500):
        dsn_of_config(rng.randbytes(rng.choice((0, 64, 256, 300, 4096, 5000))))


def test_file_of_the_kernel_is_distinguished_from_that_of_a_driver() -> None:
    assert dsn_of_file(f"{DSN}\n") == DSN
    for text in ("", "001b21ffff123456\n", "00-00-00-00-00-00-00-00", "ff-ff-ff-ff-ff-ff-ff-ff"):
        assert dsn_of_file(text) is None


def field(keyword: bytes, content: bytes) -> bytes:
    return keyword + bytes([len(content)]) + content


def resource(tag: int, content: bytes) -> bytes:
    return bytes([0x80 | tag]) + len(content).to_bytes(2, "little") + content


def vpd(*fields: bytes, checksum: int | None = 0) -> bytes:
    """Return VPD with a name and these fields; ``checksum`` is added to the right one."""
    name = resource(0x02, b"A network card")
    content = b"".join(fields)
    if checksum is not None:
        length = len(content) + 3 + 4
        head = name + bytes([0x90]) + length.to_bytes(2, "little") + content + b"RV\x04"
        content += b"RV\x04" + bytes([(checksum - sum(head)) & 0xFF, 0, 0, 0])
    return name + resource(0x10, content) + b"\x78"


PART, SERIAL = field(b"PN", b"X550"), field(b"SN", b" MT2201X00123  ")


@pytest.mark.parametrize("checksum", [0, None])
def test_serial_number_is_a_read_only_field_of_vpd(checksum: int | None) -> None:
    assert vpd_serial_number(vpd(PART, SERIAL, checksum=checksum)) == "MT2201X00123"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"\xff" * 100,
        vpd(PART),
        vpd(PART, SERIAL, checksum=1),
        vpd(PART, field(b"SN", b"0000000")),
        vpd(PART, field(b"SN", b"")),
        vpd(PART, field(b"SN", b"\xff\xfe\xfd")),
        vpd(PART, SERIAL)[:-20],
        resource(0x02, b"A network card") + resource(0x11, SERIAL) + b"\x78",
        b"\x78" + vpd(PART, SERIAL),
    ],
    ids=[
        *("empty", "zeros", "ones", "no SN", "checksum", "SN zeros", "SN empty", "SN no text"),
        *("cut off", "writable", "end first"),
    ],
)
def test_vpd_that_is_not_valid_has_no_serial_number(data: bytes) -> None:
    assert vpd_serial_number(data) is None


def test_garbage_in_vpd_never_fails() -> None:
    rng, valid = random.Random(1), vpd(PART, SERIAL)
    for _ in range(500):
        data = bytearray(valid)
        data[rng.randrange(len(data))] = rng.randrange(256)
        vpd_serial_number(bytes(data)[: rng.randrange(len(data))])
        vpd_serial_number(rng.randbytes(rng.randrange(300)))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("S4EVNX0M 123 \n", "S4EVNX0M 123"),
        ("0x1234567", "0x1234567"),
        ("a\0b\tc", "a b c"),
        ("x" * 300, "x" * 200),
        *((text, None) for text in ("", "  ", "0x0", "0000", "FF-FF", "0 0", "�x")),
    ],
)
def test_number_is_one_line_and_not_a_filler(text: str, number: str | None) -> None:
    assert plain(text) == number
