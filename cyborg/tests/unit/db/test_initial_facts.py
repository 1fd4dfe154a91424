# SPDX-License-Identifier: Apache-2.0
"""Test the values that an upgrade derives: driver names, handle keys and group specs."""

import json

import pytest

from cyborg.db.migrations.initial_facts import driver_of, group_spec, handle_key

INFO = {"domain": "0000", "bus": "3B", "device": "2", "function": "1"}


@pytest.mark.parametrize(
    ("resource_class", "vendor", "device_type", "driver"),
    [
        ("CUSTOM_PCI", "pci", "GPU", "pci_driver"),
        ("CUSTOM_QAT", "intel", "QAT", "intel_qat_driver"),
        ("CUSTOM_NIC", "intel", "NIC", "intel_nic_driver"),
        ("CUSTOM_SSD", "INSPUR", "SSD", "inspur_nvme_ssd_driver"),
        ("PGPU", "nvidia", "GPU", "nvidia_gpu_driver"),
        ("VGPU", "nvidia", "GPU", "nvidia_gpu_driver"),
        ("FPGA", "fake", "FPGA", "fake_driver"),
        ("FPGA", "intel", "FPGA", "intel_fpga_driver"),
        ("FPGA", "INSPUR", "FPGA", "inspur_fpga_driver"),
        ("FPGA", "XILINX", "FPGA", "xilinx_fpga_driver"),
        ("CUSTOM_AICHIP", "huawei", "AICHIP", "huawei_ascend_driver"),
        ("FPGA", None, "FPGA", "pci_driver"),
        (None, None, "NVME", "pci_driver"),
    ],
)
def test_driver_follows_from_class_vendor_and_type(
    resource_class: str | None, vendor: str | None, device_type: str, driver: str
) -> None:
    assert driver_of(resource_class, vendor, device_type) == driver


@pytest.mark.parametrize(
    ("attach_type", "info", "key"),
    [
        ("PCI", json.dumps(INFO), "0000:3b:02.1"),
        ("TEST_PCI", json.dumps(dict(reversed(INFO.items()))), "0000:3b:02.1"),
        ("MDEV", json.dumps({**INFO, "vgpu_mark": "nvidia-35_0"}), "0000:3b:02.1/nvidia-35_0"),
        ("MDEV", json.dumps(INFO), "0000:3b:02.1/the-uuid"),
        ("PCI", '{"bus": "zz"}', '{"bus": "zz"}'),
        ("PCI", "[]", "[]"),
        ("PCI", "no JSON", "no JSON"),
    ],
)
def test_handle_key_follows_from_attach_info(attach_type: str, info: str, key: str) -> None:
    assert handle_key(attach_type, info, "the-uuid") == key


@pytest.mark.parametrize(
    ("profile", "group", "spec"),
    [
        ('{"groups": [{"a": "1"}, {"b": "2"}]}', 1, {"b": "2"}),
        ('{"groups": [{"a": "1"}]}', 1, None),
        ('{"groups": [{"a": "1"}]}', -1, None),
        ('{"groups": ["a"]}', 0, None),
        ('{"groups": {}}', 0, None),
        ("[]", 0, None),
        ("no JSON", 0, None),
    ],
)
def test_group_spec_is_none_for_an_invalid_profile_or_group(
    profile: str, group: int, spec: dict[str, str] | None
) -> None:
    assert group_spec(profile, group) == spec
