# SPDX-License-Identifier: Apache-2.0
"""Entry points for external WSGI servers."""
