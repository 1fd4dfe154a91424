# SPDX-License-Identifier: Apache-2.0
"""Why a device profile fits or does not fit: the steps from all units to the hosts that are left.

The steps are those of Placement, of Nova's requests to it, and of this service. After each of them
some hosts and units are left. If no host is left at the end, a suggestion says what would change
that with the fewest changes: units that become free, or another profile.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cyborg.model.availability import UnitWord
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import Group, resource_classes, units
from cyborg.model.satisfiability import (
    Satisfiable,
    Supply,
    assign,
    groups_of,
    nearest,
    nearest_clause,
    traits,
)

#: What the units of a provider count as that another consumer has allocated in Placement, though no
#: ARQ has them.
CLAIMED: Final = "claimed"
#: What makes units of each kind free, as a clause that begins with them; the easiest kinds first.
REMEDIES: Final[Mapping[str, str]] = {
    UnitWord.CLEANING.value: "are being cleaned: wait until that ends",
    UnitWord.RELEASING.value: "are being released by their host: wait until that ends",
    DeviceStatus.INSTALLING.value: "are being set up: wait until that ends",
    UnitWord.UNCHECKED.value: "wait for the audit after a restore: run cyborg-audit",
    DeviceStatus.INACTIVE.value: "wait for cyborg accelerator-update --status ready",
    DeviceStatus.MAINTAINING.value: "are taken out of service: cyborg accelerator-update --status "
    "ready offers them again",
    UnitWord.HOST_DISABLED.value: "are on a disabled host: cyborg service-enable offers them again",
    UnitWord.HOST_DRAINING.value: "are on a host that is being emptied: cyborg host-resume offers "
    "them again",
    DeviceStatus.DRAINING.value: "are on accelerators that are being emptied: cyborg "
    "accelerator-resume offers them again",
    DeviceStatus.FAILED.value: "could not be set up: cyborg accelerator-show says why; then run "
    "cyborg accelerator-update --status ready",
    UnitWord.DRIVER_NOT_READY.value: "have a driver that is not ready: see cyborg driver-list",
    UnitWord.UNPUBLISHED.value: "are not published in Placement by their agent: see cyborg "
    "service-list",
    UnitWord.PROVIDER_REFUSED.value: "were refused by Placement: cyborg accelerator-show says why",
    UnitWord.QUARANTINED.value: "are in quarantine: cyborg accelerator-show says why; clean them, "
    "then run cyborg accelerator-update --free-unit",
    UnitWord.UNHEALTHY.value: "are on unhealthy devices: cyborg accelerator-show says why",
    CLAIMED: "are allocated in Placement to a server that has no accelerator request for them: it "
    "is being built, or cyborg-audit tells of it",
    UnitWord.NO_ROOM.value: "share capacity that others use: delete a server that has such a unit",
    UnitWord.USED.value: "are in use: delete or shelve a server that has one, or add hardware",
}
_ORDER: Final = {word: index for index, word in enumerate(REMEDIES)}
#: What a change of a profile costs, when the change with the lowest cost is chosen.
_OTHER_CLASS: Final = 4
_TRAIT: Final = 2
_AMOUNT: Final = 1
_NO_GROUP: Final = 10


class StepName(StrEnum):
    """The steps, in their order; those up to STATE are made for each group."""

    RESOURCE_CLASS = "resource_class"
    TRAIT = "trait"
    AMOUNT = "amount"
    STATE = "state"
    #: One host has all groups together, if its units are free; and now.
    SHAPE = "shape"
    FREE = "free"
    HOST = "host"
    COMPUTE = "compute"
    FLAVOR = "flavor"
    PLACEMENT = "placement"
    #: The limits of the project; it changes nothing in what fits.
    QUOTA = "quota"


@dataclass(frozen=True)
class Stock:
    """The units of a resource provider. ``words`` are those of its host, by what they count as.

    ``desired`` are the total and reserved units that Placement shall show, lost units too,
    ``published`` those that the agent has published last; None: it has published no provider.
    ``type`` and ``numa_node`` are those of the device, ``service_host`` is another name of its
    host: that of its agent.
    """

    host: str
    provider: str | None
    device: str
    supply: Supply
    words: Mapping[str, int]
    desired: tuple[int, int]
    published: tuple[int, int] | None
    type: str | None = None
    numa_node: int | None = None
    service_host: str | None = None

    def without(self) -> "Stock":
        """Return this stock if Placement cannot give of it what is free."""
        words = Counter(self.words)
        total, reserved = self.published or (0, 0)
        word = CLAIMED if total - reserved >= self.supply.free else UnitWord.UNPUBLISHED.value
        words[word] += words.pop(UnitWord.FREE.value, 0)
        return replace(self, supply=replace(self.supply, free=0), words=words)


@dataclass(frozen=True)
class Step:
    """What is left after a step; ``reason`` is a sentence, empty if nothing fell away.

    ``group`` is the index of a group; None: the step is about the whole profile. ``units`` counts
    those of the providers that are left, or the free ones of them after the state was looked at.
    ``words`` are, for the state, the units that are not free by what they count as.
    """

    name: StepName
    group: int | None
    subject: str
    hosts: int
    units: int | None = None
    reason: str = ""
    words: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Filter:
    """A condition on hosts that Cyborg does not decide: the hosts that meet it.

    ``remedy`` is a clause that says what to do for a host that does not.
    """

    name: StepName
    subject: str
    hosts: Collection[str]
    remedy: str


@dataclass(frozen=True)
class UnitChange:
    """Units of a provider that must become free; ``word`` is what they count as now."""

    host: str
    provider: str | None
    device: str
    word: str
    amount: int


@dataclass(frozen=True)
class Suggestion:
    """Changes after which the profile fits on ``host``, and the sentence that says them.

    ``groups`` is the changed profile; None: the profile can stay. ``lifted`` are the conditions
    that the host does not meet.
    """

    host: str
    text: str
    groups: tuple[dict[str, str], ...] | None = None
    units: tuple[UnitChange, ...] = ()
    lifted: tuple[Filter, ...] = ()


@dataclass(frozen=True)
class HostAnswer:
    """What is left of one host: the step at which it fell away, None if it did not.

    ``desired`` and ``published`` are the sums of the providers that can serve a group, see Stock.
    """

    host: str
    fell: StepName | None
    reason: str
    desired: tuple[int, int]
    published: tuple[int, int]


@dataclass(frozen=True)
class Explanation:
    """The answer; ``fits`` is Placement's verdict if it was asked, and else that of the steps."""

    fits: bool
    satisfiable: Satisfiable
    summary: str
    steps: Sequence[Step]
    hosts: Sequence[HostAnswer]
    suggestion: Suggestion | None

    @property
    def left(self) -> int:
        """Return how many hosts fit by all steps but the answer of Placement."""
        return sum(1 for answer in self.hosts if answer.fell is None)


