# SPDX-License-Identifier: Apache-2.0
"""What the API promises about stored objects, on the database servers: the tests of unit/api.

Names of tests carry the lines of the check list of what drop-in means.
"""

from cyborg.tests.unit.api import (
    test_arqs,
    test_binding,
    test_device_profiles,
    test_hardware,
    test_lists,
    test_reasons,
)

_MODULES = (test_arqs, test_binding, test_device_profiles, test_hardware, test_lists, test_reasons)
# pytest collects what it finds here by name; fixtures of these modules come along.
for _module in _MODULES:
    globals().update(
        {
            name: member
            for name, member in vars(_module).items()
            if name.startswith("test_") or name in ("bounded", "crowd")
        }
    )
