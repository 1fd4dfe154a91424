# SPDX-License-Identifier: Apache-2.0
"""PCI addresses: one spelling, whatever form they arrive in."""

import pytest

from cyborg.model.pci import PciAddress
from cyborg.tests.fixtures.properties import given, st

addresses = st.builds(
    PciAddress,
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)


@given(address=addresses)
def test_address_survives_a_round_trip(address: PciAddress) -> None:
    assert PciAddress.parse(str(address)) == address
    assert PciAddress.parse(str(address).upper()) == address
    assert PciAddress.from_info(address.info()) == address
    assert all(isinstance(part, str) for part in address.info().values())


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0000:81:00.0", "0000:81:00.0"),
        ("81:00.0", "0000:81:00.0"),
        ("1:2:3.4", "0001:02:03.4"),
        (" 0000:AF:1f.7\n", "0000:af:1f.7"),
        ("10000:00:01.0", "10000:00:01.0"),
    ],
)
def test_spellings_become_canonical(text: str, canonical: str) -> None:
    assert str(PciAddress.parse(text)) == canonical


@pytest.mark.parametrize(
    "text",
    ["", "81:00", "0000:81:00", "0000:81:00.0.0", "0000:zz:00.0", "0000:81:00.g", "0x81:0.0"],
)
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI address"):
        PciAddress.parse(text)


def test_attach_info_gives_the_address() -> None:
    """With ``0x`` and single digits too, as the rows in the field have them."""
    info = {"domain": "0000", "bus": "0x0c", "device": "1", "function": "0"}
    assert str(PciAddress.from_info(info)) == "0000:0c:01.0"
    assert PciAddress.parse("0000:0c:01.0").info() == {
        "domain": "0000",
        "bus": "0c",
        "device": "01",
        "function": "0",
    }
    with pytest.raises(ValueError, match="needs 'bus'"):
        PciAddress.from_info({"domain": "0000"})
    with pytest.raises(ValueError, match="zz"):
        PciAddress.from_info({**info, "bus": "zz"})
