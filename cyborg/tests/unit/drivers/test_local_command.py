# SPDX-License-Identifier: Apache-2.0
"""An operator's commands run exactly as configured, with checked values only."""

import pytest

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.local_command import FilePath, LocalCommand, placeholder_values
from cyborg.testing.fake_host import FakeHost

ADDRESS = "0000:81:00.0"
UUID = "6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it does not name a program"),
        ("setup {address}", "'setup' is not the absolute path of a program"),
        ("/usr/../tmp/setup", "'/usr/../tmp/setup' is not the absolute path of a program"),
        ("/usr/bin/{address}", "the program itself cannot be a placeholder"),
        (
            "/usr/bin/setup {host}",
            "{host} is not one of the placeholders {address}, {handle}, {uuid}, {image}",
        ),
        ("/usr/bin/setup {address.real}", "{address.real} is not one of the placeholders"),
        ("/usr/bin/setup {address!r}", "{address} is not one of the placeholders"),
        ("/usr/bin/setup {}", "{} is not one of the placeholders"),
        ("/usr/bin/setup {address", "expected '}' before end of string"),
        ("/usr/bin/setup 'open", "No closing quotation"),
    ],
)
def test_parsing_an_invalid_command_fails(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        LocalCommand.parse(text, 1)
    assert reason in str(caught.value)


def test_a_value_never_splits_a_word() -> None:
    host = FakeHost()
    command = LocalCommand.parse("/usr/bin/setup --card={address} 'two words' ;|$HOME {{}}", 7)
    host.programs["/usr/bin/setup"] = lambda _host, argv: Completed(0, " ".join(argv), "")
    command.run_checked(host, placeholder_values(ADDRESS))
    assert host.commands == [
        ("/usr/bin/setup", f"--card={ADDRESS}", "two words", ";|$HOME", "{}"),
    ]
    assert host.patience == [7]


@pytest.mark.parametrize(
    "values",
    [
        {"address": "0000:81:00.0; reboot"},
        {"address": "../../etc"},
        {"address": "0000:81:00.8"},
        {"address": "0000:81:00.0\n"},
        {"address": ADDRESS, "handle": "../../etc/passwd"},
        {"address": ADDRESS, "handle": "a/../b"},
        {"address": ADDRESS, "handle": "-rf"},
        {"address": ADDRESS, "handle": "/etc"},
        {"address": ADDRESS, "handle": "a b"},
        {"address": ADDRESS, "handle": ""},
        {"address": ADDRESS, "handle_uuid": "6d2f7a7e"},
        {"address": ADDRESS, "handle_uuid": UUID.upper()},
        {"address": ADDRESS, "image": "images/x"},
        {"address": ADDRESS, "image": "/"},
        {"address": ADDRESS, "image": "/var/../etc/passwd"},
        {"address": ADDRESS, "image": "/var/./x"},
        {"address": ADDRESS, "image": "/var//x"},
        {"address": ADDRESS, "image": "/var/x\n"},
        {"address": ADDRESS, "image": "--force"},
    ],
    ids=lambda values: list(values.values())[-1],
)
def test_invalid_placeholder_values_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(exception.HostError, match=r"building a command failed: .* is not a valid "):
        placeholder_values(**values)


def test_valid_placeholder_values_are_returned() -> None:
    handle = f"{ADDRESS}/nvidia-223_0"
    values = placeholder_values(ADDRESS, handle, UUID, image="/var/lib/..x/image")
    assert values == {
        "address": ADDRESS,
        "handle": handle,
        "uuid": UUID,
        "image": "/var/lib/..x/image",
    }


def test_a_program_that_others_can_change_is_not_run() -> None:
    host = FakeHost()
    host.answers["/usr/bin/setup",] = Completed(0, "", "")
    host.foreign.add("/usr/bin/setup")
    with pytest.raises(exception.HostError, match="others than root can change /usr/bin/setup"):
        LocalCommand.parse("/usr/bin/setup", 1).run_checked(host, {})
    assert host.commands == []


def test_an_error_has_the_last_line_of_the_output() -> None:
    host = FakeHost()
    host.answers["/usr/bin/setup",] = Completed(3, "out\n", "first\nno such card\n")
    command = LocalCommand.parse("/usr/bin/setup", 1)
    assert command.run(host, {}).status == 3
    with pytest.raises(exception.HostError) as caught:
        command.run_checked(host, {})
    assert str(caught.value) == (
        "running /usr/bin/setup failed: it ended with status 3: no such card"
    )


@pytest.mark.parametrize("text", ["run/ready", "/run/../ready", "/run//ready", "/run/{uuid}", ""])
def test_parsing_an_invalid_path_fails(text: str) -> None:
    with pytest.raises(ValueError):
        FilePath.parse(text, ("address",))


def test_exists_fills_the_address_into_the_path() -> None:
    host = FakeHost({f"/run/cards/{ADDRESS}": ""})
    path = FilePath.parse("/run/cards/{address}")
    assert path.exists(host, placeholder_values(ADDRESS))
    assert not path.exists(host, placeholder_values("0000:82:00.0"))
