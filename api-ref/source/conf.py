# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the REST API's reference."""

extensions = ["openstackdocstheme", "os_api_ref"]

project = "Accelerator API Reference"
copyright = "Cyborg contributors"
root_doc = "index"
pygments_style = "native"

html_theme = "openstackdocs"
html_theme_options = {"sidebar_mode": "toc"}
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_use_storyboard = False
openstackdocs_auto_name = False
