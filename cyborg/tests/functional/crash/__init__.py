# SPDX-License-Identifier: Apache-2.0
"""Deaths at every boundary of every process, and what must hold afterwards."""

import pytest

# What they assert is part of what a failure tells.
pytest.register_assert_rewrite(*(f"{__name__}.{one}" for one in ("lives", "scenarios", "stage")))
