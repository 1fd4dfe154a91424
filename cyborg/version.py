# SPDX-License-Identifier: Apache-2.0
"""Which release of Cyborg this is, as its package metadata says."""

import importlib.metadata

DISTRIBUTION = "openstack-cyborg"


def installed() -> str:
    """Return the version of the installed distribution, for example ``18.0.0.dev12``.

    Raises ``importlib.metadata.PackageNotFoundError`` when the code runs without having been
    installed (an editable installation counts as installed).
    """
    return importlib.metadata.version(DISTRIBUTION)
