# SPDX-License-Identifier: Apache-2.0
"""What tools/kernel decides without a guest: arguments, packages, the cache, machines."""

import argparse
import io
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cyborg import exception
from cyborg_tools.kernel.__main__ import (
    NOT_POSSIBLE,
    ROOT,
    SOURCES,
    default_cache,
    parse,
    pytest_words,
    script,
    unavailable,
)
from cyborg_tools.kernel.build import BUILT, MODULE_SOURCES, Build, Parts, digest
from cyborg_tools.kernel.guest import Guest, Machine, machines
from cyborg_tools.kernel.packages import REQUIRED, NotPossibleHere, Packages, execute

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


def test_words_of_a_command_keep_its_options() -> None:
    chosen = options("run", "--timeout", "5", "lspci", "-nn", "--machine", "x")
    assert (chosen.machine, chosen.timeout) == ("pci", 5.0)
    assert chosen.words == ["lspci", "-nn", "--machine", "x"]
    assert options("run", "--", "lspci", "--", "-nn").words == ["lspci", "--", "-nn"]


@pytest.mark.parametrize(
    "arguments", [("run",), ("build", "now"), ("test", "--machine", "toaster")]
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
    assert script(["ls | wc -l"]).endswith("\nls | wc -l\n")
    assert script(["echo", "a  b", "$HOME"]).endswith("\necho 'a  b' '$HOME'\n")


def test_all_kernel_tests_run_unless_the_arguments_name_some() -> None:
    assert pytest_words(["-k", "vfio"])[-1] == "cyborg/tests/kernel"
    test = "cyborg/tests/kernel/test_vfio.py::test_x"
    assert pytest_words([test])[-1] == test


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


def guest(tmp_path: Path, program: str, *, timeout: float = 60.0) -> Guest:
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
    return Guest(parts, Machine(machine), 64, timeout)


def test_status_and_output_of_the_command_come_back(tmp_path: Path) -> None:
    program = (
        "print((share / 'command').read_text(), end='\\r\\n')\n(share / 'status').write_text('200')"
    )
    output = io.BytesIO()
    assert guest(tmp_path, program).run("true", output) == 200
    assert output.getvalue() == b"true\n"


def test_guest_that_ends_without_a_status_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match="ended before its command did"):
        guest(tmp_path, "").run("true", io.BytesIO())


def test_command_runs_again_after_a_crash_of_qemu_itself(tmp_path: Path) -> None:
    """An emulator that dies of an assertion of its own says nothing about the command."""
    program = (
        "once = pathlib.Path(sys.argv[0]).with_suffix('.once')\n"
        "if not once.exists():\n"
        "    once.touch()\n"
        "    os.abort()\n"
        "(share / 'status').write_text('3')"
    )
    output = io.BytesIO()
    assert guest(tmp_path, program).run("true", output) == 3
    assert output.getvalue() == b"kernel: QEMU crashed (SIGABRT), attempt 1 of 3\n"


def test_emulator_that_always_crashes_is_an_error(tmp_path: Path) -> None:
    output = io.BytesIO()
    with pytest.raises(exception.ConfigError, match=r"QEMU crashed 3 times\."):
        guest(tmp_path, "os.abort()").run("true", output)
    assert output.getvalue().count(b"(SIGABRT)") == 3


def test_guest_that_hangs_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match=r"did not end within 0.5 s"):
        guest(tmp_path, "time.sleep(600)", timeout=0.5).run("true", io.BytesIO())


def test_default_machine_has_an_iommu() -> None:
    names = list(machines(SOURCES / "machines"))
    assert parse(["run", "true"], names).machine == "pci"
    assert (ROOT / "cyborg" / "tests" / "kernel").is_dir()
