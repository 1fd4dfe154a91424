# SPDX-License-Identifier: Apache-2.0
"""What tools/kernel decides without a guest: arguments, packages, the cache, machines."""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cyborg import exception
from cyborg_tools.kernel.__main__ import (
    NOT_POSSIBLE,
    ROOT,
    SHORT,
    SOURCES,
    default_cache,
    highest_status,
    parse,
    pytest_words,
    script,
    unavailable,
)
from cyborg_tools.kernel.build import BUILT, MODULE_SOURCES, Build, Parts, digest
from cyborg_tools.kernel.checkout import copied
from cyborg_tools.kernel.guest import Guest, Machine, Watch, machines
from cyborg_tools.kernel.packages import REQUIRED, NotPossibleHere, Packages, execute
from cyborg_tools.program import BrokenEnvironment

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
KERNEL = "6.12.9+deb12-amd64"
#: What apt knows, with a source of another project for the same release of Debian.
TARGETS = """\
http://other.example/debian/ bookworm main
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian/ bookworm-updates contrib
http://mirror.example/security/ bookworm-security main
http://flat.example/ ./
"""


class Commands:
    """A machine with these packages; it remembers the commands and does none of them."""

    def __init__(self, *installed: str) -> None:
        self.installed = list(installed)
        self.log: list[str] = []

    def __call__(self, *argv: str) -> str:
        words = [word for word in argv if word != "-o" and "::" not in word]
        self.log.append(" ".join(words))
        match words:
            case ["dpkg-query", *_]:
                return "".join(f"installed: {name}, \n" for name in self.installed)
            case ["apt-get", "indextargets", *_]:
                return TARGETS
            case ["apt-cache", "search", *_]:
                # The newest is not the last in the alphabet.
                return "".join(f"linux-image-6.12.{n}+deb12-amd64 - Linux\n" for n in (10, 8, 9))
            case ["apt-cache", "show", *_]:
                return "Version: 6.12-1\n"
            case ["qemu-system-x86_64", "--version"]:
                return "QEMU emulator version 10.0.2"
            case ["sh", "-c", script, tree, target] if "cpio" in script:
                Path(target).write_text(f"archive of {tree}")
            case ["make", *_]:
                [place] = [Path(word[2:]) for word in words if word.startswith("M=")]
                for name in BUILT:
                    (place / f"{name}.ko").write_text(name)
        return ""

    def count(self, command: str) -> int:
        """Return how often a command ran."""
        return sum(line.split()[0] == command for line in self.log)


def packages(directory: Path, commands: Commands, *, root: bool) -> Packages:
    return Packages(directory, commands, root=root, release=DEBIAN)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Our sources for guests, to be changed by tests."""
    place = tmp_path / "sources"
    (place / "simaccel").mkdir(parents=True)
    (place / "simaccel" / "simaccel.c").write_text("int one;")
    (place / "init").write_text("#!/bin/busybox sh\n")
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with an unpacked kernel and the source of its further modules."""
    place = tmp_path / "cache"
    add_kernel(place, KERNEL)
    return place


def add_kernel(cache: Path, release: str) -> None:
    (cache / f"kernel-{release}").mkdir(parents=True)
    for name in MODULE_SOURCES:
        (cache / f"source-{digest(release, *MODULE_SOURCES)}" / Path(name).name).mkdir(parents=True)


@pytest.fixture
def build(cache: Path, sources: Path) -> Callable[[Commands], Parts]:
    def build(commands: Commands) -> Parts:
        tools = packages(cache / "apt", commands, root=True)
        return Build(
            cache, tools, commands, sources=sources, report=lambda _title, _started: None
        ).parts()

    return build


def options(*arguments: str) -> argparse.Namespace:
    return parse(arguments, ["iommu-off", "pci"])


def test_without_a_verb_all_machines_are_tested() -> None:
    assert (options().verb, options().machine, options().words) == ("test", None, [])


def test_options_that_are_not_ours_go_to_pytest() -> None:
    chosen = options("test", "--machine", "pci", "-k", "vfio or mdev", "--", "-x")
    assert (chosen.machine, chosen.words) == ("pci", ["-k", "vfio or mdev", "-x"])


def test_short_run_has_the_ownership_check_and_a_whole_service_on_one_machine() -> None:
    chosen = options("test", "--short", "--", "-x")
    assert (chosen.machine, chosen.words) == ("pci", ["-x", *SHORT])
    assert pytest_words(chosen.words)[-2:] == list(SHORT)
    assert all((ROOT / name).is_file() for name in SHORT)


