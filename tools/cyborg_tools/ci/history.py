# SPDX-License-Identifier: Apache-2.0
"""What git says about a checkout; a tree without git has no history."""

import subprocess
from collections.abc import Iterable
from pathlib import Path


class History:
    """The history of one checkout; None stands for what git does not know."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def commit(self) -> str | None:
        """Return the commit that is checked out."""
        return self._line("rev-parse", "HEAD")

    def number(self) -> int:
        """Return how many commits lead to this one; 0 without git."""
        return int(self._line("rev-list", "--count", "HEAD") or 0)

    def tree(self) -> str | None:
        """Return the hash of all files; None if one of them is not committed."""
        changes = self._ask("status", "--porcelain")
        return self._line("rev-parse", "HEAD^{tree}") if changes == "" else None

    def changed_since(self, commit: str) -> list[str] | None:
        """Return the paths that differ from an ancestor; None if it is none of this commit."""
        if self._ask("merge-base", "--is-ancestor", commit, "HEAD") is None:
            return None
        return self._paths("diff", "--name-only", "--no-renames", commit)

    def recently_changed(self, commits: int) -> list[str] | None:
        """Return the paths that the last commits changed; None if there are fewer of them."""
        if self.number() <= commits:
            return None
        return self.changed_since(f"HEAD~{commits}")

    def base(self) -> str | None:
        """Return the commit where this work left the main branch; on main, the last one."""
        for main in ("origin/main", "main"):
            found = self._line("merge-base", "HEAD", main)
            if found is not None:
                return found if found != self.commit() else self._line("rev-parse", "HEAD~1")
        return None

    def _paths(self, *words: str) -> list[str] | None:
        """Return the paths that git prints, and those that are not committed."""
        found = self._ask(*words)
        new = self._ask("ls-files", "--others", "--exclude-standard")
        return None if found is None or new is None else _lines([found, new])

    def _line(self, *words: str) -> str | None:
        answer = self._ask(*words)
        return answer.strip() or None if answer is not None else None

    def _ask(self, *words: str) -> str | None:
        try:
            ended = subprocess.run(
                ["git", "-C", str(self._root), *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            return None
        return ended.stdout if ended.returncode == 0 else None


def _lines(texts: Iterable[str]) -> list[str]:
    return sorted({line for text in texts for line in text.splitlines()})
