# SPDX-License-Identifier: Apache-2.0
"""How cells of tables show what the service answers.

What comes from the service is never marked as safe: Django escapes it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

#: The class of Bootstrap and the icon of each word; other words are shown without.
_GOOD = ("success", "fa-check-circle")
_BUSY = ("info", "fa-refresh")
_CARE = ("warning", "fa-exclamation-triangle")
_BAD = ("danger", "fa-times-circle")
_IDLE = ("default", "fa-pause-circle")
_WORDS = {
    **dict.fromkeys(("ok", "enabled", "up", "READY", "succeeded", "Bound", "now"), _GOOD),
    **dict.fromkeys(
        ("installing", "running", "draining", "BindStarted", "Initial", "Deleting"), _BUSY
    ),
    **dict.fromkeys(
        ("degraded", "drain", "probation", "parked", "maintaining", "when free", "disabled"), _CARE
    ),
    **dict.fromkeys(
        ("dead", "failed", "lost", "down", "FAILED", "BindFailed", "UnbindFailed", "never"), _BAD
    ),
    **dict.fromkeys(("inactive", "drained", "ignored", "Unbound", "STOPPED", "INSTALLED"), _IDLE),
}


def word(value: str | None) -> Any:
    """Show a word of the service with an icon and a colour."""
    if value is None:
        return "-"
    return _marked(value, *_WORDS.get(value, ("default", "fa-circle-o")))


def fact(*, is_so: bool) -> Any:
    """Show whether something is so."""
    return _marked(_("yes"), *_GOOD) if is_so else _marked(_("no"), *_CARE)


def _marked(text: Any, kind: str, icon: str) -> Any:
    return format_html(
        '<span class="accelerator-word accelerator-word-{}">'
        '<span class="fa {}" aria-hidden="true"></span> {}</span>',
        kind,
        icon,
        text,
    )


def worded(name: str) -> Any:
    """Return what shows the word of a member."""
    return lambda datum: word(datum.get(name))


def moment(value: str | None) -> str:
    """Show a time of the service in the time zone of the user, to the second."""
    parsed = parse_datetime(value) if value else None
    return date_format(timezone.localtime(parsed), "Y-m-d H:i:s T") if parsed else "-"


def moment_of(name: str) -> Any:
    """Return what shows the time of a member."""
    return lambda datum: moment(datum.get(name))


def labels(device: Mapping[str, Any]) -> Any:
    """Show the labels of a device."""
    pairs = sorted((device.get("labels") or {}).items())
    return format_html_join(
        " ", '<span class="accelerator-label">{}={}</span>', ((name, text) for name, text in pairs)
    )


def units(device: Mapping[str, Any]) -> Any:
    """Show how many units of a device are used, free and out of service."""
    amounts = device.get("units")
    if not amounts:
        return "-"
    words = [_("%d used") % amounts["used"], _("%d free") % amounts["free"]]
    if amounts["out_of_service"]:
        reasons = ", ".join(f"{count} {name}" for name, count in amounts["reasons"].items())
        words.append(_("%d out of service") % amounts["out_of_service"])
        if reasons:
            words[-1] = f"{words[-1]} ({reasons})"
    return ", ".join(str(text) for text in words)


def units_in_short(device: Mapping[str, Any]) -> Any:
    """Show how many units of a device are used, and why others cannot be."""
    amounts = device.get("units")
    if not amounts:
        return "-"
    reasons = [f"{count} {name}" for name, count in amounts["reasons"].items()]
    used = _("%(used)d of %(total)d used") % {"used": amounts["used"], "total": amounts["total"]}
    return lines([str(used), *reasons])


def server_link(uuid: str, name: str | None, *, admin: bool = True) -> Any:
    """Show a server, with a link to its page."""
    text = name or uuid
    view = "horizon:admin:instances:detail" if admin else "horizon:project:instances:detail"
    try:
        return format_html('<a href="{}">{}</a>', reverse(view, args=[uuid]), text)
    except NoReverseMatch:
        return text


def servers(device: Mapping[str, Any]) -> Any:
    """Show the servers that have units of a device."""
    return format_html_join(
        ", ",
        "{}",
        (
            (server_link(server["uuid"], server["name"]),)
            for server in device.get("instances") or ()
        ),
    )


def group(members: Mapping[str, Any]) -> str:
    """Show a group of a device profile in one line."""
    return ", ".join(f"{name}={value}" for name, value in members.items())


def groups(profile: Mapping[str, Any]) -> Any:
    """Show the groups of a device profile, one in each line."""
    return lines(group(members) for members in profile.get("groups") or ())


def lines(texts: Iterable[str]) -> Any:
    """Show texts below each other."""
    return format_html_join(
        "", '<div class="accelerator-line">{}</div>', ((text,) for text in texts)
    )
