# SPDX-License-Identifier: Apache-2.0
"""Groups on the command line, and error answers of services and proxies, that are malformed."""

import argparse
import json
from typing import Any

import pytest
import requests

from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg_cli import faults, profiles

ERROR = {
    "error_message": json.dumps({"faultcode": "Client", "faultstring": "no", "debuginfo": None})
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    profiles._add_group(made)
    return made


def answer(status: int, body: str | bytes, maximum: str = "2.100") -> requests.Response:
    made = requests.Response()
    made.status_code, made.url = status, "http://cyborg.test/v2/devices?limit=1"
    made._content = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    made.headers[faults.MAXIMUM_VERSION_HEADER] = maximum
    return made


@given(malformed.texts("resources:FPGA=1,trait:CUSTOM_A=required,accel:bitstream_id=a=b"))
@fuzzed(150)
def test_malformed_group_is_parsed_or_refused_by_argparse(text: str) -> None:
    with malformed.bounded():
        try:
            parsed = parser().parse_args([f"--group={text}"])
        except argparse.ArgumentError as error:
            malformed.check_refusal(error, "argument --group: ")
            return
    (group,) = parsed.groups
    assert all(key and "," not in value for key, value in group.items())
    if not any(word != word.strip() for pair in group.items() for word in pair):
        again = ",".join(f"{key}={value}" for key, value in group.items())
        assert parser().parse_args([f"--group={again}"]).groups == [group]


@pytest.mark.parametrize("maximum", ["\xb2.100", "2.\u0664", "9" * 5_000 + ".1", "", "2", "a.b"])
def test_odd_maximum_version_is_too_old(maximum: str) -> None:
    error = faults.error_answer(answer(406, "{}", maximum), needed=100)
    assert "2.100" in str(error)


@pytest.mark.parametrize("body", ["[" * 100_000, json.dumps({"error_message": "[" * 100_000})])
def test_deeply_nested_error_is_an_unexpected_answer(body: str) -> None:
    assert faults.error_answer(answer(500, body), needed=None).transient is False


@given(
    malformed.changed(ERROR).map(malformed.encode) | malformed.texts("<html>"),
    malformed.texts("2.100"),
    st.sampled_from([400, 404, 406, 409, 500, 503]),
)
@fuzzed(100)
def test_malformed_error_answer_is_a_failed_command(body: Any, maximum: str, status: int) -> None:
    with malformed.bounded():
        error = faults.error_answer(answer(status, body, maximum), needed=100)
    assert all(word not in str(error) for word in ("\0", "\x1b", "\ud800"))