def test_guest_goes_on_while_pytest_waits_for_a_test_that_hangs() -> None:
    """pytest then says which test it was."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert options("test").timeout > 1.5 * settings["ini_options"]["timeout"]


def test_words_of_a_command_keep_its_options() -> None:
    chosen = options("run", "--timeout", "5", "lspci", "-nn", "--machine", "x")
    assert (chosen.machine, chosen.timeout) == ("pci", 5.0)
    assert chosen.words == ["lspci", "-nn", "--machine", "x"]
    assert options("run", "--", "lspci", "--", "-nn").words == ["lspci", "--", "-nn"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("build", "now"),
        ("test", "--machine", "toaster"),
        ("test", "--short", "--machine", "iommu-off"),
        ("run", "--short", "ls"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(*arguments)
    assert ended.value.code == 2


def test_cache_is_where_the_xdg_specification_says() -> None:
    assert default_cache({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/cyborg-kernel")
    assert options("--cache", "here", "build").cache == ROOT / "here"
    assert default_cache({}) == Path.home() / ".cache" / "cyborg-kernel"


def test_one_word_is_a_line_for_the_shell_and_several_are_quoted() -> None:
    assert script(["ls | wc -l"], ROOT).endswith("\nls | wc -l\n")
    assert script(["echo", "a  b", "$HOME"], ROOT).endswith("\necho 'a  b' '$HOME'\n")


def test_all_kernel_tests_run_unless_the_arguments_name_some() -> None:
    assert pytest_words(["-k", "vfio"])[-1] == "cyborg/tests/kernel"
    test = "cyborg/tests/kernel/test_vfio.py::test_x"
    assert pytest_words([test])[-1] == test


@pytest.mark.parametrize(
    ("statuses", "selected", "status"),
    [
        ([0, 0], False, 0),
        ([0, 1], False, 1),
        ([0, 5], False, 5),
        ([0, 5], True, 0),
        ([5, 5], True, 5),
        # Tests that have failed count even if the next guest breaks.
        ([1, None], False, 1),
    ],
)
def test_status_is_the_highest_of_all_machines(
    statuses: list[int | None], selected: bool, status: int
) -> None:
    assert highest_status(["pci", "iommu-off"], running(statuses), selected=selected) == status


@pytest.mark.parametrize("statuses", [[None], [0, None]])
def test_broken_guest_says_nothing_about_the_tests(statuses: list[int | None]) -> None:
    with pytest.raises(BrokenEnvironment, match="QEMU crashed"):
        highest_status(["pci", "iommu-off"], running(statuses), selected=False)


def running(statuses: list[int | None]) -> Callable[[str], int]:
    """Return what runs the tests in one guest after the other; None stands for a broken guest."""
    remaining = iter(statuses)

    def run(_name: str) -> int:
        status = next(remaining)
        if status is None:
            raise BrokenEnvironment(reason="QEMU crashed.")
        return status

    return run


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a package that tells where it was imported from."""
    place = tmp_path / "checkout"
    for name, text in {
        "cyborg/__init__.py": "import cyborg_cli\nprint('imported from', __file__)\n",
        "client/cyborg_cli/__init__.py": "print('imported from', __file__)\n",
        "cyborg/tests/data.txt": "data",
        "removed.txt": "",
        ".gitignore": "ignored*\n",
        "ignored/file": "",
        ".test-venv/file": "",
        "my-venv/pyvenv.cfg": "",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "link").symlink_to("cyborg")
    return place


