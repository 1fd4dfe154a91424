# SPDX-License-Identifier: Apache-2.0
"""Cyborg, the OpenStack service for the life cycle of hardware accelerators."""

import warnings

from oslo_service import backend

# futurist imports eventlet wherever it is installed; what eventlet then has to say is no operator's
# business, because nothing here runs on it.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
# oslo.messaging settles for eventlet at its import unless threads were chosen before. Every module
# of ours that imports it is imported after this one, whichever program or server begins.
if backend.get_backend_type() is None:
    backend.init_backend(backend.BackendType.THREADING)
