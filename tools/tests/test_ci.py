# SPDX-License-Identifier: Apache-2.0
"""What .ci/run runs, when it repeats a step, and what it keeps."""

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cyborg.tests.fixtures.waiting import eventually
from cyborg_tools.ci import __main__, changed, late, sample, selection
from cyborg_tools.ci.history import History
from cyborg_tools.ci.jobs import GATE, LONG, SEED, SERVERS, TURNS, Job
from cyborg_tools.ci.kept import LATE_TIMES, Runs, Verdict, Verdicts, environment_key
from cyborg_tools.ci.runner import Runner

ROOT = Path(__file__).parents[2]


class Repository:
    """A git repository with a commit for each call of ``commit``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.history = History(root)

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        command = ["git", "-C", str(self.root), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, *paths: str) -> str:
        for path in paths:
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(file.read_text() + "more\n" if file.exists() else "new\n")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def job(name: str = "job", *commands: Sequence[str], **fields: Any) -> Job:
    return Job(name, "a title", tuple(map(tuple, commands)), **fields)


def choose(repository: Repository, *jobs: Job, passed: dict[str, str]) -> dict[str, str]:
    """Return the reasons of the jobs that run; ``passed`` has the commits that passed them."""
    entries = {name: selection.Passed(commit, 1) for name, commit in passed.items()}
    choices = selection.choose(jobs, repository.history, entries)
    return {choice.job.name: choice.reason for choice in choices if choice.runs}


# Which jobs run.


def test_job_runs_if_its_subject_has_changed_since_it_passed(repository: Repository) -> None:
    passed = {"job": repository.commit("a/b.py"), "other": repository.git("rev-parse", "HEAD")}
    repository.commit("a/b.py", "ab/c.py")
    jobs = job(subjects=("a",)), job("other", subjects=("ab/c", "c.py"))
    reasons = choose(repository, *jobs, passed=passed)
    assert reasons == {"job": f"a/b.py has changed since {passed['job'][:12]} passed"}


@pytest.mark.parametrize("committed", [True, False])
def test_job_runs_for_a_file_that_is_not_committed(
    repository: Repository, *, committed: bool
) -> None:
    passed = {"job": repository.commit("a.py", "b.py")}
    (repository.root / ("a.py" if committed else "new.py")).write_text("changed\n")
    assert "job" in choose(repository, job(subjects=("a.py", "new.py")), passed=passed)


def test_recent_commits_decide_about_a_job_that_never_passed(repository: Repository) -> None:
    repository.commit("long/ago.py")
    for _ in range(50):
        repository.commit()
    repository.commit("recent.py")
    jobs = job("old", subjects=("long",)), job("new", subjects=("recent.py",))
    assert list(choose(repository, *jobs, passed={})) == ["new"]


@pytest.mark.parametrize("passed", [{}, {"job": "0" * 40}])
def test_job_runs_in_doubt(repository: Repository, passed: dict[str, str]) -> None:
    repository.commit("a.py")
    assert list(choose(repository, job(subjects=("b.py",)), passed=passed)) == ["job"]


def test_commit_of_another_branch_is_no_commit_that_passed(repository: Repository) -> None:
    repository.commit("a.py")
    repository.git("checkout", "--quiet", "-b", "branch")
    stray = repository.commit("b.py")
    repository.git("checkout", "--quiet", "main")
    assert "job" in choose(repository, job(subjects=("c.py",)), passed={"job": stray})


def test_tree_without_history_takes_all_jobs(tmp_path: Path) -> None:
    choices = selection.choose(LONG, History(tmp_path), {})
    assert all(choice.runs for choice in choices)


def test_each_long_job_has_its_turn_within_eight_commits(repository: Repository) -> None:
    passed = dict.fromkeys((job.name for job in LONG), repository.commit("unrelated.py"))
    ran = []
    for _ in range(TURNS):
        repository.commit("unrelated.py")
        names = list(choose(repository, *LONG, passed=passed))
        assert 1 <= len(names) <= 3
        ran += names
    assert sorted(ran) == sorted(job.name for job in LONG)


def test_file_of_commits_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    assert selection.read(tmp_path) == {}
    selection.write(tmp_path, "abc", {"one": 1.6, "two": 3})
    selection.write(tmp_path, "def", {"two": 4})
    assert selection.read(tmp_path) == {
        "one": selection.Passed("abc", 2),
        "two": selection.Passed("def", 4),
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"one": 1}', '{"one": {}}', "{", '{"one": {"commit": "a", "seconds": "long"}}'],
)
def test_damaged_file_of_commits_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / selection.PASSED).write_text(text)
    assert selection.read(tmp_path) == {}


def test_files_and_subjects_of_the_steps_exist() -> None:
    jobs = [*GATE, *LONG]
    assert len({job.name for job in jobs}) == len(jobs)
    words = [word for job in jobs for command in job.commands for word in command]
    named = {word.removeprefix("--ignore=") for word in words} | {
        path for job in LONG for path in job.subjects
    }
    missing = [word for word in named if "/" in word and not (ROOT / word).exists()]
    assert missing == []
    assert all(job.subjects and job.turn is not None for job in LONG)


# Steps.


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def printed() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture
def runner(tmp_path: Path, said: list[str], printed: io.BytesIO) -> Runner:
    return Runner(
        tmp_path,
        tmp_path / "logs",
        seed="seven",
        servers=["--mysql-url=x", "--rabbit-url=y"],
        say=said.append,
        output=printed,
    )


def shell(line: str) -> tuple[str, ...]:
    return ("sh", "-c", line)


def test_step_is_measured_and_its_tests_are_counted(runner: Runner, printed: io.BytesIO) -> None:
    lines = "echo '== 12 passed, 1 warning in 3 s =='; echo 'late: a.py::b'; echo '30 passed'"
    burn = f"{sys.executable} -c 'sum(range(3_000_000))'"
    ended = runner.run(job("step", shell(lines), shell(burn)))
    assert ended.verdict.passed
    assert ended.verdict.tests == 42
    assert ended.verdict.cpu > 0
    assert ended.late == ("a.py::b",)
    assert printed.getvalue() == ended.log.read_bytes()


def test_commands_after_a_failed_one_are_not_run(
    runner: Runner, said: list[str], printed: io.BytesIO
) -> None:
    ended = runner.run(job("step", shell("exit 3"), shell("echo second")))
    assert not ended.verdict.passed
    assert said == ["step: sh -c exit 3 ended with status 3"]
    assert printed.getvalue() == b""


def test_step_whose_environment_breaks_runs_once_more(
    runner: Runner, tmp_path: Path, said: list[str]
) -> None:
    once = shell(f"test -e {tmp_path}/ran || {{ touch {tmp_path}/ran; exit 75; }}")
    assert runner.run(job("step", once)).verdict.passed
    assert said == ["step: its environment broke; it runs once more"]
    assert not runner.run(job("step", shell("exit 75"))).verdict.passed


def test_declared_status_is_no_failure(runner: Runner) -> None:
    assert runner.run(job("step", shell("exit 77"), statuses=(77,))).verdict.passed


def test_commands_get_seed_servers_and_variables(runner: Runner, printed: io.BytesIO) -> None:
    command = (*shell('echo "$@" "$ONE"'), "sh", "--seed", SEED, SERVERS)
    runner.run(job("step", command, variables=(("ONE", "1"),)))
    assert printed.getvalue() == b"--seed seven --mysql-url=x --rabbit-url=y 1\n"


def test_output_is_printed_when_it_comes(tmp_path: Path) -> None:
    """The command goes on only after its first line has been printed."""
    place = tmp_path / "printed"

    class Output(io.BytesIO):
        def write(self, data: Any) -> int:
            if b"first" in data:
                place.touch()
            return super().write(data)

    runner = Runner(
        tmp_path, tmp_path / "logs", seed="", servers=[], say=lambda _: None, output=Output()
    )
    line = f"echo first; until test -e {place}; do sleep 0.01; done; echo second"
    assert runner.run(job("step", shell(line))).verdict.passed


def test_nothing_that_a_step_started_outlives_it(runner: Runner, tmp_path: Path) -> None:
    child = tmp_path / "child"
    line = f"sleep 1000 > /dev/null 2>&1 & echo $! > {child}"
    runner.run(job("step", shell(line)))
    pid = child.read_text().strip()
    eventually(lambda: not _runs(pid), "the end of the child")


def test_step_that_never_ends_is_ended(tmp_path: Path, said: list[str]) -> None:
    runner = Runner(tmp_path, tmp_path, seed="", servers=[], say=said.append, limit=0.2)
    assert not runner.run(job("step", ("sleep", "1000"))).verdict.passed
    assert said == ["step: sleep 1000 ended with status -9"]


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        # The second: it ended after the file was opened.
        return False
    return state != "Z"


# What is kept.


def verdict(*, passed: bool = True) -> Verdict:
    return Verdict(passed=passed, wall=2.0, cpu=1.0, tests=3)


def test_repeated_run_skips_what_passed_before_the_refusal(tmp_path: Path) -> None:
    Verdicts(tmp_path, "tree").keep("lint", verdict())
    assert Verdicts(tmp_path, "tree").get("lint") == verdict()
    assert Verdicts(tmp_path, "tree").get("other") is None
    assert Verdicts(tmp_path, "another tree").get("lint") is None
    assert Verdicts(tmp_path, None).get("lint") is None


def test_run_without_failure_leaves_no_verdict(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path, "tree")
    verdicts.keep("lint", verdict())
    verdicts.forget()
    assert Verdicts(tmp_path, "tree").get("lint") is None


def test_verdicts_of_files_that_are_not_committed_are_not_kept(tmp_path: Path) -> None:
    Verdicts(tmp_path, None).keep("lint", verdict())
    assert list(tmp_path.iterdir()) == []


def test_tree_with_changes_has_no_hash(repository: Repository) -> None:
    repository.commit("a.py")
    first = repository.history.tree()
    assert first is not None
    (repository.root / "a.py").write_text("changed\n")
    assert repository.history.tree() is None
    repository.commit("a.py")
    assert repository.history.tree() not in (None, first)


def test_environment_is_known_by_its_servers() -> None:
    assert environment_key(["--mysql-url=a"]) == environment_key(["--mysql-url=a"])
    assert environment_key(["--mysql-url=a"]) != environment_key(["--mysql-url=b"])


def test_test_that_is_late_again_and_again_is_named(tmp_path: Path) -> None:
    for _ in range(LATE_TIMES):
        assert Runs(tmp_path).often_late() == []
        Runs(tmp_path).add("abc", late=["a.py::b", "a.py::b"], mutants=[])
    Runs(tmp_path).add("abc", late=["a.py::c"], mutants=["all: 100.0 % of 8 killed; {}"])
    assert Runs(tmp_path).often_late() == ["a.py::b"]


# The whole run.


class Checkout:
    """A checkout with two steps of the gate, of which one fails at first, and one long job."""

    def __init__(self, place: Path) -> None:
        repository = Repository(place / "checkout")
        repository.commit("a.py")
        self.root = repository.root
        self.commit = repository.history.commit()
        (self.root / ".ci").mkdir()
        self._good = place / "good"

    def repair(self) -> None:
        self._good.touch()

    def run(self, *arguments: str, limit: float = __main__.LIMIT) -> int:
        gate: tuple[Job, ...] = (
            job("first", shell("echo 3 passed")),
            job("second", shell(f"test -e {self._good} && echo 4 passed")),
        )
        long = (job("long", shell("echo 5 passed"), subjects=("b.py",), turn=3),)
        return __main__.main(arguments, root=self.root, gate=gate, long=long, limit=limit)


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Checkout:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Checkout(tmp_path)


def test_refused_run_is_repeated_from_the_refusal(
    checkout: Checkout, capfd: pytest.CaptureFixture[str]
) -> None:
    assert checkout.run() == 1
    assert "second failed; its output is in" in capfd.readouterr().err
    checkout.repair()
    assert checkout.run() == 0
    said = capfd.readouterr()
    assert "== first: a title\npassed before the refusal of the last run: 3 tests" in said.out
    assert said.out.endswith("\n12 passed, 0 failed\n")
    assert checkout.run() == 0
    assert "passed before" not in capfd.readouterr().out


@pytest.mark.parametrize("which", [("--full",), ("--only", "long", "--only", "second")])
def test_long_job_that_passed_is_entered_with_the_commit(
    checkout: Checkout, which: Sequence[str]
) -> None:
    assert checkout.run(*which) == 1
    assert selection.read(checkout.root) == {}
    checkout.repair()
    assert checkout.run(*which) == 0
    assert selection.read(checkout.root)["long"].commit == checkout.commit


def test_files_that_are_not_committed_pass_for_no_commit(checkout: Checkout) -> None:
    checkout.repair()
    (checkout.root / "a.py").write_text("changed\n")
    assert checkout.run("--full") == 0
    assert selection.read(checkout.root) == {}


def test_plan_says_why_and_runs_nothing(
    checkout: Checkout, capfd: pytest.CaptureFixture[str]
) -> None:
    assert checkout.run("--plan") == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert "long           runs: the history does not say what has changed" in said.err


@pytest.mark.parametrize("seconds", [None, 400])
def test_long_job_that_may_take_too_long_is_put_off_and_stays_due(
    checkout: Checkout, capfd: pytest.CaptureFixture[str], seconds: int | None
) -> None:
    checkout.repair()
    if seconds is not None:
        selection.write(checkout.root, "0" * 40, {"long": seconds})
    before = selection.read(checkout.root)
    assert checkout.run(limit=700) == 0
    said = capfd.readouterr()
    expected = 2 * seconds if seconds else 1200
    assert f"long is put off: it may take {expected} s, and a run 700 s" in said.err
    assert said.out.endswith("\n7 passed, 0 failed\n")
    assert selection.read(checkout.root) == before
    assert checkout.run("--plan", limit=700) == 0
    assert "long           runs" in capfd.readouterr().err


@pytest.mark.parametrize("which", ["--full", "--only=long"])
def test_long_job_that_is_asked_for_is_not_put_off(checkout: Checkout, which: str) -> None:
    checkout.repair()
    assert checkout.run(which, limit=0) == 0
    assert "long" in selection.read(checkout.root)


# Late tests, and tests of what has changed.


def failures(path: Path, *, failed: Sequence[str], late: Sequence[str]) -> Path:
    path.write_text(json.dumps({"failed": [*failed, *late], "late": late}))
    return path


def test_only_late_tests_are_repeated(tmp_path: Path) -> None:
    file = tmp_path / "failures"
    assert late.repeatable(file) == []
    tests = ["cyborg/tests/functional/life/test_a.py::test_b[1]", "tools/tests/test_c.py::test_d"]
    assert late.repeatable(failures(file, failed=[], late=tests)) == tests
    assert late.repeatable(failures(file, failed=["a.py::b"], late=tests)) == []


@pytest.mark.parametrize("package", ["races", "crash", "machine", "rules"])
def test_late_test_about_time_is_a_failure(tmp_path: Path, package: str) -> None:
    name = f"cyborg/tests/functional/{package}/test_a.py::test_b"
    assert late.repeatable(failures(tmp_path / "f", failed=[], late=[name])) == []


def test_many_late_tests_are_a_failure(tmp_path: Path) -> None:
    names = [f"a.py::test_{number}" for number in range(11)]
    assert late.repeatable(failures(tmp_path / "f", failed=[], late=names)) == []


def test_tests_of_a_change_are_those_that_import_it(tmp_path: Path) -> None:
    place = tmp_path / "cyborg/tests/unit"
    place.mkdir(parents=True)
    texts = {
        "test_a.py": "from cyborg.conductor import leases\n",
        "test_b.py": "from cyborg.conductor.leases import Lease\n",
        "test_c.py": "import cyborg.conductor.leases as other\n",
        "test_d.py": "from cyborg.conductor import (\n    jobs,\n    leases,\n)\n",
        "test_e.py": "from cyborg.conductor import jobs\n",
        "test_f.py": "",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    paths = ["cyborg/conductor/leases.py", "cyborg/tests/unit/test_f.py", "README.rst"]
    found = [Path(path).name for path in changed.tests_of(tmp_path, paths)]
    assert found == ["test_a.py", "test_b.py", "test_c.py", "test_d.py", "test_f.py"]


def test_module_of_the_programs_is_found_without_its_directory() -> None:
    assert changed.tests_of(ROOT, ["tools/cyborg_tools/ci/late.py"]) == ["tools/tests/test_ci.py"]
    tests = changed.tests_of(ROOT, ["client/cyborg_cli/faults.py"])
    assert "cyborg/tests/unit/cli/test_malformed.py" in tests


def test_work_on_a_branch_begins_where_it_left_main(repository: Repository) -> None:
    first = repository.commit("a.py")
    repository.commit("b.py")
    assert repository.history.base() == first
    left = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "--quiet", "-b", "branch")
    repository.commit("c.py")
    assert repository.history.base() == left
    assert repository.history.changed_since(left) == ["c.py"]


# The functional tests of the gate.

_NAMES = [f"life/test_{name}.py" for name in "abcdefghij"]
_FILES = [f"cyborg/tests/functional/{name}" for name in [*_NAMES, "races/test_a.py"]]


def left_out(repository: Repository, passed: str | None) -> set[str]:
    found = sample.left_out(repository.root, repository.history, passed)
    return {name.removeprefix("cyborg/tests/functional/") for name in found}


def test_successive_commits_take_all_functional_tests(repository: Repository) -> None:
    passed = repository.commit(*_FILES)
    left = []
    for _ in range(sample.SHARES):
        left.append(left_out(repository, passed))
        repository.commit("unrelated.py")
    assert [len(names) for names in left] == [8] * 5
    assert set.intersection(*left) == set()
    assert set.union(*left) == set(_NAMES)


@pytest.mark.parametrize("passed", [None, "0" * 40])
def test_gate_takes_all_functional_tests_that_never_passed(
    repository: Repository, passed: str | None
) -> None:
    repository.commit(*_FILES)
    assert left_out(repository, passed) == set()


def test_gate_takes_the_functional_tests_of_what_has_changed(repository: Repository) -> None:
    passed = repository.commit(*_FILES, "cyborg/tests/functional/audit/test_g.py")
    before = left_out(repository, passed)
    one, other = sorted(before)[:2]
    (repository.root / "cyborg/tests/functional" / one).write_text("import cyborg.agent.app\n")
    (repository.root / "cyborg/tests/functional" / other).write_text("import cyborg.agent.loop\n")
    passed = repository.commit()
    repository.commit("cyborg/agent/app.py")
    for _ in range(sample.SHARES - 2):
        repository.commit()
    assert before - left_out(repository, passed) == {one}
    passed = repository.commit("cyborg/tests/functional/life/http.py")
    assert left_out(repository, passed) != set()
    repository.commit("cyborg/tests/functional/life/http.py")
    assert left_out(repository, passed) <= {"audit/test_g.py"}


def test_change_of_a_tool_concerns_the_tests_of_all_tools(repository: Repository) -> None:
    tests = [f"tools/tests/test_{name}.py" for name in "abcde"]
    passed = repository.commit(*tests, "tools/tests/services/test_f.py")
    repository.commit("unrelated.py")
    names = left_out(repository, passed)
    assert len(names) == 4
    assert names < set(tests)
    repository.commit("tools/cyborg_tools/chaos/faults.py")
    assert left_out(repository, passed) == set()
