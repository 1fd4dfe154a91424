# SPDX-License-Identifier: Apache-2.0
"""The error that ends a command."""


class CommandFailed(Exception):
    """A command failed; ``reason`` is what the user reads, and tells what to do next.

    ``outcome_unknown`` says that the service may have carried out the request, ``transient`` that
    the same request may succeed later. ``status`` is that of HTTP, None without an answer.
    """

    def __init__(
        self,
        *,
        reason: str,
        outcome_unknown: bool = False,
        transient: bool = False,
        status: int | None = None,
    ) -> None:
        self.outcome_unknown = outcome_unknown
        self.transient = transient
        self.status = status
        super().__init__(reason)
