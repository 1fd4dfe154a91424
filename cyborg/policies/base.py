# SPDX-License-Identifier: Apache-2.0
"""The persona rules to which all other rules refer, under the names that policy files use.

While ``[oslo_policy] enforce_new_defaults`` is False, oslo.policy combines each rule with its
deprecated check by "or". Any project-scoped token then passes the persona rules of readers and
managers, for the objects of its project.
"""

from oslo_policy import policy

_REASON = "Rules now name a persona (admin, manager, member, reader, service) of the project"
OWNER_SINCE = "WALLABY"
#: The release in which most rules moved to personas.
_PERSONAS_SINCE = "2026.1"

ADMIN = "rule:admin_api"
MEMBER_OR_ADMIN = "rule:project_member_or_admin"
MEMBER_OR_SERVICE = "rule:project_member_or_service"
READER_OR_ADMIN = "rule:project_reader_or_admin"
SERVICE_OR_ADMIN = "rule:project_service_api or rule:admin_api"
READER_OR_SERVICE = "rule:project_reader_or_service"
MANAGER_OR_ADMIN = "rule:project_manager_or_admin"
OPERATOR = "rule:operator_api"
READER_OR_OPERATOR = "rule:project_reader_api or rule:operator_api"
MANAGER_OR_OPERATOR = "rule:project_manager_api or rule:operator_api"

_OWNER = policy.DeprecatedRule(
    name="rule:admin_or_owner",
    check_str="rule:admin_api or project_id:%(project_id)s",
    deprecated_reason=_REASON,
    deprecated_since=OWNER_SINCE,
)


def rule(
    name: str,
    check_str: str,
    description: str,
    *requests: str,
    older: str | None = None,
    since: str = _PERSONAS_SINCE,
) -> policy.DocumentedRuleDefault:
    """Return the rule that protects ``requests``, each of them a method and a path.

    ``older`` is the check of releases before ``since``; it is in force until new defaults are
    enforced.
    """
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=check_str,
        description=description,
        operations=[
            {"method": method, "path": path}
            for method, path in (request.split(" ", 1) for request in requests)
        ],
        scope_types=["project"],
        deprecated_rule=None
        if older is None
        else policy.DeprecatedRule(
            name=name, check_str=older, deprecated_reason=_REASON, deprecated_since=since
        ),
    )


def _persona(name: str, role: str) -> policy.RuleDefault:
    return policy.RuleDefault(
        name, f"role:{role} and project_id:%(project_id)s", f"A {role} of the project."
    )


def _either(name: str, check_str: str, description: str) -> policy.RuleDefault:
    return policy.RuleDefault(name, check_str, description, deprecated_rule=_OWNER)


def _retired(name: str, check_str: str, description: str) -> policy.RuleDefault:
    return policy.RuleDefault(
        name,
        check_str,
        description,
        deprecated_for_removal=True,
        deprecated_reason=_REASON,
        deprecated_since=OWNER_SINCE,
    )


RULES = [
    policy.RuleDefault("admin_api", "role:admin", "An administrator of the cloud."),
    policy.RuleDefault("service_api", "role:service", "Another OpenStack service."),
    policy.RuleDefault(
        "operator_api",
        "rule:admin_api or role:accelerator_operator",
        "An operator of accelerators: an administrator, or a user with the role "
        "accelerator_operator.",
    ),
    _persona("project_admin_api", "admin"),
    _persona("project_manager_api", "manager"),
    _persona("project_member_api", "member"),
    _persona("project_reader_api", "reader"),
    _persona("project_service_api", "service"),
    # These two have no deprecated check: it would let users with any role create ARQs.
    policy.RuleDefault(
        "project_member_or_admin",
        "rule:project_member_api or rule:admin_api",
        "A member of the project, or an administrator.",
    ),
    policy.RuleDefault(
        "project_member_or_service",
        "rule:project_member_api or rule:project_service_api",
        "A member of the project, or another service in its own project.",
    ),
    _either(
        "project_reader_or_admin",
        "rule:project_reader_api or rule:admin_api",
        "A reader of the project, or an administrator.",
    ),
    _either(
        "project_manager_or_admin",
        "rule:project_manager_api or rule:admin_api",
        "A manager of the project, or an administrator.",
    ),
    _either(
        "project_reader_or_service",
        "rule:project_reader_api or rule:admin_api or rule:project_service_api",
        "A reader of the project, an administrator, or another service in its own project.",
    ),
    # Policy files of earlier releases refer to these names.
    _retired("public_api", "is_public_api:True", "No longer used."),
    _retired("allow", "@", "Allows everyone. No longer used."),
    _retired("deny", "!", "Allows no one. No longer used."),
    _retired("default", "rule:admin_or_owner", "No longer used."),
    _retired("is_admin", "rule:admin_api", "Use admin_api."),
    _retired(
        "admin_or_owner",
        "rule:admin_api or project_id:%(project_id)s",
        "Use the rules that name a persona.",
    ),
    _retired(
        "admin_or_user",
        "rule:admin_api or user_id:%(user_id)s",
        "Use the rules that name a persona.",
    ),
]