def under_git(checkout: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    subprocess.run(["git", "add", "client", "cyborg", "removed.txt"], cwd=checkout, check=True)
    (checkout / "removed.txt").unlink()
    (checkout / ".git" / "info" / "exclude").write_text("*-venv\n")


@pytest.mark.parametrize("git", [True, False])
def test_guest_gets_a_copy_without_environments(checkout: Path, git: bool) -> None:
    if git:
        under_git(checkout)
    with copied(checkout) as tree:
        files = {
            str(path.relative_to(tree))
            for path in tree.rglob("*")
            if path.is_symlink() or path.is_file()
        }
        # Whoever runs a part of a test as another user reads the copy, too.
        assert all(place.stat().st_mode & 0o055 == 0o055 for place in (tree.parent, tree))
        (checkout / "cyborg" / "tests" / "data.txt").write_text("changed meanwhile")
        assert (tree / "cyborg" / "tests" / "data.txt").read_text() == "data"
        assert os.readlink(tree / "link") == "cyborg"
    compiled = {name for name in files if "__pycache__" in name}
    assert compiled == {
        f"{package}/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
        for package in ("client/cyborg_cli", "cyborg")
    }
    more = set() if git else {"ignored/file", "removed.txt"}
    assert files - compiled == {
        *(".gitignore", "client/cyborg_cli/__init__.py", "cyborg/__init__.py"),
        *("cyborg/tests/data.txt", "link"),
        *more,
    }
    assert not tree.exists()


def test_commands_of_a_guest_import_the_copy(checkout: Path) -> None:
    """Here as well a path entry of the environment leads to another checkout."""
    with copied(checkout) as tree:
        # As a script of the environment, which does not look into its working directory.
        line = script([sys.executable, "-P", "-c", "import cyborg"], tree)
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ran = subprocess.run(["sh", "-c", line], env=plain, capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        f"imported from {tree}/client/cyborg_cli/__init__.py",
        f"imported from {tree}/cyborg/__init__.py",
    ]


def test_user_who_cannot_install_gets_the_command_for_root(tmp_path: Path) -> None:
    commands = Commands(*REQUIRED[2:])
    with pytest.raises(NotPossibleHere) as raised:
        packages(tmp_path, commands, root=False).install(REQUIRED)
    expected = "packages are missing; run as root: apt-get install qemu-system-x86 busybox-static"
    assert str(raised.value) == expected


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    commands = Commands(*REQUIRED[1:])
    assert packages(tmp_path, commands, root=True).install(REQUIRED) == ["qemu-system-x86"]
    assert commands.log[-1] == "apt-get install -y --no-install-recommends qemu-system-x86"


def test_other_distribution_is_refused(tmp_path: Path) -> None:
    fedora = Packages(tmp_path, Commands(), root=True, release={"ID": "fedora"})
    with pytest.raises(NotPossibleHere, match="Debian 12"):
        fedora.install(REQUIRED)


def test_packages_are_fetched_from_the_mirrors_of_the_machine(tmp_path: Path) -> None:
    packages(tmp_path, Commands(), root=False).names("^linux")
    lines = (tmp_path / "sources.list").read_text().splitlines()
    assert [line.split()[-3:-1] for line in lines] == [
        ["http://mirror.example/debian/", "bookworm-backports"],
        ["http://mirror.example/security/", "bookworm-security"],
    ]


def test_machine_without_security_updates_uses_the_release_itself(tmp_path: Path) -> None:
    class Plain(Commands):
        def __call__(self, *argv: str) -> str:
            output = super().__call__(*argv)
            return "http://mirror.example/ bookworm main\n" if "indextargets" in argv else output

    packages(tmp_path, Plain(), root=False).names("^linux")
    lines = (tmp_path / "sources.list").read_text().splitlines()
    assert [line.split()[-2] for line in lines] == ["bookworm-backports", "bookworm"]


def test_machine_without_sources_of_its_release_is_refused(tmp_path: Path) -> None:
    trixie = {"ID": "debian", "VERSION_CODENAME": "trixie"}
    with pytest.raises(NotPossibleHere, match="no source of packages for 'trixie'"):
        Packages(tmp_path, Commands(), root=False, release=trixie).names("^linux")


class Unanswered(Commands):
    """A machine whose mirror does not answer commands of apt with this word."""

    def __init__(self, word: str, *installed: str) -> None:
        super().__init__(*installed)
        self.word = word

    def __call__(self, *argv: str) -> str:
        output = super().__call__(*argv)
        if self.word in argv:
            reason = f"apt-get fails:\n  E: Failed to fetch http://mirror.example/ {self.word}"
            raise exception.ConfigError(reason=reason)
        return output


@pytest.mark.parametrize("word", ["update", "install"])
def test_mirror_that_does_not_answer_an_installation_is_no_failure(
    tmp_path: Path, word: str
) -> None:
    with pytest.raises(BrokenEnvironment, match=word):
        packages(tmp_path, Unanswered(word), root=True).install(REQUIRED)


@pytest.mark.parametrize("word", ["update", "download"])
def test_mirror_that_does_not_answer_a_download_is_no_failure(tmp_path: Path, word: str) -> None:
    with pytest.raises(BrokenEnvironment, match=word):
        packages(tmp_path, Unanswered(word), root=True).fetch(tmp_path, "linux-image")


def test_lists_that_cannot_be_read_are_an_error_of_apt(tmp_path: Path) -> None:
    """By default apt-get says so and succeeds, and there would be no kernel to find."""

    class Words(Commands):
        def __call__(self, *argv: str) -> str:
            self.log.append(" ".join(argv))
            return super().__call__(*argv)

    commands = Words()
    packages(tmp_path, commands, root=False).names("^linux")
    [update] = [line for line in commands.log if line.endswith(" update") and "::" in line]
    assert "-o APT::Update::Error-Mode=any" in update


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", NOT_POSSIBLE)])
def test_machine_that_cannot_run_guests_fails_only_in_ci(
    ci: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unavailable(NotPossibleHere("no QEMU."), {"CI": ci}) == status
    assert capsys.readouterr().err == "kernel: not possible here: no QEMU.\n"


def test_newest_kernel_of_the_cache_boots(build: Callable[[Commands], Parts], cache: Path) -> None:
    newer = "6.12.10+deb12-amd64"
    add_kernel(cache, newer)
    assert build(Commands(*REQUIRED)).kernel.name == f"vmlinuz-{newer}"


@pytest.mark.parametrize(
    ("cached", "package"),
    [("6.12.9", "linux-source-6.12=6.12-1"), ("6.12.7", "linux-image-6.12.10")],
)
def test_kernel_of_an_older_cache_gets_its_source_while_the_distribution_has_it(
    build: Callable[[Commands], Parts], cache: Path, cached: str, package: str
) -> None:
    class Offline(Commands):
        def __call__(self, *argv: str) -> str:
            output = super().__call__(*argv)
            if "download" in argv:
                raise exception.ConfigError(reason="apt-get fails")
            return output

    shutil.rmtree(cache)
    (cache / f"kernel-{cached}+deb12-amd64" / "netdevsim").mkdir(parents=True)
    commands = Offline(*REQUIRED)
    with pytest.raises(exception.ConfigError, match="apt-get fails"):
        build(commands)
    assert package in commands.log[-1]


def test_parts_in_the_cache_are_not_made_again(
    build: Callable[[Commands], Parts], cache: Path
) -> None:
    first = build(Commands(*REQUIRED))
    commands = Commands(*REQUIRED)
    assert build(commands) == first
    assert [commands.count(name) for name in ("apt-get", "make", "sh")] == [0, 0, 0]
    assert not list(cache.glob("new-*"))


@pytest.mark.parametrize(
    ("name", "made"), [("simaccel/simaccel.c", [1, 1]), ("init", [0, 1])], ids=["module", "init"]
)
def test_changed_source_makes_what_depends_on_it_again(
    build: Callable[[Commands], Parts], sources: Path, name: str, made: list[int]
) -> None:
    first = build(Commands(*REQUIRED))
    (sources / name).write_text("changed")
    commands = Commands(*REQUIRED)
    assert build(commands).initramfs != first.initramfs
    assert [commands.count("make"), commands.count("sh")] == made


def test_cache_with_white_space_in_its_path_is_refused(tmp_path: Path, sources: Path) -> None:
    tools = packages(tmp_path, Commands(*REQUIRED), root=True)
    build = Build(tmp_path / "my cache", tools, Commands(), sources=sources, report=print)
    with pytest.raises(exception.ConfigError, match="white space"):
        build.parts()


def test_failed_step_leaves_nothing_in_the_cache(
    build: Callable[[Commands], Parts], cache: Path
) -> None:
    class BrokenCompiler(Commands):
        def __call__(self, *argv: str) -> str:
            if argv[0] == "make":
                raise exception.ConfigError(reason="make fails")
            return super().__call__(*argv)

    with pytest.raises(exception.ConfigError, match="make fails"):
        build(BrokenCompiler(*REQUIRED))
    assert not [*cache.glob("new-*"), *cache.glob("modules-*")]


def test_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    first = digest("6.12", file)
    file.write_text("two")
    assert len({first, digest("6.12", file), digest("6.13", file), digest("6.13")}) == 4


def test_failed_command_shows_the_end_of_its_output() -> None:
    with pytest.raises(exception.ConfigError, match="sh fails:\n  no space left"):
        execute("sh", "-c", "echo no space left >&2; exit 1")


def test_machines_name_no_placeholder_that_has_no_value() -> None:
    for machine in machines(SOURCES / "machines").values():
        words = machine.arguments(half=512, disks="/disks")
        assert words[0] == "-machine"
        assert not [word for word in words if "{" in word or "#" in word]


def guest(tmp_path: Path, program: str, *, timeout: float = 600, silence: float = 600) -> Guest:
    """Return a guest whose QEMU is a Python program; ``share`` is its second directory."""
    machine = tmp_path / "small.args"
    machine.write_text("-m 64  # comment\n")
    qemu = tmp_path / "qemu.py"
    qemu.write_text(
        "import os, re, sys, time, pathlib\n"
        "paths = re.findall(r'id=run,path=([^,]*)', ' '.join(sys.argv))\n"
        f"share = pathlib.Path(paths[0])\n{program}\n"
    )
    parts = Parts((sys.executable, str(qemu)), tmp_path / "vmlinuz", tmp_path / "initramfs")
    return Guest(parts, Machine(machine), 64, timeout, silence)


def test_status_and_output_of_the_command_come_back(tmp_path: Path) -> None:
    program = (
        "print('\\0', (share / 'command').read_text(), sep='', end='\\r\\n\\0')\n"
        "(share / 'status').write_text('200')"
    )
    output = io.BytesIO()
    assert guest(tmp_path, program).run("true", output) == 200
    assert output.getvalue() == b"true\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", "ended before its command did"),
        # An emulator that dies of an assertion of its own says nothing about the command.
        ("os.abort()", r"QEMU crashed \(SIGABRT\)"),
        ("os.kill(os.getpid(), 9)", r"QEMU crashed \(SIGKILL\)"),
    ],
    ids=["no-status", "assertion", "killed"],
)
def test_guest_that_ends_without_a_status_is_broken(
    tmp_path: Path, program: str, words: str
) -> None:
    with pytest.raises(BrokenEnvironment, match=words):
        guest(tmp_path, program).run("true", io.BytesIO())


