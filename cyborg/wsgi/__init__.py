# SPDX-License-Identifier: Apache-2.0
"""The doors for external WSGI servers."""
