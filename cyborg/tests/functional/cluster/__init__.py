# SPDX-License-Identifier: Apache-2.0
"""The service on a cluster of MariaDB Galera, and on quorum queues of RabbitMQ."""
