# SPDX-License-Identifier: Apache-2.0
"""The error that ends a command."""


class CommandFailed(Exception):
    """A command failed; ``reason`` is what the user reads, and tells what to do next.

    ``outcome_unknown`` says that the service may have carried out the request, ``transient`` that
    the same request may succeed later. ``http`` is the status of the answer, if there was one.
    """

    def __init__(
        self,
        *,
        reason: str,
        outcome_unknown: bool = False,
        transient: bool = False,
        http: int | None = None,
    ) -> None:
        self.http = http
        self.outcome_unknown = outcome_unknown
        self.transient = transient
        super().__init__(reason)
