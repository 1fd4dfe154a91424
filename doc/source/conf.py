# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

extensions = [
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "oslo_config.sphinxconfiggen",
    "oslo_policy.sphinxext",
    "oslo_policy.sphinxpolicygen",
    "examples",
    "pictures",
    "tables",
]

# The samples of the configuration pages; what is written is thrown away with the build.
config_generator_config_file = [
    ("../../tools/config/cyborg-config-generator.conf", "_static/cyborg")
]
policy_generator_config_file = [
    ("../../tools/config/cyborg-policy-generator.conf", "_static/cyborg")
]

project = "Cyborg"
copyright = "Cyborg contributors"
root_doc = "index"
exclude_patterns: list[str] = []
pygments_style = "native"

# Blocks that say nothing else are commands.
highlight_language = "shell"

html_theme = "openstackdocs"
html_static_path = ["_css"]
html_css_files = ["cyborg.css"]
# Search in the side bar; a page asks nothing of other sites.
html_theme_options = {
    "sidebar_search": True,
    "analytics_tracking_code": "",
    "display_badge": False,
}
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_pdf_link = False
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
# The version that is installed; the theme would ask for a distribution named like the repository.
openstackdocs_auto_version = False
version = release = importlib.metadata.version("openstack-cyborg")
