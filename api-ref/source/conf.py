# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the REST API's reference."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "doc" / "source" / "_ext"))

extensions = ["openstackdocstheme", "os_api_ref", "examples", "openapi_file"]

project = "Accelerator API Reference"
copyright = "Cyborg contributors"
root_doc = "index"
pygments_style = "native"

html_theme = "openstackdocs"
html_theme_options = {
    "sidebar_mode": "toc",
    "analytics_tracking_code": "",
    "display_badge": False,
}
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
# The version that is installed; the theme would ask for a distribution named like the repository.
openstackdocs_auto_version = False
version = release = importlib.metadata.version("openstack-cyborg")
