# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

extensions = ["openstackdocstheme", "reno.sphinxext"]

project = "Cyborg Release Notes"
copyright = "Cyborg contributors"
root_doc = "index"
pygments_style = "native"

html_theme = "openstackdocs"
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
