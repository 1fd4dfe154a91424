# SPDX-License-Identifier: Apache-2.0
"""Cyborg, the OpenStack service for the life cycle of hardware accelerators."""

import warnings

from oslo_service import backend

# futurist imports eventlet where it is installed, and eventlet then warns of its deprecation. The
# programs keep it out (cyborg.cmd); elsewhere the warning is of no use, because no part of this
# service runs on eventlet.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
# oslo.messaging selects eventlet at its import unless threads are the default. Every module of this
# package that imports it is imported after this one, in each program and server. The hook imports
# nothing, so that the commands of the client and the pytest plug-in start without the bus.
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
