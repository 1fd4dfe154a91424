# SPDX-License-Identifier: Apache-2.0
"""The REST API: authenticate, authorise, check shapes, read; every change is the conductor's."""
