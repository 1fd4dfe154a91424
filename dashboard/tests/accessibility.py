# SPDX-License-Identifier: Apache-2.0
"""What axe-core finds in a page."""

from typing import Any, Final

from cyborg_tools.dashboard.horizon import ENVIRONMENT
from dashboard.tests.browser import Browser

_SCRIPT: Final = ENVIRONMENT / "axe" / "node_modules" / "axe-core" / "axe.min.js"
#: The panels' part of a page, and rules about the parts that are Horizon's own: its frame has no
#: language, and its tables have a head of two rows.
_PLACE: Final = "#content_body .accelerators"
_SERIOUS: Final = ("serious", "critical")


def violations(browser: Browser) -> list[str]:
    """Return the serious and critical violations in the panels' part of the page."""
    browser.script(_SCRIPT.read_text())
    result: dict[str, Any] = browser.driver.execute_async_script(
        "const [place, done] = arguments; axe.run(place, {resultTypes: ['violations']}).then(done)",
        _PLACE,
    )
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:300]} {node['failureSummary'][:300]}"
        for rule in result["violations"]
        if rule["impact"] in _SERIOUS
        for node in rule["nodes"]
    ]
