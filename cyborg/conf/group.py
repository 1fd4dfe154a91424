# SPDX-License-Identifier: Apache-2.0
"""Groups of options as typed classes: one declaration for oslo.config and for the code that reads.

A class per group declares each option as a field with its type, default and help. oslo.config, its
generator and its validator get the options from ``options``; a composition root gets the values
from ``read``. Tests construct the class with the values that they need.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeVar

from oslo_config import cfg

T = TypeVar("T")
_OPTION: Final = "option"


def option(kind: type[cfg.Opt], *, default: T, **how: Any) -> T:
    """Declare a field of a group; a ``default`` of None means that the option has no value.

    ``how`` are the other arguments of ``kind``, ``help`` among them.
    """
    return computed_option(kind, default=lambda: copy.copy(default), **how)


def computed_option(kind: type[cfg.Opt], *, default: Callable[[], T], **how: Any) -> T:
    """Declare a field as ``option`` does, with a default that is computed at each registration."""

    def declare(name: str) -> cfg.Opt:
        return kind(name, default=default(), **how)

    # The annotation of the field, which mypy compares with T, is the type of its values.
    field: T = dataclasses.field(default_factory=default, metadata={_OPTION: declare})
    return field


class OptionGroup:
    """A group; its classes are frozen dataclasses whose fields are made by ``option``."""

    GROUP: ClassVar[str]

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return new option objects in the order of the fields."""
        return [field.metadata[_OPTION](field.name) for field in _fields(cls)]

    @classmethod
    def read(cls, conf: cfg.ConfigOpts) -> Self:
        """Return the values of the group; raises the errors of oslo.config."""
        values = conf if cls.GROUP == "DEFAULT" else conf[cls.GROUP]
        return cls(**{field.name: values[field.name] for field in _fields(cls)})


def _fields(group: type[OptionGroup]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(group)  # type: ignore[arg-type]
