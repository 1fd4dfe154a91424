# SPDX-License-Identifier: Apache-2.0
"""The groups of a device profile for what an accelerator offers, for ``--from-device``."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cyborg_cli import exception

_UNUSUAL: Final = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True)
class Offer:
    """What the providers of an accelerator offer that have one resource class and one product.

    ``largest`` is the number of units of the largest provider. Guests get ``group_size`` of them at
    a time.
    """

    resource_class: str
    product_traits: tuple[str, ...]
    group_size: int
    largest: int

    def group(self, amount: int) -> dict[str, str]:
        """Return a group of a profile that requests so many units."""
        required = {f"trait:{trait}": "required" for trait in self.product_traits}
        return {f"resources:{self.resource_class}": str(amount), **required}

    def groups(self, count: int | None) -> list[dict[str, str]]:
        """Return groups for so many units, None: as few as a guest can get.

        A group gets its units from one provider, so there is one group if a provider has enough of
        them, and otherwise as few groups as possible, of sizes as equal as possible. Raises
        CommandFailed for a count that no group can have.
        """
        size = self.group_size
        steps, rest = divmod(size if count is None else count, size)
        if rest:
            raise exception.CommandFailed(
                reason=f"Units of {self.resource_class} of this accelerator are given out in "
                f"multiples of {size}. Give such a number as --count."
            )
        number = -(-steps // max(1, self.largest // size))
        each, more = divmod(steps, number)
        return [self.group((each + (index < more)) * size) for index in range(number)]


def offer_of(device: Mapping[str, Any]) -> Offer:
    """Return what an accelerator offers; raises CommandFailed unless that is one thing."""
    providers: Sequence[Mapping[str, Any]] | None = device.get("providers")
    if providers is None:
        raise exception.CommandFailed(
            reason="The service does not show the resource providers of the accelerator: it is "
            "older, or policy does not let you see them. Give the groups with --group."
        )
    offers = list(_offers(providers))
    if not offers:
        raise exception.CommandFailed(
            reason="The accelerator has no resource provider. Give the groups with --group."
        )
    if len(offers) > 1:
        groups = (
            ",".join(f"{key}={value}" for key, value in offer.group(offer.group_size).items())
            for offer in offers
        )
        raise exception.CommandFailed(
            reason="The accelerator offers different units. Choose one of these groups in place of "
            "--from-device: " + "; ".join(f"--group {group}" for group in groups)
        )
    return offers[0]


def profile_name(device: Mapping[str, Any], count: int | None) -> str:
    """Return a name for a profile: the model, and the number of units if it is given.

    Raises CommandFailed if the model has no character that a name can have.
    """
    name = _UNUSUAL.sub("-", str(device.get("model") or "").lower()).strip("-")
    if not name:
        raise exception.CommandFailed(
            reason="The accelerator has no model to name the profile after. Give a name."
        )
    return name if count is None else f"{name}-x{count}"


def _offers(providers: Sequence[Mapping[str, Any]]) -> Iterator[Offer]:
    """Yield each offer of the providers once, in order."""
    totals: dict[tuple[str, tuple[str, ...], int], list[int]] = defaultdict(list)
    for provider in providers:
        traits = tuple(provider.get("product_traits") or ())
        key = provider["resource_class"], traits, provider.get("group_size") or 1
        totals[key].append(provider.get("total") or 0)
    for key in sorted(totals):
        yield Offer(*key, max(totals[key]))
