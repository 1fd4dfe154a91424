# SPDX-License-Identifier: Apache-2.0
"""Settings for the directory openstack_dashboard/local/local_settings.d of Horizon.

Horizon checks the rules of the service with the defaults in ``cyborg_default_policies.yaml``, and
with what ``cyborg_policy.yaml`` says in their place. A deployment that changes the rules of the
service names its own file here.
"""

import os

import cyborg_dashboard

_conf = os.path.join(os.path.dirname(cyborg_dashboard.__file__), "conf")
POLICY_FILES["accelerator"] = os.path.join(_conf, "cyborg_policy.yaml")  # noqa: F821
DEFAULT_POLICY_FILES["accelerator"] = os.path.join(  # noqa: F821
    _conf, "cyborg_default_policies.yaml"
)
