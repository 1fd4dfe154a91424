# SPDX-License-Identifier: Apache-2.0
"""What the accelerators of the cloud do, at a glance."""
