# SPDX-License-Identifier: Apache-2.0
"""Why a process receives no requests over the message bus."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """The reason of a failure that lasts, and when it began.

    ``reason`` is a clause without a full stop that names the broker and the broker's own words,
    and never a password. ``since`` is the time of the first failure on ``time.monotonic()``.
    ``refused`` is True when a broker answers and refuses (login, permission, virtual host,
    certificate), and False when no broker answers.
    """

    reason: str
    since: float
    refused: bool = False
