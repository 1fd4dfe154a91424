# SPDX-License-Identifier: Apache-2.0
"""Every error class of the service. Code raises an error where it detects the fault.

Each class has the HTTP status that the REST API answers with, and a sentence with placeholders.
The fields are keyword arguments with plain JSON values, so an error crosses the message bus as
data: ``cyborg.rpc.endpoint`` rebuilds it from its ``kind``, with the same text on the other side.
Kinds and field names are therefore part of the RPC interface, class names are not. Every class
declares a kind of its own.
"""

from typing import Any, ClassVar


class CyborgError(Exception):
    """Base class of all errors that this service raises on purpose.

    ``fields`` holds the keyword arguments as given; ``str()`` is the complete sentence. The field
    ``public`` replaces that sentence for callers of the API if the sentence names something that
    they must not see (hosts, accounts).
    """

    kind: ClassVar[str] = "CyborgError"
    status: ClassVar[int] = 500
    sentence: ClassVar[str] = "An unexpected error occurred; the log has the details."

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(self.sentence.format(**fields))

    @property
    def public(self) -> str:
        """Return the sentence for callers of the API."""
        return str(self.fields.get("public") or self)


class Invalid(CyborgError):
    """A value that the caller sent is invalid: ``field`` names it, ``reason`` tells why."""

    kind = "Invalid"
    status = 400
    sentence = "Invalid value for {field}: {reason}"


class InstanceAlreadyBound(CyborgError):
    """A bind names an instance that other accelerator requests are bound to."""

    kind = "InstanceAlreadyBound"
    status = 400
    sentence = (
        "Instance {instance} already has bound accelerator requests. Delete them before you bind "
        "others."
    )


class Forbidden(CyborgError):
    """The caller may see the object but is not allowed to carry out this operation on it."""

    kind = "Forbidden"
    status = 403
    sentence = "{reason}"


class ServiceTokenRequired(Forbidden):
    """The operation is reserved for Nova: it needs a service token besides the user's token."""

    kind = "ServiceTokenRequired"
    sentence = (
        "{action} requires a service token (X-Service-Token) with one of the service roles. "
        "Use the Compute API to attach or remove accelerators."
    )


class BoundArqs(Forbidden):
    """Only the Compute service may delete bound accelerator requests."""

    kind = "BoundArqs"
    sentence = (
        "Accelerator requests {uuids} are bound to an instance. Delete the instance with the "
        "Compute API, or send a service token."
    )


class OverLimit(Forbidden):
    """The request would exceed a limit; ``usage`` is what counts towards it before the request.

    ``remedy`` tells what to do next.
    """

    kind = "OverLimit"
    sentence = (
        "The request needs {requested} {resource}, but the limit is {limit} and {usage} are in "
        "use. {remedy}"
    )


class NotFound(CyborgError):
    """The object does not exist, or the caller is not allowed to see it."""

    kind = "NotFound"
    status = 404
    sentence = "{noun} {key} could not be found."


class NotAcceptable(CyborgError):
    """The request uses something that the requested microversion does not have."""

    kind = "NotAcceptable"
    status = 406
    sentence = "{reason}"


class Conflict(CyborgError):
    """The request conflicts with the current state; nothing was changed."""

    kind = "Conflict"
    status = 409
    sentence = "{reason}"


class Duplicate(Conflict):
    """A value that must be unique is already in use."""

    kind = "Duplicate"
    sentence = "{noun} with {field} {value} already exists. Choose another {field}."


class ProfileInUse(Conflict):
    """A device profile cannot be deleted while accelerator requests refer to it."""

    kind = "ProfileInUse"
    sentence = "Device profile {name} is used by {count} accelerator request(s). Delete them first."


class BadState(Conflict):
    """The state of an accelerator request does not allow the requested transition."""

    kind = "BadState"
    sentence = (
        "Accelerator request {uuid} is {state}; it cannot {event} in this state. Show the "
        "accelerator request before you repeat the operation."
    )


class NoFreeHandle(Conflict):
    """The resource provider has too few free units for this bind; ``requested`` is their number.

    ``pools``, if given, are the pools of the device that have no room for them, with amounts.
    """

    kind = "NoFreeHandle"
    sentence = (
        "Resource provider {provider} has too few free attach handles for {requested} accelerator "
        "request(s). Use another resource provider, or delete instances that hold its units."
    )

    def __str__(self) -> str:
        """Return the sentence; with ``pools``, it names what is used up of the device instead."""
        if "pools" not in self.fields:
            return super().__str__()
        return (
            "Resource provider {provider} has no capacity left for {requested} accelerator "
            "request(s): its device shares {pools}. Use another resource provider, or delete "
            "instances that hold units of the device."
        ).format(**self.fields)


