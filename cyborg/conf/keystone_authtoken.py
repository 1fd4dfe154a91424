# SPDX-License-Identifier: Apache-2.0
"""Defaults of [keystone_authtoken] that differ from keystonemiddleware's own.

Kept out of ``cyborg.conf`` itself because only the API needs the middleware, whose import is the
most expensive of them all. Whoever builds the middleware calls ``set_defaults`` first.
"""

import keystonemiddleware.auth_token
from oslo_config import cfg

GROUP = "keystone_authtoken"


def set_defaults() -> None:
    """Demand a service role of every service token, unless the operator says otherwise.

    A bind rests on the service token; a token of any project member must not pass for one. Also
    the entry point ``oslo.config.opts.defaults``, so that sample files tell the truth.
    """
    cfg.set_defaults(keystonemiddleware.auth_token._opts._OPTS, service_token_roles_required=True)
