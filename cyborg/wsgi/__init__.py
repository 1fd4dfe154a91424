# SPDX-License-Identifier: Apache-2.0
"""Entry points for external WSGI servers."""

import sys

# As in the programs (cyborg.cmd): no part of the service uses eventlet.
sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]
