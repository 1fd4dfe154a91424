# SPDX-License-Identifier: Apache-2.0
"""Programs of the tools with whole daemons: ``tools/test --services`` runs these tests."""

from cyborg.tests.functional.deployments import HAS_BROKER
from cyborg.tests.functional.schema.databases import SERVER

# The programs start daemons on MariaDB and RabbitMQ.
if not (HAS_BROKER and SERVER.startswith("mysql")):
    collect_ignore = ["test_programs.py"]
