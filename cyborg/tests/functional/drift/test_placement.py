# SPDX-License-Identifier: Apache-2.0
"""Damages at random, in batches: an audit names each, and one full check ends them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from cyborg.model.audit_findings import Kind
from cyborg.model.process import AGENT
from cyborg.tests.functional.drift.conftest import DAMAGES
from cyborg.tests.functional.drift.damages import ON_ANY, ON_UNUSED, Damage, Maker
from cyborg.tests.functional.drift.site import Entry, Site

_BATCH = 15
Damaged = dict[str, Damage]


def _batches(dice: Random) -> Iterator[list[Maker]]:
    """Each kind of damage is done once before any is done again."""
    todo: list[Maker] = []
    for done in range(0, DAMAGES, _BATCH):
        while len(todo) < _BATCH:
            todo += dice.sample(ON_ANY + ON_UNUSED, len(ON_ANY + ON_UNUSED))
        yield todo[: min(_BATCH, DAMAGES - done)]
        todo = todo[_BATCH:]


def _damage(site: Site, makers: list[Maker], dice: Random) -> Damaged:
    """Do each to a provider of its own."""
    whole, unused = set(site.providers), set(site.unused)
    damaged = {}
    for maker in sorted(makers, key=lambda one: one not in ON_UNUSED):
        uuid = dice.choice(sorted(whole & unused if maker in ON_UNUSED else whole))
        whole.remove(uuid)
        damaged[uuid] = maker(site, uuid, dice)
    return damaged


def _expect(expected: dict[str, Entry], damaged: Damaged, ours: dict[str, Entry]) -> None:
    for uuid, one in damaged.items():
        if one.forgets:
            expected[uuid] = replace(expected[uuid], traits=ours[uuid].traits)
        expected.update(one.kept)


def _named(damaged: Damaged, when: int) -> set[tuple[Kind, str]]:
    """What an audit is to find of providers: before the check (0) or after it (-1)."""
    return {
        (one.kinds[when], one.key or uuid)
        for uuid, one in damaged.items()
        if one.kinds and (when == 0 or one.remedy)
    }


def test_differences_in_placement_are_repaired_or_explained(
    compute_site: Site, record_property: Callable[[str, object], None]
) -> None:
    site, dice = compute_site, Random("drift")
    ours = site.shown()
    expected, ends = dict(ours), Counter[str]()
    for makers in _batches(dice):
        damaged = _damage(site, makers, dice)
        _expect(expected, damaged, ours)
        assert site.found() == _named(damaged, 0)
        site.check()
        # The heartbeat after the check tells what the agent could not repair.
        site.look()
        findings = site.audit()
        fails = any(one.fails for one in damaged.values())
        told = {(Kind.CANNOT_PUBLISH, f"{AGENT}@{site.host}")} if fails else set()
        assert {(one.kind, one.key) for one in findings} == _named(damaged, -1) | told
        assert all(one.cause and one.remedy for one in findings)
        touched = {uuid for uuid, one in damaged.items() if one.remedy}
        touched |= {one.key for one in damaged.values() if one.key}
        shown = site.shown()
        for uuid in (expected.keys() | shown.keys()) - touched:
            assert shown.get(uuid) == expected.get(uuid), damaged.get(uuid)
        for damage in damaged.values():
            if damage.remedy is not None:
                damage.remedy()
            ends[f"{damage.about}: {_end(damage)}"] += 1
        site.check()
        assert site.shown() == expected
        site.look()
    assert site.found() == set()
    record_property("drift", dict(sorted(ends.items())))
    assert ends.total() == DAMAGES


def _end(damage: Damage) -> str:
    if damage.remedy is not None:
        return "named by the audit, mended by a human"
    return "repaired by the check" if damage.kinds else "left as it is: not ours"
