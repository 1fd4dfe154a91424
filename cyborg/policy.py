# SPDX-License-Identifier: Apache-2.0
"""The one place that decides who may do what, and on whose things."""

import time
from collections.abc import Callable
from typing import Any, Final

from oslo_config import cfg
from oslo_policy import policy

from cyborg import exception, policies
from cyborg.context import RequestContext
from cyborg.policies import arqs

#: Stands for somebody else's project and user; no Keystone id contains this character.
_ELSEWHERE: Final = {"project_id": "*", "user_id": "*"}
#: How long a decision is remembered, in seconds. oslo.policy looks for changed files and inspects
#: the code of its checks each time, which takes a fifth of a small request.
_REMEMBERED: Final = 1.0


class Policy:
    """oslo.policy with this service's rules; the policy file is read again when it changes.

    A decision holds for a second: for the same rule, and a caller who is the same in every word
    that a rule may ask for. ``clock`` is monotonic, in seconds. Raises ConfigError when the file
    cannot be used.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._since = clock()
        self._known: dict[tuple[Any, ...], bool | None] = {}
        self.enforcer = policy.Enforcer(conf)
        self.enforcer.register_defaults(policies.list_rules())
        try:
            self.enforcer.load_rules()
        except (AttributeError, ValueError, RuntimeError, cfg.Error) as fault:
            # A file that is no map of names to rules fails in the middle of oslo.policy.
            said = " ".join(str(fault).split())
            raise exception.ConfigError(
                reason=f"[oslo_policy] policy_file = {conf.oslo_policy.policy_file} cannot be "
                f"used: {said}"
            ) from fault

    def authorize(self, context: RequestContext, rule: str) -> bool:
        """Whether the caller may follow ``rule`` on the things of every project.

        False means: on those of the caller's own project only. True is learned from asking for
        somebody else's things, and from the rule ``cyborg:arq:all_projects``. Raises Forbidden
        when nothing is granted, and for tokens that are not of a project.
        """
        creds = dict(context.to_policy_values())
        now = self._clock()
        if now - self._since > _REMEMBERED:
            self._known, self._since = {}, now
        key = (rule, *((name, _fixed(creds[name])) for name in sorted(creds)))
        known = self._known
        if key not in known:
            known[key] = self._decide(rule, creds)
        everywhere = known[key]
        if everywhere is None:
            raise exception.Forbidden(reason=f"Policy does not allow {rule} to be performed.")
        return everywhere

    def _decide(self, rule: str, creds: dict[str, Any]) -> bool | None:
        """As ``authorize``; None when nothing is granted."""
        own = {"project_id": creds["project_id"], "user_id": creds["user_id"]}
        if not creds["project_id"] or not self.enforcer.authorize(rule, own, creds):
            return None
        return bool(
            self.enforcer.authorize(rule, _ELSEWHERE, creds)
            or self.enforcer.authorize(arqs.ALL_PROJECTS, own, creds)
        )


def _fixed(value: Any) -> Any:
    """A list (of roles) as something that can be a key."""
    return tuple(value) if isinstance(value, list) else value


def get_enforcer() -> policy.Enforcer:
    """For oslo.policy's tools, which read the configuration themselves (an entry point)."""
    return Policy(cfg.CONF).enforcer
