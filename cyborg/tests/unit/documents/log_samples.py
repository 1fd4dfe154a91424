# SPDX-License-Identifier: Apache-2.0
"""Example arguments for each INFO message of the service, by its format."""

from typing import Any, Final

_HOST: Final = "compute-1"
_ARQ: Final = "0f8c2b1e-6f5f-4a41-9d35-0d9a4f6c1a70"
_INSTANCE: Final = "5a3c9b60-7f0e-4f55-8c8e-2a8f6f0b7e11"
_DEVICE: Final = "c1b0d7de-52f2-4a0c-8f6a-3f2a0b1c9d42"
_PROVIDER: Final = "9e0d4d7b-8a3e-3f5c-b1a9-6d2f6f6a1c33"
_ROW: Final = "d0a5b8c2-6f1e-4a5b-93f4-7b1f8f5c2e90"
_OPERATION: Final = "77c0a5f4-2b9d-4d0e-9a57-1f0f4e8d6b22"
_DEPLOYABLE: Final = f"{_HOST}_0000:81:00.0"
_HANDLE: Final = "0000:81:00.1"
#: The host, the device and the id of the row of the handle.
_PLACE: Final = (_HOST, _DEVICE, 17)

#: A message without arguments has an empty tuple. Others of the same format share their example.
SAMPLES: Final[dict[str, tuple[Any, ...]]] = {
    "%d device(s) on %s wait to be enabled": (2, _HOST),
    "%s %s on host %s removed: %s": ("Device", _DEVICE, _HOST, "it had been lost for 7 days"),
    "%s answers over the message bus": ("conductor",),
    "%s cannot be reached over the message bus: %s": (
        "conductor",
        "no process listens on its queue",
    ),
    "%s has stopped": ("cyborg-agent",),
    "Deleted %d events of requests that were never bound": (1200,),
    "Deleted %d records of use past their retention": (1200,),
    "%s is %s; it finishes its current work first": ("cyborg-agent", "stopping"),
    "%s is running": ("cyborg-agent",),
    "%s of %s completed (request key %s)": ("prepare", _DEPLOYABLE, _OPERATION),
    "Request of %s refused: %s": ("192.0.2.17", "HTTP 400: Bad Request (Missing Host header)"),
    "%s of %s refused: its body has more than %d bytes": ("POST", "192.0.2.17", 1048576),
    "%s on host %s is %s by an operator%s": ("cyborg-agent", _HOST, "disabled", ": new fans"),
    "%s released: it has left quarantine": (
        f"Handle {_ROW} ({_HANDLE} of {_DEPLOYABLE}) of device {_DEVICE} on host {_HOST}",
    ),
    "%s cleaned: %s": (
        f"Handle {_ROW} ({_HANDLE} of {_DEPLOYABLE}) of device {_DEVICE} on host {_HOST}",
        "function reset, NVMe erase",
    ),
    "%s %s: %s in %d ms%s": ("POST", "/v2/device_profiles", 201, 14, ""),
    "Read the configuration files again; debug is %s": ("on",),
    "ARQ %s %s instance %s on host %s (device %s, handle %s)": (
        *(_ARQ, "prepared for", _INSTANCE),
        *_PLACE,
    ),
    "ARQ %s bound to instance %s on host %s (device %s, handle %s)": (_ARQ, _INSTANCE, *_PLACE),
    "ARQ %s is being prepared for instance %s on host %s (device %s, handle %s)": (
        *(_ARQ, _INSTANCE),
        *_PLACE,
    ),
    "Another conductor has taken over work %s (%s)": (_OPERATION, "prepare"),
    "Audit finding on %s %s repaired (%s): %s": (
        *("handle", _ROW, "release-handle"),
        "It is to be released, but there is no work for it.",
    ),
    "Card %s of driver %s has layout %s now": ("0000:81:00.0", "generic_driver", "vfs=4"),
    "Device %s of driver %s has recovered": ("0000:3b:00.0", "nvidia_gpu_driver"),
    "Clean step %s of handle %s of deployable %s completed (request key %s)": (
        *("secure erase", _HANDLE),
        *(_DEPLOYABLE, _OPERATION),
    ),
    "Compute of host %s found in Placement as %s": (_HOST, "compute-1.example.org"),
    "Conductor reachable again: host %s is scanned and compared completely": (_HOST,),
    "Created provider %s (%s) in Placement": (_DEPLOYABLE, _PROVIDER),
    "Deleted %d accelerator request(s) that were not bound since %s": (
        312,
        "2026-11-22 13:05:00",
    ),
    "Deleted history past its retention: %s": ("2001 events, 1 instances",),
    "Deleted provider %s (%s) from Placement": (_DEPLOYABLE, _PROVIDER),
    "Device %s on %s: %s": (_DEVICE, _HOST, "discovered"),
    "Device %s on host %s: %s by an operator": (_DEVICE, _HOST, "maintaining"),
    "Device %s on host %s: %s, before %s%s": (_DEVICE, _HOST, "health ok", "drain", ""),
    "Device %s on host %s: an operator ordered the removal of %s": (
        *(_DEVICE, _HOST),
        "its lost parts",
    ),
    "Driver %s on host %s: %s: %s": (
        *("card_driver", _HOST, "health ok"),
        "All 8 devices of driver card_driver have this health",
    ),
    "Driver %s failed to load: %s": ("generic_driver", "[generic_driver] backends is not set"),
    "Driver %s loaded": ("pci_driver",),
    "Driver %s unloaded": ("pci_driver",),
    "Drivers %s have read their files again": ("generic_driver, pci_driver",),
    "Host %s is renamed to %s, its provider's name in Placement": (_HOST, "compute-1.example.org"),
    "Host %s removed with %d device(s)": (_HOST, 2),
    "Instance %s on host %s is rebooted hard: %s": (
        *(_INSTANCE, _HOST),
        "It runs without a unit that is bound to it.",
    ),
    "Instance %s has lost %d attached accelerator(s)": (_INSTANCE, 1),
    "Listening on %s:%s": ("192.0.2.10", 6666),
    "Metrics are available at %s": ("http://192.0.2.10:9101/metrics",),
    "Notifications are disabled: removed %d events that were not sent": (12,),
    "Operation %s on %s: %s%s": (_OPERATION, _HOST, "succeeded", ""),
    "Paste file %s defines the filters": ("/etc/cyborg/api-paste.ini",),
    "Periodic task %s succeeds again": ("heartbeat",),
    "Privileged action %s": ("SetVfs(function=0000:81:00.0, count=4)",),
    "Provider %s is as desired in Placement": (_DEPLOYABLE,),
    "Repair (%s) of handle %s of deployable %s %s: %s": (
        *("prepare", _HANDLE, _DEPLOYABLE, "completed"),
        "a guest has it",
    ),
    "Repair (%s) of handle %s of deployable %s skipped: "
    "the handle has changed since it was compared": ("prepare", _HANDLE, _DEPLOYABLE),
    "Reported %d device(s) of host %s": (2, _HOST),
    "Restored name of provider %s in Placement: %s": (_PROVIDER, _DEPLOYABLE),
    "Set-up of device %s on host %s has ended: the device is %s%s": (
        *(_DEVICE, _HOST),
        *("enabled", ""),
    ),
    "State directory %s can be written again": ("/var/lib/cyborg",),
    "The database works again: this conductor receives its share of requests again": (),
    "The message bus works again (%s)": ("RPC sender",),
    "Usage notifications are off: [oslo_messaging_notifications] driver is not set or is noop; "
    "conductors still get the usage for their metrics": (),
}
