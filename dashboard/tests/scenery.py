# SPDX-License-Identifier: Apache-2.0
"""What happens in the cloud before people look at it: profiles, servers, a fault."""

from dashboard.tests.cloud import Cloud

#: The groups of cards of the GPU hosts, and of the FPGA host.
H200 = {"resources:CUSTOM_PCI": "1", "trait:CUSTOM_PCI_PRODUCT_ID_2335": "required"}
H100 = {"resources:CUSTOM_PCI": "1", "trait:CUSTOM_PCI_PRODUCT_ID_2330": "required"}
FPGA = {"resources:FPGA": "1", "trait:CUSTOM_FPGA_INTEL": "required"}
NOWHERE = {"resources:CUSTOM_PCI": "1", "trait:CUSTOM_PCI_PRODUCT_ID_2342": "required"}
#: Text that would be a script, a tag or an expression of Angular if a page did not escape it.
MARKUP = (
    "<script>document.title='mine'</script><img src=x onerror=alert(1)>{{1234*1001}}{$1234*1001$}"
)


def furnish(cloud: Cloud) -> list[str]:
    """Make profiles and servers as operators and users do; return the uuids of the servers."""
    blue = cloud.keystone.project_id("blue")
    cloud.profile("h200", H200, description="One whole H200 with 141 GB")
    cloud.profile("h100", H100, description="One whole H100 with 80 GB")
    cloud.profile("n6001", FPGA, description="One FPGA for team blue", projects=[blue])
    cloud.profile("gh200", NOWHERE, description="No host has this card")
    servers = [cloud.server("h200", "gpu-1.example.org") for _ in range(3)]
    servers.append(cloud.server("h100", "gpu-2.example.org"))
    spare = cloud.devices(hostname="gpu-2.example.org", in_use="false")[-1]
    cloud.send(
        "PATCH",
        f"/devices/{spare['uuid']}",
        {"status": "maintaining", "status_reason": "Fan is replaced", "labels": {"rack": "7"}},
    )
    return servers
