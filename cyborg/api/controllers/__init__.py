# SPDX-License-Identifier: Apache-2.0
"""The resources of the REST API."""
