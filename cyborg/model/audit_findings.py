# SPDX-License-Identifier: Apache-2.0
"""The findings of an audit: one table of kinds with severity, remedy and repair.

The checks, the reconciler, ``cyborg-audit`` and the documents all use this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType

_HOUR = 3_600_000


class Severity(IntEnum):
    """The severity of a finding; the numbers are the exit statuses of ``cyborg-audit``."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class Fix(StrEnum):
    """The repairs that need no decision of an operator."""

    RELEASE_HANDLE = "release-handle"
    DROP_HANDLE = "drop-handle"
    FAIL_BIND = "fail-bind"
    DELETE_ARQS = "delete-arqs-of-instance"
    DELETE_ARQ = "delete-arq"
    REPUBLISH = "republish"
    SET_ASIDE = "set-units-aside"


class Invariant(StrEnum):
    """The invariant that a finding violates, as the audit shows it."""

    #: One unit, one holder, and never more units on offer than there are.
    ONE_HOLDER = "one-holder"
    #: Every request ends.
    PROGRESS = "requests-end"
    #: Nova is notified of the end of a bind.
    NOTIFIED = "nova-notified"
    #: Database, Placement and host agree.
    AGREEMENT = "records-agree"
    #: Processes, drivers and devices work; one that fails stops no other.
    PARTS = "parts-work"


class Kind(StrEnum):
    """The kinds of findings."""

    STRANDED_RELEASE = "stranded-release"
    UNSAFE_HANDLE = "unsafe-handle"
    NEEDLESS_HOLD = "needless-hold"
    EMPTY_BIND = "empty-bind"
    WRONG_PROVIDER = "wrong-provider"
    VANISHED_INSTANCE = "vanished-instance"
    EXCESS_INVENTORY = "excess-inventory"
    UNALLOCATED = "unallocated"
    UNKNOWN_HOLDER = "unknown-holder"
    FOREIGN_ALLOCATION = "foreign-allocation"
    SUSPECT_HANDLE = "suspect-handle"
    UNATTACHED_BIND = "unattached-bind"
    ORPHAN_PROVIDER = "orphan-provider"
    FORGOTTEN_BIND = "forgotten-bind"
    OVERDUE_BIND = "overdue-bind"
    AGED_ARQ = "aged-arq"
    OBSOLETE_STATE = "obsolete-state"
    NO_CONDUCTOR = "no-conductor"
    NOVA_NOT_NOTIFIED = "nova-not-notified"
    NO_COMPUTE = "no-compute"
    MISSING_PROVIDER = "missing-provider"
    MISPLACED_PROVIDER = "misplaced-provider"
    MISNAMED_PROVIDER = "misnamed-provider"
    REFUSED_PROVIDER = "refused-provider"
    DRIFT = "drift"
    PUBLISHING = "publishing"
    STALE_ALLOCATION = "stale-allocation"
    UNDATED_ALLOCATION = "undated-allocation"
    UNPREPARED = "unprepared"
    LEFTOVER = "leftover"
    SILENT_AGENT = "silent-agent"
    NOT_RECEIVING = "not-receiving"
    CANNOT_PUBLISH = "cannot-publish"
    UNCHECKED_HOST = "unchecked-host"
    STUCK_WORK = "stuck-work"
    FAILED_DRIVER = "failed-driver"
    LOST_DEVICE = "lost-device"
    QUARANTINED_HANDLE = "quarantined-handle"


@dataclass(frozen=True)
class Rule:
    """The invariant that a kind of finding violates, and what to do about it."""

    invariant: Invariant
    severity: Severity
    remedy: str
    fix: Fix | None = None


_FIXED = "cyborg-audit --fix, or the conductor's next pass, "
_WARN, _ERROR, _INFO = Severity.WARNING, Severity.ERROR, Severity.INFO

