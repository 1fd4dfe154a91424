# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --discover``: the table, the JSON document, the differences, and wrong options."""

import io
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent import discover as agent
from cyborg.agent.discover import Row
from cyborg.agent.state_store import DesiredStateCache, StateStore
from cyborg.cmd import discover
from cyborg.conf import opts
from cyborg.drivers import loader
from cyborg.drivers.host import LocalHost
from cyborg.model.report import Report
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.agent.fake_peers import report_of

GUEST = Path(__file__).parents[2] / "fixtures" / "hosts" / "guest.tar.gz"
ROW = Row(
    address="0000:81:00.0",
    kind="display",
    type="GPU",
    vendor="NVIDIA Corporation",
    model="GA100 [A100 PCIe 80GB]",
    host_driver="nvidia",
    numa_node=1,
    offered_by="pci_driver",
    units=1,
    deployables=("compute-1_0000:81:00.0",),
    reasons={},
)
REASON = "its disk nvme0n1p1 is mounted at /; " + "unmount it " * 10
REFUSED = replace(ROW, kind="storage", type=None, offered_by=None, reasons={"pci_driver": REASON})


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table be as wide as that of a usual terminal."""
    monkeypatch.setenv("COLUMNS", "120")


class Terminal(io.StringIO):
    """A terminal that keeps what is printed."""

    def isatty(self) -> bool:
        return True


def configured(directory: Path, *words: str, text: str = "") -> cfg.ConfigOpts:
    file = directory / "cyborg.conf"
    file.write_text(f"[DEFAULT]\nhost = compute-1\nstate_path = {directory}/state\n{text}")
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf.register_cli_opts(discover.OPTIONS)
    conf(list(words), project="cyborg", default_config_files=[str(file)], default_config_dirs=[])
    return conf


def printed(directory: Path, *words: str, text: str = "") -> str:
    out = io.StringIO()
    conf = configured(directory, "--discover", "--host", str(GUEST), *words, text=text)
    assert discover.run(conf, out) == 0
    return out.getvalue()


def document(directory: Path, *words: str, text: str = "") -> dict[str, Any]:
    result: dict[str, Any] = json.loads(printed(directory, "--json", *words, text=text))
    return result


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_table_fits_the_width_and_loses_no_word(width: int) -> None:
    lines = list(discover.table([ROW, REFUSED], width))
    assert max(map(len, lines)) <= width
    assert " ".join(lines).count("unmount") == 10


def test_wide_table_has_one_line_for_each_device() -> None:
    heading, rule, line = discover.table([ROW], 150)
    assert heading.split() == ["Address", "Kind", "Vendor", "Model", "Host", "driver", "Offered"]
    assert set(rule) == {"-", " "}
    assert line.split("  ")[0] == "0000:81:00.0"
    assert "display (GPU)" in line
    assert line.endswith("yes, by pci_driver")


def test_table_without_devices_is_empty() -> None:
    assert list(discover.table([], 80)) == []


def test_wrong_rule_of_the_device_catalogue_is_refused_whatever_the_driver(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("- trait: CUSTOM_A\n  when: {colour: red}\n")
    text = f"[generic_driver]\ndevices_dir = {tmp_path}\n"
    with pytest.raises(
        exception.ConfigError, match=r"rules\.yaml:2: 'colour' is not a key of when"
    ):
        printed(tmp_path, "--driver", "fake_driver", text=text)


def test_colours_need_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    conf = configured(tmp_path, "--discover", "--driver", "fake_driver")
    terminal, file = Terminal(), io.StringIO()
    discover.run(conf, terminal)
    discover.run(conf, file)
    assert "\033[32myes, by fake_driver" in terminal.getvalue()
    assert "\033" not in file.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    discover.run(conf, terminal)
    assert "\033" not in terminal.getvalue()


def test_table_has_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert max(map(len, printed(tmp_path).splitlines())) <= 72


def test_every_device_of_the_archive_is_in_the_table(tmp_path: Path) -> None:
    text = printed(tmp_path, text="[agent]\nenabled_drivers = fake_driver\n")
    assert text.count("0000:44:00.0") == 1
    assert "28 device(s), 1 offered. Enabled drivers: fake_driver." in text
    whitelist = '[pci]\npassthrough_whitelist = {"vendor_id": "1b36"}\n'
    text = printed(tmp_path, "--driver", "pci_driver", text=whitelist)
    assert "27 device(s), 3 offered. Enabled drivers: pci_driver." in text


def test_json_document_has_stable_keys(tmp_path: Path) -> None:
    result = document(
        tmp_path,
        *("--driver", "pci_driver"),
        text='[pci]\npassthrough_whitelist = {"address": "0000:44:00.0"}\n',
    )
    assert list(result) == ["format", "host", "archive", "drivers", "devices", "notes"]
    assert result["drivers"] == [
        {"name": "pci_driver", "state": "READY", "error": None, "devices": 1}
    ]
    (card,) = (device for device in result["devices"] if device["offered"])
    assert card == {
        "address": "0000:44:00.0",
        "kind": "unclassified",
        "type": "PCI",
        "vendor": "1234",
        "model": "11e8",
        "host_driver": "simaccel",
        "numa_node": 1,
        "offered": True,
        "offered_by": "pci_driver",
        "units": 1,
        "deployables": ["compute-1_0000:44:00.0"],
        "reason": None,
        "reasons": {},
    }


def test_state_file_that_is_missing_is_named(tmp_path: Path) -> None:
    result = document(tmp_path, "--diff")
    assert result["diff"] is None
    assert result["diff_error"] == f"there is no state file {tmp_path}/state/agent-compute-1.sqlite"
    text = " ".join(printed(tmp_path, "--diff").split())
    assert "The next report cannot be compared: there is no state file" in text
    assert not (tmp_path / "state").exists()


def stored(directory: Path, report: Report | None) -> Path:
    """Write the state file of an agent."""
    store = StateStore(directory / "state", "compute-1")
    DesiredStateCache(store).store(report=report)
    return store.path


def test_changes_of_the_next_report_are_printed_and_nothing_is_written(tmp_path: Path) -> None:
    file = stored(tmp_path, report_of("a"))
    before = file.read_bytes(), sorted(file.parent.iterdir())
    changes = document(tmp_path, "--diff", "--driver", "fake_driver")["diff"]
    assert {"driver", "what", "key", "change", "details"} == set(changes[0])
    assert ("device", "0000:0c:00.0", "added") in [
        (change["what"], change["key"], change["change"]) for change in changes
    ]
    text = printed(tmp_path, "--diff", "--driver", "fake_driver")
    assert "device 0000:0c:00.0 of fake_driver added" in text
    assert (file.read_bytes(), sorted(file.parent.iterdir())) == before


def test_report_without_changes_is_named(tmp_path: Path) -> None:
    host = LocalHost()
    drivers = loader.load(["fake_driver"], host, configured(tmp_path))
    stored(tmp_path, agent.discover(drivers, host, timeout=PATIENCE).report)
    text = printed(tmp_path, "--diff", "--driver", "fake_driver")
    assert "The next report would change nothing." in text


def test_state_file_without_report_or_of_another_program_is_named(tmp_path: Path) -> None:
    file = stored(tmp_path, None)
    assert document(tmp_path, "--diff")["diff_error"] == f"the state file {file} has no report"
    file.write_text("no database " * 100)
    assert "cannot be read" in document(tmp_path, "--diff")["diff_error"]
    shutil.rmtree(file.parent)
    file.parent.mkdir()
    sqlite3.connect(file).close()
    assert "cannot be read: no such table" in document(tmp_path, "--diff")["diff_error"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json"], "Option --json needs --discover."),
        (["--host", "x"], "Option --host needs --discover."),
        (["--driver", "x"], "Option --driver needs --discover."),
        (["--diff"], "Option --diff needs --discover."),
    ],
)
def test_option_without_discover_is_refused(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    with pytest.raises(exception.ConfigError) as refused:
        discover.check(configured(tmp_path, *words))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (["--driver", "nobodys_driver"], "", "Option --driver: no driver 'nobodys_driver' is"),
        (["--host", "/nowhere"], "", "Option --host: /nowhere cannot be read as an archive"),
        (["--driver", "pci_driver"], "[pci]\npassthrough_whitelist = []x\n", "whitelist"),
    ],
)
def test_unusable_option_is_a_configuration_error(
    tmp_path: Path, words: list[str], text: str, sentence: str
) -> None:
    with pytest.raises(exception.ConfigError) as refused:
        discover.run(configured(tmp_path, "--discover", *words, text=text), io.StringIO())
    assert sentence in str(refused.value)


def test_host_of_the_configuration_is_no_archive(tmp_path: Path) -> None:
    conf = configured(tmp_path, "--discover")
    assert (conf.host, conf.discover_host) == ("compute-1", None)


def test_texts_of_devices_and_drivers_are_escaped() -> None:
    odd = "GA100\x1b[2K\u202e"
    (_, _, line) = discover.table([replace(ROW, model=odd)], 200)
    assert "GA100\\x1b[2K\\u202e" in line
    out = io.StringIO()
    discover.Printer(out).say(f"Driver d failed: {odd}")
    assert out.getvalue() == "Driver d failed: GA100\\x1b[2K\\u202e\n"
