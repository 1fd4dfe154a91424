# SPDX-License-Identifier: Apache-2.0
"""What a guest reads of its accelerators, through Nova's own metadata service."""

from cyborg.tests.functional.nova.cloud import Cloud

_PATH = "/openstack/latest/vendor_data2.json"


def test_guest_reads_its_accelerators(cloud: Cloud) -> None:
    with cloud.server(units=2) as server:
        project = cloud.show(server).project_id
        read = cloud.nova.metadata(server, project, _PATH)
        arqs = cloud.arqs(server)
        accelerators = read["cyborg"]["accelerators"]
        assert [unit["uuid"] for unit in accelerators] == [arq["uuid"] for arq in arqs]
        assert [unit["attach_handle_uuid"] for unit in accelerators] == [
            arq["attach_handle_uuid"] for arq in arqs
        ]
        assert {(unit["type"], unit["resource_class"]) for unit in accelerators} == {
            ("FPGA", "FPGA")
        }
        assert len({unit["pci_address"] for unit in accelerators}) == 2
        assert read["static"] == {}


def test_guest_without_accelerators_reads_an_empty_list(cloud: Cloud) -> None:
    with cloud.server(units=0) as server:
        project = cloud.show(server).project_id
        assert cloud.nova.metadata(server, project, _PATH)["cyborg"] == {"accelerators": []}
