# SPDX-License-Identifier: Apache-2.0
"""The driver of ``tools/driver-template`` offers a real function through the whole service."""

import shutil
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.drivers import loader
from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.functions import IGB, Functions, eventually

TEMPLATE = Path(__file__).parents[3] / "tools" / "driver-template"
#: What a vendor changes first: the ids (virtual functions of igb), and the files that prepare a
#: function, with their text for a guest and for an idle function. Every PCI function has this file.
CHANGES = {
    "VENDOR, PRODUCT": "0x8086, 0x10CA",
    "SETTINGS": '(("driver_override", "vfio-pci", "\\n"),)',
}
GROUP = {"resources:CUSTOM_EXAMPLE": "1", "trait:CUSTOM_EXAMPLE_CARD": "required"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undo: ExitStack) -> None:
    """Install a copy of the template as pip does: the module, and the metadata with its entry."""
    shutil.copytree(TEMPLATE / "my_driver", tmp_path / "my_driver")
    file = tmp_path / "my_driver" / "driver.py"
    lines = file.read_text().splitlines()
    for name, value in CHANGES.items():
        [number] = [index for index, line in enumerate(lines) if line.startswith(f"{name} = ")]
        lines[number] = f"{name} = {value}"
    file.write_text("\n".join(lines))
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"my_driver-{project['version']}.dist-info"
    metadata.mkdir()
    entries = project["entry-points"][loader.NAMESPACE].items()
    section = [f"[{loader.NAMESPACE}]", *(f"{name} = {target}" for name, target in entries)]
    (metadata / "entry_points.txt").write_text("\n".join(section))
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_driver", "my_driver.driver"):
        undo.callback(sys.modules.pop, name, None)


@pytest.mark.usefixtures("package")
def test_function_with_the_driver_of_the_template_is_reported_bound_and_released(
    functions: Functions, host: LocalHost, tmp_path: Path, undo: ExitStack
) -> None:
    # Only this test pays for this import.
    from cyborg.tests.kernel.deployment import Deployment

    [card] = functions.matching(IGB)
    virtual, other = functions.create_vfs(card, 2)
    deployment = Deployment("my_driver", tmp_path, undo)
    [loaded] = loader.load(["my_driver"], host, deployment.conf)
    assert loaded.driver, loaded.error
    devices = loaded.driver.discover(Scan(host))
    assert [device.key for device in devices] == [virtual, other]

    def overrides() -> list[str]:
        return [functions.read(address, "driver_override") for address in (virtual, other)]

    provider, instance = deployment.provider(virtual), str(uuid4())
    deployment.wait_for_providers(GROUP, {provider, deployment.provider(other)})
    bound = deployment.bind(GROUP, provider, instance)
    assert bound == ("Bound", PciAddress.parse(virtual).info())
    assert overrides() == ["vfio-pci", "(null)"]
    deployment.delete(instance)
    eventually(lambda: overrides() == ["(null)", "(null)"])