#: ``{key}`` is what a finding is about, ``{host}`` its host.
RULES: Mapping[Kind, Rule] = MappingProxyType(
    {
        # One unit, one holder, and never more units on offer than there are.
        Kind.STRANDED_RELEASE: Rule(
            Invariant.ONE_HOLDER, _ERROR, _FIXED + "has the release done again.", Fix.RELEASE_HANDLE
        ),
        Kind.UNSAFE_HANDLE: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            "Stop the guest, then delete or rebuild its server: it may lose the unit.",
        ),
        Kind.NEEDLESS_HOLD: Rule(
            Invariant.ONE_HOLDER, _ERROR, _FIXED + "takes it away.", Fix.DROP_HANDLE
        ),
        Kind.UNKNOWN_HOLDER: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            _FIXED + "keeps the units that may be theirs from other servers. Delete or rebuild the "
            "servers.",
            Fix.SET_ASIDE,
        ),
        Kind.FOREIGN_ALLOCATION: Rule(
            Invariant.ONE_HOLDER,
            _WARN,
            "Delete server {key}, and add trait:OWNER_CYBORG=forbidden to its flavor, or let the "
            "flavor request a device profile.",
        ),
        Kind.SUSPECT_HANDLE: Rule(
            Invariant.ONE_HOLDER,
            _WARN,
            "When no process of {host} uses the unit: clean it, then cyborg accelerator-update "
            "--free-unit.",
        ),
        Kind.EMPTY_BIND: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            "Delete or shelve and unshelve the server: it cannot start again as is.",
        ),
        Kind.WRONG_PROVIDER: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            "Delete or rebuild the server: Placement counts the unit elsewhere.",
        ),
        Kind.VANISHED_INSTANCE: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            _FIXED + "deletes them and frees their units.",
            Fix.DELETE_ARQS,
        ),
        Kind.EXCESS_INVENTORY: Rule(
            Invariant.ONE_HOLDER, _ERROR, _FIXED + "has the agent publish it again.", Fix.REPUBLISH
        ),
        Kind.UNALLOCATED: Rule(
            Invariant.ONE_HOLDER,
            _WARN,
            "If the server is shelved, unshelve and shelve it again; else give its allocation "
            "back: openstack resource provider allocation set --amend {key} …",
        ),
        Kind.ORPHAN_PROVIDER: Rule(
            Invariant.ONE_HOLDER,
            _ERROR,
            "If nothing is allocated there: openstack resource provider delete {key}.",
        ),
        # Every request ends.
        Kind.FORGOTTEN_BIND: Rule(
            Invariant.PROGRESS, _ERROR, _FIXED + "fails the bind and tells Nova.", Fix.FAIL_BIND
        ),
        Kind.OVERDUE_BIND: Rule(
            Invariant.PROGRESS, _WARN, "Look into the conductors' logs for this ARQ."
        ),
        Kind.AGED_ARQ: Rule(Invariant.PROGRESS, _WARN, _FIXED + "deletes it.", Fix.DELETE_ARQ),
        Kind.OBSOLETE_STATE: Rule(
            Invariant.PROGRESS, _WARN, "Delete the server; or, if it has none, the request itself."
        ),
        Kind.NO_CONDUCTOR: Rule(Invariant.PROGRESS, _ERROR, "Start a cyborg-conductor."),
        # Nova is notified of the end of a bind.
        Kind.NOVA_NOT_NOTIFIED: Rule(
            Invariant.NOTIFIED, _WARN, "Look why Nova's API cannot be reached; see [nova]."
        ),
        # Database, Placement and host agree.
        Kind.NO_COMPUTE: Rule(
            Invariant.AGREEMENT,
            _WARN,
            "Start nova-compute on {host}, or set [agent] resource_provider_name to its name.",
        ),
        Kind.MISSING_PROVIDER: Rule(
            Invariant.AGREEMENT, _WARN, _FIXED + "has the agent publish it again.", Fix.REPUBLISH
        ),
        Kind.MISPLACED_PROVIDER: Rule(
            Invariant.AGREEMENT,
            _WARN,
            "If nothing is allocated there: openstack resource provider delete {key}; the agent "
            "makes it where it belongs.",
        ),
        Kind.MISNAMED_PROVIDER: Rule(
            Invariant.AGREEMENT, _ERROR, "Put the right rp_uuid back into deployables."
        ),
        Kind.REFUSED_PROVIDER: Rule(
            Invariant.AGREEMENT,
            _WARN,
            "Remove what stands against it; the agent tries again by itself.",
        ),
        Kind.DRIFT: Rule(
            Invariant.AGREEMENT,
            _WARN,
            _FIXED + "has the agent publish it again; where there are allocations of what is not "
            "ours, delete those first.",
            Fix.REPUBLISH,
        ),
        Kind.PUBLISHING: Rule(Invariant.AGREEMENT, _INFO, "Nothing: the agent has just been told."),
        Kind.STALE_ALLOCATION: Rule(
            Invariant.AGREEMENT,
            _WARN,
            "If nobody but Nova uses these providers: "
            "openstack resource provider allocation delete {key}.",
        ),
        Kind.UNDATED_ALLOCATION: Rule(
            Invariant.AGREEMENT,
            _INFO,
            "Look again in an hour: it may be that of a server just deleted.",
        ),
        Kind.UNPREPARED: Rule(
            Invariant.AGREEMENT, _ERROR, "Reboot the server, and see the agent's log."
        ),
        Kind.UNATTACHED_BIND: Rule(
            Invariant.AGREEMENT,
            _ERROR,
            "Reboot the server hard: openstack server reboot --hard {key}. With [conductor] "
            "repair_unattached = reboot, the conductors do so.",
        ),
        Kind.LEFTOVER: Rule(
            Invariant.AGREEMENT, _WARN, "See the agent's log: the host keeps what nobody holds."
        ),
        # Processes, drivers and devices work; one that fails stops no other.
        Kind.SILENT_AGENT: Rule(Invariant.PARTS, _WARN, "Start cyborg-agent on {host}."),
        Kind.NOT_RECEIVING: Rule(
            Invariant.PARTS,
            _WARN,
            "Repair the connection to the message bus: see [DEFAULT] transport_url on {host}.",
        ),
        Kind.CANNOT_PUBLISH: Rule(
            Invariant.PARTS, _WARN, "Correct the account and the endpoint of [placement] on {host}."
        ),
        Kind.UNCHECKED_HOST: Rule(
            Invariant.PARTS, _WARN, "Run cyborg-audit --after-restore --host {host}."
        ),
        Kind.STUCK_WORK: Rule(Invariant.PARTS, _WARN, "See the agent's log on {host}."),
        Kind.FAILED_DRIVER: Rule(Invariant.PARTS, _WARN, "See the agent's log on {host}."),
        Kind.QUARANTINED_HANDLE: Rule(
            Invariant.PARTS,
            _WARN,
            "Remove what the agent's log on {host} complains of: it is released and given out "
            "again by itself after that.",
        ),
        Kind.LOST_DEVICE: Rule(
            Invariant.PARTS, _WARN, "Put it back in, or take it out of service for good."
        ),
    }
)


