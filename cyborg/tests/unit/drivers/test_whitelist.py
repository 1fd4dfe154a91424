# SPDX-License-Identifier: Apache-2.0
"""Every form of a whitelist entry: what it matches, and which values are refused."""

import json

import pytest

from cyborg import exception
from cyborg.drivers import whitelist
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.pci import PciAddress
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st


def function(
    address: str = "0000:81:02.3",
    *,
    vendor: int = 0x10DE,
    product: int = 0x20B5,
    parent: str | None = None,
    host_driver: str | None = None,
) -> PciFunction:
    return PciFunction(
        address=PciAddress.parse(address),
        vendor=vendor,
        product=product,
        class_code=0x030200,
        parent=PciAddress.parse(parent) if parent else None,
        host_driver=host_driver,
    )


def matches(
    text: str,
    candidate: PciFunction,
    interfaces: dict[str, PciAddress] | None = None,
    *,
    managed: bool = False,
) -> bool:
    (entry,) = whitelist.parse([text])
    return entry.matches(candidate, interfaces or {}, managed=managed)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"vendor_id": "10de"}',
        '{"vendor_id": "10DE", "product_id": "20b5"}',
        '{"vendor_id": "0x10de"}',
        '{"vendor_id": "*", "product_id": "*"}',
        '{"address": "0000:81:02.3"}',
        '{"address": "81:02.3"}',
        '{"address": "*:81:02.*"}',
        '{"address": "*:*:*.*"}',
        '{"address": ":81:."}',
        '{"address": ".3"}',
        '{"address": "0000:81:02"}',
        '{"address": "0000:81:2.3"}',
        '{"address": {"domain": ".*", "bus": "8[0-3]", "slot": "02", "function": "[2-3]"}}',
        '{"address": {"bus": "81"}}',
        '{"vendor_id": "10de", "physical_network": "blue", "trusted": "true"}',
        '{"vendor_id": "10de", "force": true}',
    ],
)
def test_matches(text: str) -> None:
    assert matches(text, function())


@pytest.mark.parametrize(
    "text",
    [
        '{"vendor_id": "8086"}',
        '{"vendor_id": "10de", "product_id": "20b6"}',
        '{"address": "0001:81:02.3"}',
        '{"address": "*:81:02.4"}',
        '{"address": "0000:81:03.*"}',
        '{"address": {"bus": "8[2-3]"}}',
        '{"vendor_id": "8086", "address": "0000:81:02.3"}',
        '{"devname": "eth7"}',
    ],
)
def test_does_not_match(text: str) -> None:
    assert not matches(text, function())


def test_the_full_address_of_a_parent_matches_its_virtual_functions() -> None:
    child = function("0000:81:02.3", parent="0000:81:00.0")
    assert matches('{"address": "0000:81:00.0"}', child)
    assert not matches('{"address": "0000:81:00.*"}', child)
    assert not matches('{"address": {"bus": "81", "slot": "00", "function": "0"}}', child)


def test_a_devname_matches_its_function_and_the_virtual_functions() -> None:
    interfaces = {"ens1": PciAddress.parse("0000:81:00.0")}
    assert matches('{"devname": "ens1"}', function("0000:81:00.0"), interfaces)
    assert matches('{"devname": "ens1"}', function(parent="0000:81:00.0"), interfaces)
    assert not matches('{"devname": "ens1"}', function("0000:81:00.1"), interfaces)


def test_a_devname_matches_a_managed_function_in_a_guest() -> None:
    held = function(host_driver="vfio-pci")
    assert matches('{"devname": "ens1"}', held, managed=True)
    assert not matches('{"devname": "ens1"}', held)
    assert not matches('{"devname": "ens1"}', function(host_driver="ice"), managed=True)


NETWORKS = {"ens1": "blue", "ens2": "red"}
PORTS = {"ens1": PciAddress.parse("0000:81:00.0"), "ens2": PciAddress.parse("0000:81:00.1")}


def network(candidate: PciFunction, interfaces: dict[str, PciAddress], *texts: str) -> str | None:
    matching = [
        entry
        for entry in whitelist.parse(texts)
        if entry.matches(candidate, interfaces, managed=True)
    ]
    return whitelist.network_of(matching, candidate, interfaces)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["{}"], None),
        (['{"physical_network": "blue", "vendor_id": "10de"}'], "blue"),
        (['{"address": "81:02.3", "physical_network": "red"}', "{}"], "red"),
        (["{}", '{"address": "81:02.3", "physical_network": "red"}'], "red"),
        (
            [
                '{"address": "81:02.3", "physical_network": "red"}',
                '{"vendor_id": "10de", "physical_network": "blue"}',
            ],
            "red",
        ),
        (['{"address": "81:02.4", "physical_network": "red"}', "{}"], None),
    ],
)
def test_the_first_matching_entry_with_a_network_counts(
    texts: list[str], expected: str | None
) -> None:
    assert network(function(), {}, *texts) == expected


def named(*interfaces: str) -> list[str]:
    """Return entries that name whole ports, with their networks."""
    return [
        f'{{"devname": "{name}", "physical_network": "{NETWORKS[name]}"}}' for name in interfaces
    ]