@dataclass(frozen=True)
class Names:
    """The resource classes and traits that exist."""

    classes: frozenset[str]
    traits: frozenset[str]


def explain(
    groups: Sequence[Group],
    stocks: Iterable[Stock],
    names: Names,
    filters: Sequence[Filter] = (),
) -> Explanation:
    """Walk all steps for a profile; ``stocks`` are those of all hosts."""
    requests = {index: group for index, group in enumerate(groups) if units(group)}
    hosts: dict[str, list[Stock]] = defaultdict(list)
    for stock in stocks:
        hosts[stock.host].append(stock)
    steps_of: dict[tuple[tuple[str, str], ...], list[Step]] = {}
    steps = []
    for index, group in requests.items():
        key = tuple(sorted(group.items()))
        steps_of[key] = steps_of.get(key) or list(_steps(index, group, hosts, names))
        steps += [replace(step, group=index) for step in steps_of[key]]
    walk = _Walk(list(requests.values()), hosts)
    steps.append(_shape(walk, steps))
    free = "other units would have to be free"
    steps.append(
        _whole(StepName.FREE, "free units", walk.free, before=len(walk.shape), remedy=free)
    )
    left = walk.free
    for each in filters:
        kept = {host for host in left if host in each.hosts}
        steps.append(_whole(each.name, each.subject, kept, before=len(left), remedy=each.remedy))
        left = kept
    satisfiable = (
        Satisfiable.NOW if walk.free else Satisfiable.WHEN_FREE if walk.shape else Satisfiable.NEVER
    )
    suggestion = None if left else _suggestion(groups, walk, names, filters)
    if left:
        names_of = ", ".join(sorted(left)[:3])
        summary = f"{_hosts(len(left))} can give these accelerators now, for example {names_of}."
    elif suggestion:
        summary = suggestion.text
    else:
        summary = (
            "No host reports any accelerator that could serve this profile: see cyborg "
            "service-list and cyborg driver-list."
        )
    answers = [_answer(host, walk, filters) for host in sorted(hosts)]
    return Explanation(bool(left), satisfiable, summary, steps, answers, suggestion)


