# SPDX-License-Identifier: Apache-2.0
"""Authorization: the only place that evaluates policy rules."""

import time
from collections.abc import Callable
from typing import Any, Final

from oslo_config import cfg
from oslo_policy import policy

from cyborg import exception, policies
from cyborg.context import RequestContext

_ALL_PROJECTS: Final = "cyborg:arq:all_projects"
#: A project and user other than the caller's; no Keystone ID contains this character.
_OTHER_PROJECT: Final = {"project_id": "*", "user_id": "*"}
#: How long decisions are cached, in seconds. Without the cache, oslo.policy checks its files and
#: inspects the code of its checks each time, which takes a fifth of the time of a small request.
_CACHE_SECONDS: Final = 1.0


class Policy:
    """oslo.policy with the rules of this service; a changed policy file is read again.

    A decision is cached for one second, for the same rule and for callers who are equal in every
    value that a rule can check. ``clock`` is monotonic, in seconds. Raises ConfigError when the
    policy file cannot be used.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._since = clock()
        self._decisions: dict[tuple[Any, ...], bool | None] = {}
        self.enforcer = policy.Enforcer(conf)
        self.enforcer.register_defaults(policies.list_rules())
        try:
            self.enforcer.load_rules()
        except (AttributeError, ValueError, RuntimeError, cfg.Error) as fault:
            # oslo.policy fails with these errors for a file that does not map names to rules.
            reason = " ".join(str(fault).split())
            raise exception.ConfigError(
                reason=f"[oslo_policy] policy_file = {conf.oslo_policy.policy_file} cannot be "
                f"used: {reason}"
            ) from fault

    def authorize(self, context: RequestContext, rule: str) -> bool:
        """Return whether ``rule`` grants the caller the resources of every project.

        False: the rule grants the resources of the caller's own project only. True: the rule also
        passes for another project, or the rule ``cyborg:arq:all_projects`` passes. Raises Forbidden
        when the rule does not pass, and for tokens that are not project-scoped.
        """
        creds = dict(context.to_policy_values())
        now = self._clock()
        if now - self._since > _CACHE_SECONDS:
            self._decisions, self._since = {}, now
        # oslo.context gives roles as a list.
        values = (tuple(value) if isinstance(value, list) else value for value in creds.values())
        key = (rule, *creds, *values)
        # Another thread can replace the cache meanwhile.
        decisions = self._decisions
        if key not in decisions:
            decisions[key] = self._decide(rule, creds)
        all_projects = decisions[key]
        if all_projects is None:
            raise exception.Forbidden(reason=f"Policy does not allow {rule} to be performed.")
        return all_projects

    def allows(self, context: RequestContext, rule: str) -> bool:
        """Return whether ``rule`` passes for the caller's own project."""
        try:
            self.authorize(context, rule)
        except exception.Forbidden:
            return False
        return True

    def _decide(self, rule: str, creds: dict[str, Any]) -> bool | None:
        """Return the result of ``authorize``, or None when the rule does not pass."""
        own = {"project_id": creds["project_id"], "user_id": creds["user_id"]}
        if not creds["project_id"] or not self.enforcer.authorize(rule, own, creds):
            return None
        return bool(
            self.enforcer.authorize(rule, _OTHER_PROJECT, creds)
            or self.enforcer.authorize(_ALL_PROJECTS, own, creds)
        )
