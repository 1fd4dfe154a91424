# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the processes of this service."""