def refereed(explanation: Explanation, *, fits: bool) -> Explanation:
    """Return the explanation after Placement has said whether it has a candidate."""
    reason = ""
    summary = explanation.summary
    if fits and not explanation.fits:
        reason = (
            "Placement still offers units that Cyborg does not give out; the agent of their host "
            "has not published that yet."
        )
        summary = f"Placement has a candidate, but a bind fails: {explanation.summary}"
    elif explanation.fits and not fits:
        reason = summary = (
            "Units are free, but Placement has no candidate: its figures differ from Cyborg's, or "
            "the host lacks something else that the server needs. Run cyborg-audit, and compare "
            "with openstack allocation candidate list."
        )
    left = explanation.left if fits else 0
    step = Step(StepName.PLACEMENT, None, "candidates", left, reason=reason)
    return replace(explanation, fits=fits, summary=summary, steps=[*explanation.steps, step])


def with_quota(explanation: Explanation, project_id: str, over: Sequence[str]) -> Explanation:
    """Return the explanation with the step of a project's quotas; ``over`` are those exceeded."""
    reason = summary = ""
    if over:
        reason = f"Over the limits: {'; '.join(over)}."
        summary = f" The quota of project {project_id} refuses it. {reason}"
    subject = f"project {project_id}"
    step = Step(StepName.QUOTA, None, subject, explanation.left, reason=reason)
    return replace(
        explanation,
        summary=f"{explanation.summary}{summary}",
        steps=[*explanation.steps, step],
    )


class _Walk:
    """The hosts that can give all groups at once: ``shape`` if all is free, ``free`` now."""

    def __init__(self, requests: Sequence[Group], hosts: Mapping[str, Sequence[Stock]]) -> None:
        self.requests = requests
        self.hosts = hosts
        results: dict[tuple[Supply, ...], tuple[bool, bool]] = {}
        self.shape: set[str] = set()
        self.free: set[str] = set()
        for host, stocks in hosts.items():
            supplies = tuple(sorted(stock.supply for stock in stocks))
            if supplies not in results:
                results[supplies] = (
                    assign(requests, supplies, [supply.total for supply in supplies]) is not None,
                    assign(requests, supplies, [supply.free for supply in supplies]) is not None,
                )
            shape, free = results[supplies]
            if shape:
                self.shape.add(host)
            if free:
                self.free.add(host)


def _steps(
    index: int, group: Group, hosts: Mapping[str, Sequence[Stock]], names: Names
) -> Iterable[Step]:
    """Yield the steps of one group: class, each trait, amount, state."""
    classes = resource_classes(group)
    subject = ", ".join(sorted(classes))
    every = [stock for stocks in hosts.values() for stock in stocks]
    left = [stock for stock in every if {stock.supply.resource_class} == classes]
    reason = ""
    if not left:
        reason = (
            f"A resource provider has one resource class, not {subject} together."
            if len(classes) > 1
            else f"No resource provider has {subject}{nearest_clause(subject, names.classes)}."
        )
    yield _left(StepName.RESOURCE_CLASS, index, subject, left, reason=reason)
    for name, word in sorted(traits(group).items()):
        before, left = (
            left,
            [stock for stock in left if (name in stock.supply.traits) is (word == "required")],
        )
        yield _left(
            StepName.TRAIT,
            index,
            f"{name}={word}",
            left,
            reason=_lost(before, left, name=name, word=word, names=names),
        )
    amount = units(group)
    before, left = left, [stock for stock in left if stock.supply.fits(group)]
    reason = ""
    if before and not left:
        largest = max(stock.supply.total for stock in before)
        sizes = sorted({stock.supply.group_size for stock in before})
        reason = (
            f"The largest of these providers has {largest} units."
            if largest < amount
            else f"Their units are given out in multiples of {', '.join(map(str, sizes))}."
        )
    yield _left(StepName.AMOUNT, index, f"{amount} of one provider", left, reason=reason)
    words: Counter[str] = Counter()
    for stock in left:
        words.update(stock.words)
    del words[UnitWord.FREE.value]
    left = [stock for stock in left if stock.supply.free >= amount]
    yield Step(
        StepName.STATE,
        index,
        "units that can be given out now",
        len({stock.host for stock in left}),
        sum(stock.supply.free for stock in left),
        _said(words),
        dict(words),
    )


def _left(name: StepName, index: int, subject: str, left: Sequence[Stock], *, reason: str) -> Step:
    hosts = len({stock.host for stock in left})
    return Step(name, index, subject, hosts, sum(stock.supply.total for stock in left), reason)


def _lost(
    before: Sequence[Stock], left: Sequence[Stock], *, name: str, word: str, names: Names
) -> str:
    """Return why no provider is left after a trait; empty if some are, or none was before."""
    if left or not before:
        return ""
    if word == "forbidden":
        return "All of these providers have the trait."
    if name in names.traits:
        return "Only other resource providers have the trait."
    return f"No resource provider has it{nearest_clause(name, names.traits)}."


