# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "doc" / "source" / "_ext"))

extensions = ["openstackdocstheme", "reno.sphinxext", "examples"]

project = "Cyborg Release Notes"
copyright = "Cyborg contributors"
root_doc = "index"
pygments_style = "native"

html_theme = "openstackdocs"
html_theme_options = {"analytics_tracking_code": "", "display_badge": False}
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
# Use the installed version; the theme would look for a distribution named like the repository.
openstackdocs_auto_version = False
version = release = importlib.metadata.version("openstack-cyborg")
