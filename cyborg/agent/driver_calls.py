# SPDX-License-Identifier: Apache-2.0
"""Calls into vendors' drivers: every error of a driver becomes DriverFailed or DriverCannot."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from cyborg import exception

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def _ignore(driver: str, verb: str) -> None:
    """Do not count a failure."""


class DriverCalls:
    """Call drivers; ``on_failure`` gets the driver and the verb of each call that failed."""

    def __init__(self, on_failure: Callable[[str, str], None] = _ignore) -> None:
        self._on_failure = on_failure

    def __call__(self, driver: str, verb: str, call: Callable[[], T]) -> T:
        """Return the result of ``call``; raise DriverFailed or DriverCannot and nothing else."""
        try:
            return call()
        except exception.DriverCannot:
            raise
        except exception.DriverFailed:
            self._on_failure(driver, verb)
            raise
        except exception.CyborgError as error:
            self._on_failure(driver, verb)
            raise exception.DriverFailed(driver=driver, verb=verb, reason=str(error)) from error
        except Exception as error:
            # Vendors' code may raise anything. It must not stop the agent or another driver.
            LOG.exception("Driver %s failed in %s", driver, verb)
            self._on_failure(driver, verb)
            reason = f"{type(error).__name__}: {error}"
            raise exception.DriverFailed(driver=driver, verb=verb, reason=reason) from error


#: Driver calls whose failures are not counted.
UNCOUNTED: Final = DriverCalls()