def test_a_value_may_be_a_list_and_the_option_may_be_repeated() -> None:
    entries = whitelist.parse(['[{"vendor_id": "10de"}, {"vendor_id": "8086"}]', "{}", "[]"])
    assert [entry.vendor for entry in entries] == [0x10DE, 0x8086, None]
    assert [entry.force for entry in whitelist.parse(["{}", '{"force": true}'])] == [False, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("{vendor_id: 10de}", "it is not JSON"),
        ("8086", "8086 is not a JSON object"),
        ('["10de"]', '"10de" is not a JSON object'),
        ('{"vendor_id": "zz"}', "vendor_id 'zz' is neither '*' nor hexadecimal up to ffff"),
        ('{"vendor_id": "10000"}', "vendor_id '10000' is neither"),
        ('{"product_id": 8086}', "product_id is not a string of hexadecimal digits or '*'"),
        ('{"product_id": " "}', "product_id is not a string of hexadecimal digits or '*'"),
        ('{"address": "0:0:0:0.0"}', "is not of the form domain:bus:slot.function"),
        ('{"address": "0000:81:20.0"}', "slot of address '20' is neither"),
        ('{"address": "0000:81:00.8"}', "function of address '8' is neither"),
        ('{"address": "0000:8?:00.0"}', "bus of address '8?' is neither"),
        ('{"address": 5}', "address is neither a string nor an object"),
        ('{"address": {"device": "00"}}', "address has no part 'device', only domain, bus"),
        ('{"address": {"bus": "["}}', "bus '[' is not a regular expression"),
        ('{"address": {"bus": 81}}', "bus of address is not a regular expression"),
        ('{"address": "*:*:*.*", "devname": "eth0"}', "address and devname exclude each other"),
        ('{"devname": 5}', "devname is not the name of a network interface"),
        ('{"force": "yes"}', "force is neither true nor false"),
        ('{"address": "*:*:*.*", "physical_network": null}', "physical_network is not a name of"),
        ('{"vendor_id": "*", "physical_network": ""}', "physical_network is not a name of 1 to 64"),
        ('{"vendor_id": "*", "physical_network": "a b"}', "physical_network is not a name of 1 to"),
        ('{"vendor_id": "*", "physical_network": ["a"]}', "physical_network is not a name of 1 to"),
        (
            f'{{"vendor_id": "*", "physical_network": "{"n" * 65}"}}',
            "physical_network is not a name of 1 to 64 ASCII characters without blanks; omit it",
        ),
        ('{"physical_network": "blue"}', "none of the keys address, devname, force"),
        ('{"bus": "81"}', "none of the keys address, devname, force"),
    ],
)
def test_an_invalid_entry_raises_config_error_with_option_and_value(text: str, reason: str) -> None:
    with pytest.raises(exception.ConfigError) as caught:
        whitelist.parse([text])
    sentence = str(caught.value)
    assert sentence.startswith(f"Option [pci] passthrough_whitelist cannot be {text!r}: ")
    assert reason in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"address": {"bus": "a{99999999999}"}}', "is not a regular expression"),
        (
            json.dumps({"address": {"bus": "(" * 5_000 + ")" * 5_000}}),
            "is not a regular expression",
        ),
    ],
)
def test_entry_that_python_cannot_parse_raises_config_error(text: str, reason: str) -> None:
    with pytest.raises(exception.ConfigError, match=reason):
        whitelist.parse([text])


#: Entries with every key.
ENTRIES = [
    {"vendor_id": "10de", "product_id": "20b5", "address": "0000:81:02.3", "force": True},
    {"vendor_id": "*", "address": {"domain": ".*", "bus": "8[0-3]", "slot": "02"}},
    {"devname": "eth0", "physical_network": "blue", "trusted": "true"},
    [{"address": "*:81:02.*"}, {"vendor_id": "0x10DE"}],
]


@given(st.sampled_from(ENTRIES).flatmap(malformed.changed).map(malformed.encode) | malformed.TEXTS)
@fuzzed(300)
def test_malformed_entry_is_parsed_or_refused(text: str) -> None:
    with malformed.bounded():
        try:
            entries = whitelist.parse([text])
        except exception.ConfigError as error:
            malformed.check_refusal(error, "Option [pci] passthrough_whitelist cannot be ")
            return
        for entry in entries:
            for parent in (None, "0000:81:00.1"):
                assert entry.matches(function(parent=parent), {}, managed=False) in (True, False)


def test_ports_of_guests_have_a_network_when_it_is_unambiguous() -> None:
    # The result is the same while a guest has the function: the port stays on the host.
    for driver in ("iavf", "vfio-pci"):
        child = function(parent="0000:81:00.1", host_driver=driver)
        assert network(child, PORTS, *named("ens1", "ens2")) == "red"
    held = function("0000:81:00.0", host_driver="vfio-pci")
    assert network(held, {"ens2": PORTS["ens2"]}, *named("ens1", "ens2")) == "blue"
    assert network(held, {}, *named("ens1", "ens2")) is None
    assert network(held, {}, *named("ens1"), '{"devname": "ens3"}') is None
