# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from cyborg.model.arq import MOVES, State

extensions = ["openstackdocstheme", "oslo_config.sphinxext", "oslo_policy.sphinxext"]

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


class ArqMoves(Directive):
    """``arq-moves``: the table of moves as the code has it, so that there is no second one."""

    def run(self) -> list[nodes.Node]:
        """Write the table as text, and have it parsed in place."""
        lines = [".. list-table::", "   :header-rows: 1", ""]
        lines += ["   * - An accelerator request may …", "     - from", "     - which makes it"]
        for event, move in MOVES.items():
            sources = ", ".join(state for state in State if state in move.sources)
            lines += [f"   * - {event}", f"     - {sources}", f"     - {move.target}"]
        found = nodes.Element()
        self.state.nested_parse(StringList(lines, source="cyborg.model.arq"), 0, found)
        return found.children


def setup(app: Sphinx) -> None:
    """Tell Sphinx about the directive."""
    app.add_directive("arq-moves", ArqMoves)
