# SPDX-License-Identifier: Apache-2.0
"""What the templates need to show objects of the service."""

from typing import Any

from django import template

from cyborg_dashboard import shown

register = template.Library()

register.filter("word", shown.word)
register.filter("moment", shown.moment)
register.filter("device_labels", shown.labels)
register.filter("device_units", shown.units)
register.filter("profile_groups", shown.groups)
register.simple_tag(shown.server_link, name="server_link")


@register.filter
def words(name: str) -> str:
    """Return a name of the service as words."""
    return name.replace("_", " ")


@register.filter
def yes_or_no(answer: bool) -> Any:
    """Show a fact with an icon, so that the eye finds what is not so."""
    return shown.fact(is_so=answer)


@register.filter
def percent(part: Any, whole: Any) -> str:
    """Return a part in percent of the whole, for a width; without a language's comma."""
    return f"{100 * part / whole:.2f}" if whole else "0"


@register.inclusion_tag("accelerators/_bars.html")
def bar(whole: int, **amounts: int) -> dict[str, Any]:
    """Draw a bar with a part for each amount; the cells beside it have the numbers."""
    parts, start = [], 0
    for kind, amount in amounts.items():
        parts.append({"kind": kind, "from": start, "amount": min(amount, whole - start)})
        start += min(amount, whole - start)
    return {"whole": whole, "parts": parts}