def _shape(walk: _Walk, before: Sequence[Step]) -> Step:
    """Return the step after which the hosts are left that have enough units for all groups."""
    alone = all(step.hosts for step in before if step.name is StepName.AMOUNT)
    reason = ""
    if alone and not walk.shape:
        reason = "Each group finds a provider, but no host has enough of them for all together."
    hosts = len(walk.shape)
    return Step(StepName.SHAPE, None, "all groups on one host", hosts, reason=reason)


def _whole(
    name: StepName, subject: str, left: Collection[str], *, before: int, remedy: str = ""
) -> Step:
    """Return a step about all groups; ``before`` hosts were left until then."""
    lost = before - len(left)
    reason = f"{_hosts(lost)} fell away: {remedy}." if lost and remedy else ""
    return Step(name, None, subject, len(left), reason=reason)


def _answer(host: str, walk: _Walk, filters: Sequence[Filter]) -> HostAnswer:
    """Return at which step a host fell away."""
    stocks = [stock for stock in walk.hosts[host] if groups_of(walk.requests, [stock.supply])]
    desired = sum(stock.desired[0] for stock in stocks), sum(stock.desired[1] for stock in stocks)
    shown = [stock.published for stock in stocks if stock.published is not None]
    published = sum(total for total, _ in shown), sum(reserved for _, reserved in shown)
    fell, reason = None, ""
    if host not in walk.shape:
        fell, reason = StepName.SHAPE, "It has too few units of the requested kinds."
    elif host not in walk.free:
        words: Counter[str] = Counter()
        for stock in stocks:
            words.update(stock.words)
        fell, reason = StepName.FREE, _said(words)
    else:
        for each in filters:
            if host not in each.hosts:
                fell, reason = each.name, f"{each.remedy[0].upper()}{each.remedy[1:]}."
                break
    return HostAnswer(host, fell, reason, desired, published)


def _suggestion(
    groups: Sequence[Group], walk: _Walk, names: Names, filters: Sequence[Filter]
) -> Suggestion | None:
    """Return the changes with the lowest cost: units of a host first, then the profile."""
    changed: dict[str, tuple[dict[str, str], ...]] = {}
    kinds = _kinds({host: walk.hosts[host] for host in walk.shape or walk.hosts}, filters)
    if walk.shape:
        candidates = {host: walk.hosts[host] for host in kinds}
    else:
        costs = {}
        for host in kinds:
            change = _changed(groups, walk.hosts[host], names)
            if change is not None:
                costs[host], changed[host] = change
        lowest = min(costs.values(), default=0)
        candidates = {host: walk.hosts[host] for host, cost in costs.items() if cost == lowest}
    best: tuple[tuple[int, int, int, str], Suggestion] | None = None
    for host, stocks in candidates.items():
        requested = changed.get(host)
        freed = _freed([group for group in requested or groups if units(group)], stocks)
        if freed is None:
            continue
        lifted = tuple(each for each in filters if host not in each.hosts)
        hardest = max((_ORDER.get(change.word, len(_ORDER)) for change in freed), default=-1)
        rank = (len(lifted), hardest, sum(change.amount for change in freed), host)
        if best is None or rank < best[0]:
            suggestion = Suggestion(host, "", requested, tuple(freed), lifted)
            best = rank, replace(suggestion, text=_text(groups, stocks, suggestion))
    return best[1] if best else None


def _kinds(hosts: Mapping[str, Sequence[Stock]], filters: Sequence[Filter]) -> list[str]:
    """Return one of each kind of hosts: equal ones need the same changes."""
    kinds: dict[tuple[object, ...], str] = {}
    for host, stocks in sorted(hosts.items()):
        parts = sorted((stock.supply, tuple(sorted(stock.words.items()))) for stock in stocks)
        key = tuple(parts), tuple(host in each.hosts for each in filters)
        kinds.setdefault(key, host)
    return list(kinds.values())


def _freed(requests: Sequence[Group], stocks: Sequence[Stock]) -> list[UnitChange] | None:
    """Return the units of a host that must become free for the groups; None: it lacks units."""
    # Those with the most free units first, then those whose other units are the easiest to free.
    stocks = sorted(
        stocks,
        key=lambda stock: (
            -stock.supply.free,
            min((_ORDER.get(word, len(_ORDER)) for word in stock.words), default=0),
        ),
    )
    supplies = [stock.supply for stock in stocks]
    capacities = [supply.free for supply in supplies]
    chosen = assign(requests, supplies, capacities)
    if chosen is None:
        chosen = assign(requests, supplies, [supply.total for supply in supplies])
    if not chosen:
        return None
    needed: Counter[int] = Counter()
    for group, place in zip(requests, chosen, strict=True):
        needed[place] += units(group)
    changes = []
    for place, amount in sorted(needed.items()):
        stock, missing = stocks[place], amount - stocks[place].supply.free
        for word in sorted(stock.words, key=lambda word: _ORDER.get(word, len(_ORDER))):
            if missing > 0 and word in _ORDER:
                taken = min(missing, stock.words[word])
                missing -= taken
                changes.append(UnitChange(stock.host, stock.provider, stock.device, word, taken))
    return changes


