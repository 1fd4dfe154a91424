# SPDX-License-Identifier: Apache-2.0
"""What is mutated, the tests that must notice it, and the mutants that no test can notice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Subject:
    """Files of the service, and the tests (files or directories) that must notice their mutants."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_CONDUCTOR: Final = "cyborg/conductor"
_UNIT: Final = "cyborg/tests/unit"
_LIFE: Final = "cyborg/tests/functional/life"
_RULES: Final = "cyborg/tests/functional/rules"

SUBJECTS: Final[Mapping[str, Subject]] = {
    "bind": Subject(
        (f"{_CONDUCTOR}/arqs/bind.py", "cyborg/db/arqs.py"),
        (
            f"{_UNIT}/conductor/test_bind.py",
            f"{_UNIT}/conductor/test_claims.py",
            f"{_RULES}/test_binds.py",
            f"{_RULES}/test_first_bind.py",
            f"{_LIFE}/test_bindings.py",
        ),
    ),
    "ownership": Subject(("cyborg/drivers/ownership.py",), (f"{_UNIT}/drivers/test_ownership.py",)),
}

#: The reason why no test can notice a mutant, by its name.
EQUIVALENT: Final[Mapping[str, str]] = {}
