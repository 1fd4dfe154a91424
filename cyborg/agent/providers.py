# SPDX-License-Identifier: Apache-2.0
"""The resource providers of this host in Placement, kept as the conductor requires them.

If Placement is not available, or does not know the compute yet, the next run tries again.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from cyborg import exception
from cyborg.agent.schedule import Event, Schedule, Step
from cyborg.clients.permissions import ADMIN
from cyborg.clients.placement import Node, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.model.pci import PciAddress
from cyborg.model.provider import PublishResult, Verdict, provider_uuid
from cyborg.model.report import Desired
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.verbs import SendProvidersRemoved, SendPublished

LOG = logging.getLogger(__name__)


class Providers:
    """Publish the providers of this host; a restart forgets their state and reads it again.

    ``host`` is the agent's name on the bus; ``names`` are the names that Placement may have for its
    compute. ``schedule`` says when a full check of Placement is due.
    """

    def __init__(
        self,
        *,
        host: str,
        names: Sequence[str],
        schedule: Schedule,
        conductor: ConductorClient,
        placement: Placement,
        publisher: Publisher,
    ) -> None:
        self.host = host
        #: The compute's name in Placement; all possible names until its provider was found.
        self.names = tuple(names)
        self._schedule = schedule
        self._conductor = conductor
        self._placement = placement
        self._publisher = publisher
        #: UUID and name of the compute's provider; None until it was found in Placement.
        self.root: tuple[str, str] | None = None
        self._published_generation: int | None = None
        self._refused: dict[str, str] = {}
        #: What the conductor knows of the providers that were published: total and reserved units.
        self._published: dict[str, list[int]] = {}
        #: Why Placement does not have what is desired; empty while it has, as far as is known.
        self.error = ""
        #: The compute's tree in Placement, read in a run with a full check.
        self._tree: dict[str, Node] | None = None
        self._reserved: set[str] = set()
        #: The PCI addresses that Nova offers itself → the reason why a driver must not offer them.
        self.claims: dict[str, str] = {}
        #: Whether the claims were read since the start.
        self.claims_known = False

    def find_root(self) -> exception.CyborgError | None:
        """Find the compute's provider, unless it was found before; return the error, if any."""
        if self.root is None:
            try:
                root = self._publisher.find_root(self.names)
            except exception.CyborgError as error:
                self.error = str(error)
                return error
            self.error = ""
            self.names = (root[1],)
            self.root = root
            LOG.info("Compute of host %s found in Placement as %s", self.host, root[1])
            if ADMIN in self._placement.account_roles():
                LOG.warning(
                    "The account of [placement] has the role %s, which the agent of host %s does "
                    "not need: who takes over the host gets the cloud. Use an account that has the "
                    "role service alone, for example cyborg-agent",
                    ADMIN,
                    self.host,
                )
        return None

    def read_claims(self) -> None:
        """Read Nova's claims below the compute's provider, if a full check is due."""
        self._tree = None
        if self.root is not None and self._schedule.is_due(Step.CHECK_PLACEMENT):
            # Without Placement, the full check itself raises the error.
            with contextlib.suppress(exception.CyborgError):
                self._tree = self._placement.tree(self.root[0])
                claims = _claims(self._tree, self.root[1])
                self.claims_known = True
                if claims != self.claims:
                    self.claims = claims
                    self._schedule.rerun(Event.CLAIMS_CHANGED)

    def load(self, desired: Desired) -> None:
        """Take over what the conductor knows of refusals, and of what Placement shows.

        After a restart this is the result of the last report, and so the state of Placement.
        """
        self._refused = dict(desired.refused)
        self._published = dict(desired.published)
        self._publisher.recall(desired.tree)

    def reserve_missing(self, desired: Desired, present: Set[str]) -> None:
        """While no conductor answers, reserve the desired providers of deployables that are gone.

        ``present`` are the deployables of the last scan. Each provider is reserved once. The units
        stay reserved if it returns, until the conductor answers and gets a report.
        """
        refused = desired.refused.keys() | self._refused.keys()
        missing = {
            provider.uuid: provider.name
            for provider in desired.tree.providers
            if provider.name not in refused
            and (provider.deployable or provider.name) not in present
        }
        try:
            for uuid in self._publisher.reserve(sorted(missing.keys() - self._reserved)):
                LOG.warning(
                    "Provider %s (%s) reserved in Placement: the host does not have it any more",
                    missing[uuid],
                    uuid,
                )
        except exception.CyborgError as error:
            LOG.debug("Missing providers are not reserved in Placement yet: %s", error)
        else:
            self._reserved |= missing.keys()

    def forget_reserved(self) -> None:
        """Forget which providers were reserved: the conductor answers again and decides."""
        self._reserved = set()

    def publish(self, desired: Desired, epoch: int, *, known_before: bool) -> Desired:
        """Write the desired tree to Placement; tell the conductor what Placement has, and refuses.

        ``known_before``: the conductor has a report of the host. Return what is still desired.
        """
        due = self._schedule.is_due(Step.CHECK_PLACEMENT)
        if not due and self._published_generation == desired.generation:
            return desired
        self._published_generation = None
        try:
            if due:
                with self._schedule.run(Step.CHECK_PLACEMENT):
                    result = self._check(desired, known_before=known_before)
            else:
                result = self._publisher.publish(desired.tree)
            removed, staying = self._remove(desired, result.root_uuid)
        except exception.CyborgError as error:
            self.error = str(error)
            raise
        failed = result.reasons(Verdict.FAILED)
        self.error = "; ".join(f"{name}: {reason}" for name, reason in sorted(failed.items()))
        if removed:
            self._conductor.request(SendProvidersRemoved(self.host, epoch, removed))
        self._tell(desired, epoch, result, result.reasons(Verdict.REFUSED) | staying)
        if not failed:
            self._published_generation = desired.generation
        return desired if staying else replace(desired, obsolete_providers=())

    def _check(self, desired: Desired, *, known_before: bool) -> PublishResult:
        if known_before:
            return self._publisher.check(desired.tree, listing=self._tree)
        # A host without any report has nothing in Placement to compare with.
        return self._publisher.publish(desired.tree)

    def _tell(
        self, desired: Desired, epoch: int, result: PublishResult, refused: dict[str, str]
    ) -> None:
        """Tell the conductor what Placement refuses and has, unless it knows.

        A provider that was refused, or that failed, is as it was when it was last published.
        """
        as_desired = result.reasons(Verdict.PUBLISHED)
        published = {}
        for provider in desired.tree.providers:
            if provider.name in as_desired:
                published[provider.name] = [provider.total, provider.reserved]
            elif provider.name in self._published:
                published[provider.name] = self._published[provider.name]
        if (refused, published) != (self._refused, self._published):
            self._conductor.request(SendPublished(self.host, epoch, refused, published))
            self._refused, self._published = refused, published

    def _remove(self, desired: Desired, root: str) -> tuple[list[str], dict[str, str]]:
        """Remove the providers of removed devices.

        Return the removed ones, and those that cannot be removed: name → reason.
        """
        removed: list[str] = []
        staying: dict[str, str] = {}
        for provider in desired.obsolete_providers:
            try:
                self._publisher.retire(provider.uuid, root=root)
                removed.append(provider.name)
            except (exception.Conflict, exception.Unavailable) as error:
                # A 500 concerns this request only; any other error concerns all of Placement.
                if error.fields.get("http", 500) != 500:
                    raise
                staying[provider.name] = f"it cannot be removed: {error}"
                if self._refused.get(provider.name) != staying[provider.name]:
                    LOG.warning(
                        "Provider %s (%s) stays in Placement: %s",
                        provider.name,
                        provider.uuid,
                        staying[provider.name],
                    )
        return removed, staying


def _claims(tree: Mapping[str, Node], root_name: str) -> dict[str, str]:
    """Return the PCI addresses that Nova offers itself, with the reason not to offer them.

    Nova names its providers ``<compute>_<address>``. Cyborg's may have such names too, but their
    uuids are derived from their names.
    """
    claims = {}
    for node in tree.values():
        owner, _, address = node.name.rpartition("_")
        if owner != root_name or node.uuid == provider_uuid(node.name):
            continue
        try:
            claims[str(PciAddress.parse(address))] = f"Nova offers it in Placement as {node.name}"
        except ValueError:
            continue
    return claims
