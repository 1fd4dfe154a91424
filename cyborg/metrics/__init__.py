# SPDX-License-Identifier: Apache-2.0
"""What the processes of this service count and show in the form of Prometheus."""
