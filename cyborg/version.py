# SPDX-License-Identifier: Apache-2.0
"""The installed release of Cyborg, from the metadata of its package."""

import importlib.metadata

DISTRIBUTION = "openstack-cyborg"


def installed() -> str:
    """Return the version of the installed distribution, for example ``18.0.0.dev12``.

    Raises ``importlib.metadata.PackageNotFoundError`` when the package is not installed (an
    editable installation counts as installed).
    """
    return importlib.metadata.version(DISTRIBUTION)
