# SPDX-License-Identifier: Apache-2.0
"""Composition roots: the only place where each program of the service reads its configuration."""

import sys

# futurist imports eventlet where it is installed: 260 modules that no part of the service uses.
sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]
