# SPDX-License-Identifier: Apache-2.0
"""Only on a broker, and once: the tests bring the servers of the database with them."""

from cyborg.tests.functional.deployments import HAS_BROKER
from cyborg.tests.functional.schema.databases import SERVER

collect_ignore = (
    [] if HAS_BROKER and SERVER.startswith("mysql") else ["test_galera.py", "test_quorum_queues.py"]
)