@dataclass(frozen=True)
class Finding:
    """One violation of an invariant.

    ``noun`` and ``key`` name the object, ``cause`` is what was seen, as a sentence. ``fixable``
    False: it cannot be repaired now, although its kind can be. ``advice`` replaces the remedy of
    its kind if the likely cause is known.
    """

    kind: Kind
    noun: str
    key: str
    cause: str
    host: str | None = None
    fixable: bool = True
    advice: str = ""

    @property
    def identity(self) -> tuple[Kind, str, str]:
        """Return a key that is equal for the same violation in two audits."""
        return self.kind, self.noun, self.key

    @property
    def invariant(self) -> Invariant:
        return RULES[self.kind].invariant

    @property
    def severity(self) -> Severity:
        return RULES[self.kind].severity

    @property
    def remedy(self) -> str:
        """Return what to do about it, as a sentence."""
        if self.advice:
            return self.advice
        return RULES[self.kind].remedy.format(key=self.key, host=self.host or "its host")

    @property
    def fix(self) -> Fix | None:
        """Return the repair that ``--fix`` makes; None if an operator must decide."""
        return RULES[self.kind].fix if self.fixable else None


@dataclass(frozen=True)
class Ages:
    """The ages from which the audit reports something as late; all in milliseconds.

    ``settle`` is the time that Placement may lag behind the database (two report intervals).
    ``agent_silence`` and ``conductor_silence`` are the times without a heartbeat after which such a
    process counts as down. ``work`` is the time that work may take beyond its deadline, ``notify``
    the time for which Nova is notified (it waits no longer), ``stuck`` the time that a host may
    take to release or program a unit. ``unbound`` is the time that an ARQ may wait to be bound,
    ``allocation`` the time that an allocation may be without an ARQ, ``lost`` the time that a
    device may be lost.
    """

    settle: int = 120_000
    agent_silence: int = 30_000
    conductor_silence: int = 10_000
    work: int = 60_000
    notify: int = 300_000
    stuck: int = _HOUR
    unbound: int = 24 * _HOUR
    allocation: int = _HOUR
    lost: int = 7 * 24 * _HOUR