def _changed(
    groups: Sequence[Group], stocks: Sequence[Stock], names: Names
) -> tuple[int, tuple[dict[str, str], ...]] | None:
    """Return the profile as a host could serve it, and what its changes cost; None: not at all."""
    left = [stock.supply.total for stock in stocks]
    single: list[Group] = []
    cost = 0
    for group in groups:
        parts = _parts(group)
        single += parts
        cost += _OTHER_CLASS * (len(parts) - 1)
    changed = []
    for group in sorted(single, key=units, reverse=True):
        offers = [
            (*_served(group, stock, names), -left[place], place)
            for place, stock in enumerate(stocks)
            if left[place] >= stock.supply.group_size
        ]
        if not offers:
            cost += _NO_GROUP
            continue
        best, given, _, place = min(offers, key=lambda offer: (offer[0], offer[2], offer[3]))
        size = stocks[place].supply.group_size
        amount = min(-(-units(group) // size) * size, left[place] // size * size)
        cost += best + _AMOUNT * (amount != units(group))
        left[place] -= amount
        key = f"resources:{stocks[place].supply.resource_class}"
        changed.append({key: str(amount), **given})
    return (cost, tuple(changed)) if changed else None


def _parts(group: Group) -> list[Group]:
    """Return a group for each resource class of a group; none if it requests no units."""
    rest = {key: value for key, value in group.items() if not key.startswith("resources:")}
    return [
        {f"resources:{name}": group[f"resources:{name}"], **rest}
        for name in sorted(resource_classes(group))
    ]


def _served(group: Group, stock: Stock, names: Names) -> tuple[int, dict[str, str]]:
    """Return the keys of a group, without its units, that a provider meets; and their cost."""
    cost = 0 if stock.supply.resource_class in resource_classes(group) else _OTHER_CLASS
    kept = {key: value for key, value in group.items() if key.startswith("accel:")}
    for name, word in traits(group).items():
        if (name in stock.supply.traits) is (word == "required"):
            kept[f"trait:{name}"] = word
            continue
        cost += _TRAIT
        other = nearest(name, names.traits) if word == "required" else None
        if other and other in stock.supply.traits and f"trait:{other}" not in group:
            kept[f"trait:{other}"] = word
    return cost, kept


def _text(groups: Sequence[Group], stocks: Sequence[Stock], suggestion: Suggestion) -> str:
    """Return the sentences that say what to change on a host with these stocks."""
    host, sentences = suggestion.host, []
    if suggestion.groups is not None:
        requested = " + ".join(_spelled(group) for group in groups if units(group))
        offered = " + ".join(_spelled(group) for group in suggestion.groups)
        sentences.append(
            f"No host can ever serve {requested}; host {host} can serve {offered}: change the "
            "profile, or add hardware."
        )
    requests = suggestion.groups or groups
    words: Counter[str] = Counter()
    for stock in stocks:
        if groups_of(requests, [stock.supply]):
            words.update(stock.words)
    needed: Counter[str] = Counter()
    for change in suggestion.units:
        needed[change.word] += change.amount
    for word, amount in needed.items():
        verb = "is" if amount == 1 else "are"
        enough = f"; {amount} of them {verb} enough" if amount < words[word] else ""
        sentences.append(
            f"{words[word]} of {words.total()} matching units on host {host} {REMEDIES[word]}"
            f"{enough}."
        )
    sentences += [f"Host {host}: {each.remedy}." for each in suggestion.lifted]
    return " ".join(sentences)


def _spelled(group: Group) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(group.items()))


def _said(words: Mapping[str, int]) -> str:
    """Return how many units are not free, by what they count as, as a sentence."""
    parts = [
        f"{amount} {word.replace('_', ' ')}"
        for word, amount in sorted(words.items())
        if amount and word != UnitWord.FREE.value
    ]
    if not parts:
        return ""
    return f"Units that are not free: {', '.join(parts)}."


def _hosts(number: int) -> str:
    return f"{number} host" if number == 1 else f"{number} hosts"
