# SPDX-License-Identifier: Apache-2.0
"""The wall around vendors' drivers: whatever one throws becomes DriverFailed."""

import logging
from collections.abc import Callable
from typing import TypeVar

from cyborg import exception

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def _nobody(driver: str, verb: str) -> None:
    """Count nothing."""


class DriverCalls:
    """Calls into drivers; ``failed`` is told the driver and the verb of each that fails."""

    def __init__(self, failed: Callable[[str, str], None] = _nobody) -> None:
        self._failed = failed

    def __call__(self, driver: str, verb: str, call: Callable[[], T]) -> T:
        """Call into a driver; raises DriverFailed or DriverCannot, never anything else."""
        try:
            return self._translated(driver, verb, call)
        except exception.DriverFailed:
            self._failed(driver, verb)
            raise

    def _translated(self, driver: str, verb: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (exception.DriverFailed, exception.DriverCannot):
            raise
        except exception.CyborgError as error:
            raise exception.DriverFailed(driver=driver, verb=verb, reason=str(error)) from error
        except Exception as error:
            # Vendors' code may throw anything; nothing of it may stop the agent or another driver.
            LOG.exception("Driver %s failed in %s", driver, verb)
            reason = f"{type(error).__name__}: {error}"
            raise exception.DriverFailed(driver=driver, verb=verb, reason=reason) from error


#: One that nobody counts with.
guarded = DriverCalls()
