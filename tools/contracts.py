# SPDX-License-Identifier: Apache-2.0
"""Contracts of import-linter that it does not have itself; pyproject.toml names them."""

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from importlinter import Contract, ContractCheck, output


class AcyclicModules(Contract):
    """No module imports itself through others.

    Imports inside functions and those for annotations only (TYPE_CHECKING) count like all others.
    """

    type_name = "acyclic_modules"

    def check(self, graph, verbose):
        """Return the result with one circle, if there is any."""
        modules = sorted(graph.modules)
        try:
            TopologicalSorter(
                {module: graph.find_modules_directly_imported_by(module) for module in modules}
            ).prepare()
        except CycleError as error:
            # The list begins with an imported module; each module is imported by the next.
            return ContractCheck(kept=False, metadata={"circle": error.args[1][::-1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check):
        """Print the circle, with one line for each import."""
        circle = check.metadata["circle"]
        for importer, imported in pairwise(circle):
            output.print_error(f"{importer} imports {imported}")
