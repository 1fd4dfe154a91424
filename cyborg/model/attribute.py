# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables: facts that drivers discovered, and labels that operators add."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar


class Origin(StrEnum):
    """Who brought an attribute or a device; reports replace only what was discovered."""

    DISCOVERED = "discovered"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Attribute:
    """One key and value of a deployable, as the API shows it."""

    KIND: ClassVar[str] = "Attribute"

    uuid: str
    deployable_id: int
    key: str
    value: str
    created_at: datetime | None
    updated_at: datetime | None = None
