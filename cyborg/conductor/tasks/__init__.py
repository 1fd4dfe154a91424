# SPDX-License-Identifier: Apache-2.0
"""The durable work queue, and the work in it that waits for an agent or for Nova."""
