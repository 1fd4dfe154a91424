# SPDX-License-Identifier: Apache-2.0
"""Build of the client: setuptools does it from setup.cfg; the version is that of the service.

The setup.cfg of the service, in the directory above, has the next release. In a checkout pbr counts
the commits, as it does for the service. An sdist has its version in PKG-INFO.
"""

import configparser
import pathlib

import setuptools
from pbr.packaging import get_version

NAME = "openstack-cyborg-cli"
HERE = pathlib.Path(__file__).resolve().parent
SERVICE = HERE.parent


def version():
    """Return the version of the service of this tree; raise SystemExit if there is no such tree."""
    if any((HERE / trace).exists() for trace in ("PKG-INFO", "METADATA")):
        return get_version(NAME)
    setup = configparser.ConfigParser()
    if not setup.read(SERVICE / "setup.cfg", encoding="utf-8"):
        raise SystemExit(
            f"{SERVICE / 'setup.cfg'} is missing. Build the client in the tree of the service."
        )
    release = setup["metadata"]["version"]
    if (SERVICE / ".git").exists():
        return get_version(NAME, release)
    # A plain copy of the tree, such as the output of "git archive".
    return f"{release}.dev0"


setuptools.setup(version=version())
