# SPDX-License-Identifier: Apache-2.0
"""Crashes at every boundary of every process, and what must hold afterwards."""

import pytest

# Failures show what these modules compare.
_MODULES = ("runs", "scenarios", "cloud")
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))