def test_guest_that_hangs_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match=r"did not end within 0.5 s"):
        guest(tmp_path, "time.sleep(600)", timeout=0.5).run("true", io.BytesIO())


def test_guest_that_prints_on_and_on_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match=r"did not end within 0.5 s"):
        guest(tmp_path, "while print('alive', flush=True) is None: pass", timeout=0.5).run(
            "true", io.BytesIO()
        )


def test_guest_that_falls_silent_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenEnvironment, match=r"printed nothing for 0.5 s"):
        guest(tmp_path, "print('begun', flush=True)\ntime.sleep(600)", silence=0.5).run(
            "true", io.BytesIO()
        )


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowConsole(io.BytesIO):
    """The console of a guest that needs 400 seconds for each thing that it prints."""

    def __init__(self, clock: Clock, printed: Path) -> None:
        super().__init__()
        self.clock = clock
        self.printed = printed

    def write(self, data: object) -> int:
        self.clock.now += 400.0
        self.printed.touch()
        return super().write(data)


def test_guest_that_prints_now_and_then_is_not_stopped(tmp_path: Path) -> None:
    clock, printed = Clock(), tmp_path / "printed"
    program = (
        f"for _ in range(3):\n"
        f"    print('still here', flush=True)\n"
        f"    while not pathlib.Path({str(printed)!r}).exists(): time.sleep(0.01)\n"
        f"    pathlib.Path({str(printed)!r}).unlink()\n"
        "(share / 'status').write_text('0')"
    )
    slow = replace(guest(tmp_path, program, timeout=10_000), clock=clock)
    assert slow.run("true", SlowConsole(clock, printed)) == 0
    assert clock.now - 1000.0 >= 1200.0


