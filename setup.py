# SPDX-License-Identifier: Apache-2.0
"""Build of the distribution: pbr does it from setup.cfg; a version is set where pbr finds none.

pbr takes the version from git or from package metadata. In a plain copy of the tree, such as the
output of ``git archive``, there is neither, and the next release named in setup.cfg stands in.
"""

import configparser
import os
import pathlib

import setuptools

HERE = pathlib.Path(__file__).resolve().parent

if not any((HERE / trace).exists() for trace in (".git", "PKG-INFO", "METADATA")):
    known = configparser.ConfigParser()
    known.read(HERE / "setup.cfg", encoding="utf-8")
    os.environ.setdefault("PBR_VERSION", known["metadata"]["version"] + ".dev0")
    # The copy may lie inside another project's checkout, whose files are none of ours.
    os.environ.setdefault("SKIP_GIT_SDIST", "1")

setuptools.setup(pbr=True)
