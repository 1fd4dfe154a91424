# SPDX-License-Identifier: Apache-2.0
"""The policy rules of all resources with their defaults and their descriptions."""

from itertools import chain

from oslo_policy import policy

from cyborg.policies import (
    arqs,
    attributes,
    backends,
    base,
    deployables,
    device_profiles,
    devices,
    drivers,
    events,
    hardware,
    instances,
    operations,
    services,
    usage,
)


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules (entry point ``oslo.policy.policies: cyborg.api``)."""
    return list(
        chain(
            base.RULES,
            device_profiles.RULES,
            arqs.RULES,
            devices.RULES,
            deployables.RULES,
            attributes.RULES,
            instances.RULES,
            services.RULES,
            backends.RULES,
            drivers.RULES,
            hardware.RULES,
            operations.RULES,
            events.RULES,
            usage.RULES,
        )
    )