def test_silence_is_counted_from_the_last_output_and_time_from_the_begin() -> None:
    clock = Clock()
    watch = Watch(100.0, 60.0, clock)
    for _ in range(2):
        clock.now += 45.0
        watch.check()
        watch.prints()
    assert watch.left == 10.0
    clock.now += 10.0
    with pytest.raises(exception.ConfigError, match="did not end within 100 s"):
        watch.check()
    silent = Watch(100.0, 60.0, clock)
    clock.now += 59.0
    silent.check()
    clock.now += 1.0
    assert silent.left == 0.0
    with pytest.raises(BrokenEnvironment, match="printed nothing for 60 s"):
        silent.check()


def test_guest_is_never_silent_while_it_loads_modules_and_runs_the_command() -> None:
    """Else the host takes a slow guest, or a long test, for a guest that hangs."""
    lines = (SOURCES / "init").read_text().splitlines()
    begin = lines.index("while :; do")
    assert lines[begin : begin + 4] == ["while :; do", "    printf '\\0'", "    sleep 5", "done &"]
    assert begin < lines.index("while read -r module; do")


def test_default_machine_has_an_iommu() -> None:
    names = list(machines(SOURCES / "machines"))
    assert parse(["run", "true"], names).machine == "pci"
    assert (ROOT / "cyborg" / "tests" / "kernel").is_dir()
