# SPDX-License-Identifier: Apache-2.0
"""Judge from where this process takes its code: the agent must not be able to write there."""

import os
import pwd
import site
import stat
import sys
from collections.abc import Set
from typing import Final

from cyborg import exception
from cyborg.drivers.files import host_errors, resolve

#: The extended attribute of a file with an access control list, acl(5).
_ACL: Final = "system.posix_acl_access"
_ACTION: Final = "starting with capabilities"


def check(agent: pwd.struct_passwd) -> None:
    """Raise exception.HostError if the user of the agent could change what this process runs.

    Python runs code of the packages in a home directory before this function can judge it: the
    units and this function both have to keep it away.
    """
    if site.ENABLE_USER_SITE:
        raise exception.HostError(
            action=_ACTION,
            reason=f"Python takes packages from {site.getusersitepackages()}; set the environment "
            "variable PYTHONNOUSERSITE=1",
        )
    groups = frozenset(os.getgrouplist(agent.pw_name, agent.pw_gid))
    for path in (sys.executable, sys.argv[0], *sys.path):
        place = os.path.abspath(path)
        with host_errors(f"checking the owner of {place}"):
            changeable = _changeable(place, agent.pw_uid, groups)
        if changeable is not None:
            raise exception.HostError(
                action=_ACTION,
                reason=f"the user {agent.pw_name} can change {changeable}, and Python takes code "
                f"from {place}",
            )


def _changeable(path: str, user: int, groups: Set[int]) -> str | None:
    """Return the file or directory by which a user can change ``path``, or None.

    A directory with the sticky bit protects what others have in it, but not the place of something
    that does not exist yet.
    """
    steps = ["/"]

    def link(step: str) -> str | None:
        steps.append(step)
        return os.readlink(step) if os.path.islink(step) else None

    resolve(path, link)
    last = "/"
    for step in steps:
        try:
            status = os.lstat(step)
        except FileNotFoundError:
            return last if _writable(os.lstat(last), last, user, groups) else None
        if status.st_uid == user:
            return step
        if not stat.S_ISLNK(status.st_mode):
            protected = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            if (not protected or step == path) and _writable(status, step, user, groups):
                return step
            last = step
    return None


def _writable(status: os.stat_result, path: str, user: int, groups: Set[int]) -> bool:
    """Return whether a user can write; an access control list with write permission may name it."""
    if status.st_uid == user or status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    return status.st_gid in groups or _ACL in os.listxattr(path)
