# SPDX-License-Identifier: Apache-2.0
"""Defaults of [keystone_authtoken] that differ from keystonemiddleware's own.

``cyborg.conf`` does not import this module: only the API needs the middleware, and its import takes
longer than any other. Code that builds the middleware calls ``set_defaults`` first.
"""

import keystonemiddleware.auth_token
from oslo_config import cfg

GROUP = "keystone_authtoken"


def set_defaults() -> None:
    """Require a service role in every service token, unless the operator changes the option.

    A bind is authorized by its service token, so the token of an ordinary project member must not
    be accepted as one. The entry point ``oslo.config.opts.defaults`` calls this function too, so
    that sample files show the right default.
    """
    cfg.set_defaults(keystonemiddleware.auth_token._opts._OPTS, service_token_roles_required=True)
