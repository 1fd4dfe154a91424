# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

extensions = ["openstackdocstheme"]

project = "Cyborg"
copyright = "Cyborg contributors"
root_doc = "index"
exclude_patterns: list[str] = []
pygments_style = "native"

html_theme = "openstackdocs"
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_pdf_link = False
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
