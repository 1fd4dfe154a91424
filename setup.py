# SPDX-License-Identifier: Apache-2.0
"""Build of the distribution: pbr does it from setup.cfg; a version is set where pbr finds none.

pbr takes the version from git or from package metadata. In a plain copy of the tree, such as the
output of ``git archive``, there is neither, and the next release named in setup.cfg stands in.
"""

import configparser
import os
import pathlib

import setuptools
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent

if not any((HERE / trace).exists() for trace in (".git", "PKG-INFO", "METADATA")):
    known = configparser.ConfigParser()
    known.read(HERE / "setup.cfg", encoding="utf-8")
    os.environ.setdefault("PBR_VERSION", known["metadata"]["version"] + ".dev0")
    # The copy may lie inside another project's checkout, whose files are none of ours.
    os.environ.setdefault("SKIP_GIT_SDIST", "1")


class ServiceOnly(build_py):
    """A wheel has the service and the kit for authors of drivers, without the tests."""

    def finalize_options(self):
        """Leave the tests out of the packages, and out of the data of ``cyborg``."""
        self.distribution.exclude_package_data = {"cyborg": ["tests/*"]}
        super().finalize_options()
        self.packages = [name for name in self.packages if "tests" not in name.split(".")]


class Distribution(setuptools.Distribution):
    """pbr replaces the commands that ``setup`` is given, so the distribution names this one."""

    def get_command_class(self, command):
        """Return the class of a command."""
        return ServiceOnly if command == "build_py" else super().get_command_class(command)


setuptools.setup(pbr=True, distclass=Distribution)
