# SPDX-License-Identifier: Apache-2.0
"""The walk of quickstart against the service of the functional tests."""
