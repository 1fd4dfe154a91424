# SPDX-License-Identifier: Apache-2.0
"""The one place that decides who may do what, and on whose things."""

from typing import Final

from oslo_config import cfg
from oslo_policy import policy

from cyborg import exception, policies
from cyborg.context import RequestContext
from cyborg.policies import arqs

#: Stands for somebody else's project and user; no Keystone id contains this character.
_ELSEWHERE: Final = {"project_id": "*", "user_id": "*"}


class Policy:
    """oslo.policy with this service's rules; the policy file is read again when it changes.

    Raises ConfigError when the file cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
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
        own = {"project_id": context.project_id, "user_id": context.user_id}
        if not context.project_id or not self.enforcer.authorize(rule, own, creds):
            raise exception.Forbidden(reason=f"Policy does not allow {rule} to be performed.")
        return bool(
            self.enforcer.authorize(rule, _ELSEWHERE, creds)
            or self.enforcer.authorize(arqs.ALL_PROJECTS, own, creds)
        )


def get_enforcer() -> policy.Enforcer:
    """For oslo.policy's tools, which read the configuration themselves (an entry point)."""
    return Policy(cfg.CONF).enforcer
