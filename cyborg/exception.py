# SPDX-License-Identifier: Apache-2.0
"""The one tree of errors: raised once, where a fault is known, with fields by keyword.

Every class carries the HTTP status that it becomes at the REST door and a sentence with
placeholders. Fields are plain JSON values, so that an error crosses the message bus as data
(``cyborg.rpc.faults`` rebuilds it by the name of its class) and reads the same on the other side.
"""

from typing import Any, ClassVar


class CyborgError(Exception):
    """Root of all errors that this service raises on purpose.

    ``fields`` holds the keyword arguments as given; ``str()`` is the finished sentence. The field
    ``public`` replaces that sentence for callers of the API, where it names what is not theirs to
    know (hosts, accounts).
    """

    status: ClassVar[int] = 500
    sentence: ClassVar[str] = "An unexpected error occurred."

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(self.sentence.format(**fields))

    @property
    def public(self) -> str:
        """The sentence for callers of the API."""
        return str(self.fields.get("public") or self)


class Invalid(CyborgError):
    """A value that the caller sent cannot be used; ``field`` names it, ``reason`` says why."""

    status = 400
    sentence = "Invalid value for {field}: {reason}"


class InstanceAlreadyBound(CyborgError):
    """An instance is bound once; a second bind of the same instance is refused."""

    status = 400
    sentence = "Instance {instance} already has accelerator requests; delete those first."


class Forbidden(CyborgError):
    """The caller may see the thing, but not do this with it."""

    status = 403
    sentence = "{reason}"


class ServiceTokenRequired(Forbidden):
    """The verb is Nova's: it needs a valid service token besides the user's own."""

    sentence = (
        "{action} requires a service token (X-Service-Token) with one of the service roles; "
        "use the Compute API to attach or remove accelerators."
    )


class BoundArqs(Forbidden):
    """Bound accelerator requests are deleted by the Compute service only."""

    sentence = (
        "Accelerator requests {uuids} are bound to an instance; delete the instance with the "
        "Compute API, or send a service token."
    )


class NotFound(CyborgError):
    """There is no such thing, or the caller may not see it."""

    status = 404
    sentence = "{noun} {key} could not be found."


class NotAcceptable(CyborgError):
    """The request asks for something this microversion does not have."""

    status = 406
    sentence = "{reason}"


class Conflict(CyborgError):
    """The request collides with the present state; nothing was changed."""

    status = 409
    sentence = "{reason}"


class Duplicate(Conflict):
    """A unique value is taken already."""

    sentence = "{noun} with {field} {value} already exists."


class ProfileInUse(Conflict):
    """A device profile cannot go while accelerator requests refer to it."""

    sentence = (
        "Device profile {name} is used by {count} accelerator request(s); delete those first."
    )


class BadState(Conflict):
    """An accelerator request is in a state from which the asked move does not start."""

    sentence = "Accelerator request {uuid} is {state}; it cannot {event} from there."


class NoFreeHandle(Conflict):
    """The provider has no unit left for this bind."""

    sentence = (
        "Resource provider {provider} has no free attach handle for "
        "{wanted} accelerator request(s)."
    )


class DeviceUnavailable(Conflict):
    """The device is not offered now (disabled, lost or failed)."""

    sentence = "Device {uuid} behind resource provider {provider} is {status}; it cannot be bound."


class DeviceInUse(Conflict):
    """What is asked for would take a device away from those who hold it."""

    sentence = "Device {uuid} is held by accelerator requests {arqs}."


class CannotProgram(Conflict):
    """The driver of this deployable has no programming."""

    sentence = "Deployable {uuid} cannot be programmed: driver {driver} does not support it."


class CannotAttach(Conflict):
    """Accelerators of an instance cannot be attached or detached as it is now."""

    sentence = "Accelerators of instance {instance} cannot be changed: {reason}."


class OperationTaken(Conflict):
    """An operation id that a client chose has begun something else."""

    sentence = "Operation {uuid} has been begun by another request."


class StaleEpoch(Conflict):
    """A newer agent has taken over this host; what the older one says no longer counts."""

    sentence = (
        "A newer {binary} serves {host} (epoch {current}); the process with epoch {epoch} is "
        "replaced and its message is ignored. If two run at the same time, give each host its own "
        "name ([DEFAULT] host) and stop the other."
    )


class Locked(CyborgError):
    """Not all accelerator requests of the instance are resolved yet."""

    status = 423
    sentence = "Accelerator requests of instance {instance} are not resolved yet."


class Unavailable(CyborgError):
    """A peer cannot be reached now; nothing was changed, repeating later is safe."""

    status = 503
    sentence = "{peer} is not available: {reason}"


class OutcomeUnknown(Unavailable):
    """No answer in time: the change may or may not have happened; repeating is safe."""

    sentence = "{peer} did not answer in time; outcome unknown, repeating is safe."


class NoAnswer(Unavailable):
    """A peer has taken a message, as far as the broker tells, and has not answered in time."""

    sentence = "{peer} is not available: no answer"


class UnknownVerb(Unavailable):
    """A peer is of another release and has no such verb; nothing was changed."""

    sentence = "{peer} is not available: it is of another release and does not know {verb}."


class PinnedVersion(UnknownVerb):
    """This process is told to send nothing that older peers do not know; nothing was changed."""

    sentence = (
        "{verb} needs version {needed} of the {peer}, and [upgrade_levels] holds this process at "
        "{pin}: upgrade all of them, then remove that option."
    )


class PeerFault(CyborgError):
    """Another process of this service failed in a way it did not foresee; its log knows more."""

    sentence = "{peer} failed unexpectedly; its log has the details for request {request_id}."


class DriverFailed(CyborgError):
    """A vendor driver threw, or what it said cannot be used."""

    sentence = "Driver {driver} failed in {verb}: {reason}"


class DriverCannot(CyborgError):
    """A driver was asked for a verb that its hardware does not have."""

    status = 409
    sentence = "Driver {driver} cannot {verb}."


class ImageRefused(CyborgError):
    """An image cannot be used, or what was received is not what Glance promised."""

    sentence = "Image {image} cannot be loaded: {reason}"


class HostError(CyborgError):
    """Reading or commanding the local machine failed."""

    sentence = "{action} failed: {reason}"


class ConfigError(CyborgError):
    """The configuration cannot be used; the sentence names option and value."""

    sentence = "{reason}"


class SchemaError(CyborgError):
    """The database schema is not one that this command can work on."""

    sentence = "{reason}"


class CommandFailed(CyborgError):
    """A command of the command line gave up; the sentence says what to do next."""

    sentence = "{reason}"
