# SPDX-License-Identifier: Apache-2.0
"""WSGI filters in front of the API."""
