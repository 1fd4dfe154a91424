# SPDX-License-Identifier: Apache-2.0
"""Every test of a life begins with an empty database."""

import pytest

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(autouse=True)
def _clean(clean: None) -> None:
    """Applied to every test here."""