class DeviceUnavailable(Conflict):
    """No unit of the device may be given out now; ``status`` has the reason."""

    kind = "DeviceUnavailable"
    sentence = (
        "Device {uuid} of resource provider {provider} cannot be bound: it is {status}. Use "
        "another device, or correct the state of this one."
    )


class DeviceInUse(Conflict):
    """The operation is not allowed while accelerator requests hold units of the device."""

    kind = "DeviceInUse"
    sentence = (
        "Accelerator requests {arqs} hold units of device {uuid}. Delete the instances that use "
        "them, or detach the accelerators, and repeat the request."
    )


class CannotProgram(Conflict):
    """The driver of this deployable does not support programming."""

    kind = "CannotProgram"
    sentence = (
        "Deployable {uuid} cannot be programmed: driver {driver} does not support programming. "
        "Use a deployable of another driver."
    )


class CannotAttach(Conflict):
    """The current state of an instance does not allow to attach or detach accelerators."""

    kind = "CannotAttach"
    sentence = "Accelerators of instance {instance} cannot be changed: {reason}."


class OperationTaken(Conflict):
    """The operation id that a client chose belongs to a different request."""

    kind = "OperationTaken"
    sentence = (
        "Operation id {uuid} is already in use by another request. Repeat the request with a new "
        "UUID."
    )


class StaleEpoch(Conflict):
    """A newer agent has replaced this one on its host; messages of the older one are ignored."""

    kind = "StaleEpoch"
    sentence = (
        "A newer {binary} serves {host} (epoch {current}); the process with epoch {epoch} is "
        "replaced and its message is ignored. If both processes run at the same time, give each "
        "host its own name ([DEFAULT] host) and stop the other process."
    )


class Locked(CyborgError):
    """Some accelerator requests of the instance are not resolved yet."""

    kind = "Locked"
    status = 423
    sentence = (
        "Accelerator requests of instance {instance} are not resolved yet. Repeat the request "
        "later."
    )


class Unavailable(CyborgError):
    """A peer cannot be reached now; nothing was changed, and a later repetition is safe."""

    kind = "Unavailable"
    status = 503
    sentence = "{peer} is not available: {reason}"


class DatabaseUnavailable(Unavailable):
    """The database of one process cannot be used; other processes may reach another node of it."""

    kind = "DatabaseUnavailable"


class OutcomeUnknown(Unavailable):
    """No answer arrived in time: the change may have happened or not; a repetition is safe."""

    kind = "OutcomeUnknown"
    sentence = "{peer} did not answer in time; outcome unknown, repeating is safe."


class NoAnswer(Unavailable):
    """A peer did not answer in time, although the broker accepted the message for it."""

    kind = "NoAnswer"
    sentence = "{peer} is not available: no answer"


class UnknownVerb(Unavailable):
    """A peer runs another release, which does not have this verb; nothing was changed."""

    kind = "UnknownVerb"
    sentence = (
        "{peer} is not available: it is of another release and does not know {verb}. Upgrade it "
        "to the release of this process."
    )


class PinnedVersion(UnknownVerb):
    """[upgrade_levels] does not allow this process to send this version; nothing was changed."""

    kind = "PinnedVersion"
    sentence = (
        "{verb} needs RPC version {needed} of the {peer}, but the option [upgrade_levels] {peer} "
        "limits this process to {pin}. Upgrade every {peer}, then remove that option."
    )


class PeerFault(CyborgError):
    """Another process of this service failed unexpectedly; its log has the details."""

    kind = "PeerFault"
    sentence = "{peer} failed unexpectedly; its log has the details for request {request_id}."


class DriverFailed(CyborgError):
    """A driver raised an error, or its answer cannot be used."""

    kind = "DriverFailed"
    sentence = "Driver {driver} failed in {verb}: {reason}"


class DriverCannot(CyborgError):
    """The driver does not support this verb."""

    kind = "DriverCannot"
    status = 409
    sentence = "Driver {driver} does not support {verb}."


class ImageRefused(CyborgError):
    """An image cannot be used, or the received data is not what Glance announced."""

    kind = "ImageRefused"
    sentence = "Image {image} cannot be loaded: {reason}"


class HostError(CyborgError):
    """Reading from the local host, or running a command there, failed."""

    kind = "HostError"
    sentence = "{action} failed: {reason}"


class ConfigError(CyborgError):
    """The configuration is invalid; the sentence names the option and its value."""

    kind = "ConfigError"
    sentence = "{reason}"


class SchemaError(CyborgError):
    """This command cannot work on the database schema that it found."""

    kind = "SchemaError"
    sentence = "{reason}"
