# SPDX-License-Identifier: Apache-2.0
"""Break the service under load, fault by fault, and check that nothing was lost or leaked."""
