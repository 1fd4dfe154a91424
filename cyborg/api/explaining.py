# SPDX-License-Identifier: Apache-2.0
"""Explain a device profile: read the units, ask Placement what Nova would ask, walk the steps.

The database is read first. Then Placement is asked with at most ten requests, whatever the number
of hosts. What Placement or Nova do not answer is left out, and a note says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cyborg import exception
from cyborg.api import answers, types
from cyborg.api.answers import Answer, Member
from cyborg.api.controllers.v2.events import EVENT_VIEW
from cyborg.api.expose import Neighbours
from cyborg.clients.nova import Flavor, Servers
from cyborg.clients.placement import Candidates
from cyborg.db import providers
from cyborg.db.engine import Reader
from cyborg.db.events import VisibleEvent
from cyborg.model.capacity import Fleet
from cyborg.model.device_profile import EQUAL_GROUPS, WIDE_TREES, Group, resource_classes, units
from cyborg.model.explanation import (
    Explanation,
    Filter,
    HostAnswer,
    Names,
    Step,
    StepName,
    Stock,
    Suggestion,
    UnitChange,
    explain,
    refereed,
)
from cyborg.model.satisfiability import Satisfiable, nearest, traits

#: The traits that Nova's pre-filters add (``nova/scheduler/request_filter.py`` of Nova 34).
_ABLE: Final = "COMPUTE_ACCELERATORS"
_OWNER: Final = "OWNER_NOVA"
_DISABLED: Final = "COMPUTE_STATUS_DISABLED"
#: The largest number of groups for which Placement is asked on their own: with the three traits, a
#: flavor, a host and the candidates these are ten requests.
_GROUPS: Final = 4
#: How many hosts an answer has at most.
_HOSTS: Final = 50
#: Resources that the compute's own provider has, not one that hosts share.
_OF_HOST: Final = ("VCPU", "PCPU", "MEMORY_MB")
NOT_SAID: Final = "Nova's filters and weighers are not asked: they have no API."


@dataclass
class Verdicts:
    """What Placement and Nova say; ``candidate`` is None if Placement was not asked for one."""

    filters: list[Filter] = field(default_factory=list)
    #: Group → the providers that can serve it now.
    able: list[tuple[Group, frozenset[str]]] = field(default_factory=list)
    candidate: bool | None = None
    notes: list[str] = field(default_factory=lambda: [NOT_SAID])


def explained(
    reader: Reader,
    neighbours: Neighbours | None,
    groups: Sequence[Group],
    *,
    flavor: str | None = None,
    host: str | None = None,
) -> tuple[Explanation, list[str], int]:
    """Return why a profile fits or does not, notes about what was not asked, and the capacity.

    The capacity is the number of further instances that fit on the hosts that are left. Without
    ``neighbours``, neither Placement nor Nova is asked. ``flavor`` is its id or name. Raises
    NotFound if Nova does not have the flavor.
    """
    verdicts = Verdicts()
    requests = [group for group in groups if units(group)]
    stocks, names = _read(reader, requests, host=host)
    if neighbours is not None:
        if host is not None and stocks:
            # The name of its provider; the request may have that of its agent.
            host = stocks[0].host
        _ask(verdicts, neighbours, requests, flavor=flavor, host=host)
    for group, able in verdicts.able:
        stocks = [_as_allocated(stock, group, able) for stock in stocks]
    result = explain(groups, stocks, names, verdicts.filters)
    if verdicts.candidate is not None:
        result = refereed(result, fits=verdicts.candidate)
    return result, verdicts.notes, _further(result, groups, stocks)


def _further(result: Explanation, groups: Sequence[Group], stocks: Iterable[Stock]) -> int:
    """Return how many instances fit one after another on the hosts that passed all steps."""
    if not result.fits:
        return 0
    left = {answer.host for answer in result.hosts if answer.fell is None}
    fleet = Fleet(stock for stock in stocks if stock.host in left)
    return sum(capacity.further for capacity in fleet.capacities(groups))


def _read(
    reader: Reader, requests: Sequence[Group], *, host: str | None
) -> tuple[list[Stock], Names]:
    """Return the units of the requested classes, or all units if a class does not exist."""
    classes = frozenset(name for group in requests for name in resource_classes(group))
    required = frozenset(name for group in requests for name in traits(group))
    with reader.reader() as tx:
        names = providers.names(tx, classes, required)
        like: set[str] = set()
        if names != Names(classes, required):
            names = providers.names(tx)
            like = {nearest(name, names.traits) or name for name in required}
        return (
            providers.stocks(
                tx,
                classes if classes <= names.classes else None,
                host=host,
                traits=required | like,
            ),
            names,
        )


def _as_allocated(stock: Stock, group: Group, able: frozenset[str]) -> Stock:
    """Return the stock without free units if Placement cannot serve a group from it."""
    supply = stock.supply
    offered = supply.fits(group) and supply.free >= units(group)
    return stock.without() if offered and stock.provider not in able else stock


def _ask(
    verdicts: Verdicts,
    neighbours: Neighbours,
    requests: Sequence[Group],
    *,
    flavor: str | None,
    host: str | None,
) -> None:
    """Fill in what Nova and Placement say."""
    resources: Mapping[str, int] = {}
    try:
        if flavor is not None:
            resources = _flavor(neighbours, flavor).resources
        placement = Candidates(neighbours.placement())
        _ask_placement(verdicts, placement, requests, resources=resources, host=host)
    except (exception.Unavailable, exception.ConfigError) as error:
        verdicts.notes.append(f"Not everything could be asked: {error}")


def _flavor(neighbours: Neighbours, key: str) -> Flavor:
    row = Servers(neighbours.nova()).flavor(key)
    if row is None:
        raise exception.NotFound(noun="Flavor", key=key)
    return row


def _ask_placement(
    verdicts: Verdicts,
    placement: Candidates,
    requests: Sequence[Group],
    *,
    resources: Mapping[str, int],
    host: str | None,
) -> None:
    able, disabled, owned = (placement.hosts_with(name) for name in (_ABLE, _DISABLED, _OWNER))
    required = [_ABLE, f"!{_DISABLED}"]
    remedy = "start nova-compute of release Victoria or later on it"
    verdicts.filters.append(Filter(StepName.COMPUTE, f"{_ABLE}=required", able, remedy))
    if owned:
        # Nova requires it when all of its compute services have it (service version 73).
        required.append(_OWNER)
        remedy = "its provider lacks the trait of Nova: restart its nova-compute"
        verdicts.filters.append(Filter(StepName.COMPUTE, f"{_OWNER}=required", owned, remedy))
    remedy = "its compute service is disabled: openstack compute service set --enable"
    enabled = able - disabled
    verdicts.filters.append(Filter(StepName.COMPUTE, f"{_DISABLED}=forbidden", enabled, remedy))
    own = {name: resources[name] for name in _OF_HOST if name in resources}
    if own:
        room = placement.hosts_with_room(own)
        subject = ", ".join(f"{name}:{amount}" for name, amount in own.items())
        remedy = "too little is left for the flavor: move or delete other servers"
        verdicts.filters.append(Filter(StepName.FLAVOR, subject, room, remedy))
    distinct = list({tuple(sorted(group.items())): group for group in requests}.values())
    if len(distinct) <= _GROUPS:
        verdicts.able = [(group, placement.providers_for(group)) for group in distinct]
    else:
        verdicts.notes.append(
            f"Placement was not asked for each group: the profile has more than {_GROUPS} kinds."
        )
    if len(requests) > EQUAL_GROUPS:
        verdicts.notes.append(
            f"Placement was not asked for candidates of more than {EQUAL_GROUPS} groups: without "
            f"{WIDE_TREES} it needs minutes for them."
        )
        return
    node = None if host is None else placement.find_by_name(host)
    if host is not None and node is None:
        verdicts.candidate = False
        return
    root = None if node is None else node.uuid
    verdicts.candidate = placement.exists(
        requests, root=root, resources=resources, root_required=required
    )


@dataclass(frozen=True)
class Answered:
    """What the API answers: the explanation, notes, and failed steps of a server's requests.

    ``further`` instances fit now.
    """

    explanation: Explanation
    notes: Sequence[str]
    further: int
    failures: Sequence[VisibleEvent]

    @property
    def hosts(self) -> list[HostAnswer]:
        """Return the hosts, those that came farthest first."""
        order = [None, *reversed(StepName)]
        return sorted(self.explanation.hosts, key=lambda row: (order.index(row.fell), row.host))[
            :_HOSTS
        ]


_UNITS = Answer[tuple[int, int]](
    "ProviderUnits",
    "Total and reserved units.",
    total=Member(types.INTEGER, lambda pair: pair[0]),
    reserved=Member(types.INTEGER, lambda pair: pair[1]),
)
_STEP = Answer[Step](
    "ExplanationStep",
    "A step, and what is left after it.",
    step=Member(types.Word(*StepName), lambda step: step.name),
    group=Member(answers.Nullable(types.INTEGER)),
    subject=Member(answers.STRING),
    hosts=Member(types.INTEGER),
    units=Member(answers.Nullable(types.INTEGER)),
    words=Member(types.Members(types.INTEGER), lambda step: step.words or {}),
    reason=Member(answers.STRING),
)
_CHANGE = Answer[UnitChange](
    "UnitChange",
    "Units of a device that must become free.",
    device=Member(types.UUID_TYPE),
    state=Member(answers.STRING, lambda change: change.word),
    amount=Member(types.INTEGER),
)
_SUGGESTION = Answer[Suggestion](
    "Suggestion",
    "The smallest change that was found after which the profile fits on a host.",
    text=Member(answers.STRING),
    host=Member(answers.STRING),
    groups=Member(answers.Nullable(types.Items(types.Members(answers.STRING)))),
    units=Member(types.Items(_CHANGE)),
)
_HOST = Answer[HostAnswer](
    "ExplainedHost",
    "How far a host came: the step at which it fell away, null if it fits.",
    host=Member(answers.STRING),
    step=Member(answers.Nullable(types.Word(*StepName)), lambda row: row.fell),
    reason=Member(answers.STRING),
    desired=Member(_UNITS),
    published=Member(_UNITS),
)
EXPLANATION = Answer[Answered](
    "Explanation",
    "Why a device profile fits on the hosts of the cloud, or does not.",
    fits=Member(types.Flag(), lambda row: row.explanation.fits),
    satisfiable=Member(types.Word(*Satisfiable), lambda row: row.explanation.satisfiable),
    summary=Member(answers.STRING, lambda row: row.explanation.summary),
    notes=Member(answers.STRINGS),
    failures=Member(types.Items(EVENT_VIEW)),
    further=Member(types.INTEGER, placed=True),
    steps=Member(types.Items(_STEP), lambda row: row.explanation.steps, placed=True),
    hosts=Member(types.Items(_HOST), placed=True),
    suggestion=Member(
        answers.Nullable(_SUGGESTION), lambda row: row.explanation.suggestion, placed=True
    ),
)
