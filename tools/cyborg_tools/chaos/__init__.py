# SPDX-License-Identifier: Apache-2.0
"""Inject faults into the service under load, and check that nothing is lost or leaked."""
