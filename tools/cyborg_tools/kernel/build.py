# SPDX-License-Identifier: Apache-2.0
"""Prepare what a guest boots: QEMU, a Debian kernel, further modules, and the initramfs.

Each part has a directory of its own in the cache, named after the version of the kernel and the
content of our sources. A part that is there is complete and is not made again.
"""

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyborg import exception
from cyborg_tools.kernel.packages import REQUIRED, NotPossibleHere, Packages, Run

#: The kernel series whose behaviour the tests describe.
SERIES: Final = "6.12"
#: The oldest QEMU with the devices of the machines: igb is new in 8.0.
_OLDEST_QEMU: Final = 8
_QEMU: Final = ("qemu-system-x86", "qemu-system-common", "qemu-system-data")
#: Modules of the kernel that guests load, besides what these need.
_MODULES: Final = (
    *("9pnet_virtio", "9p", "overlay", "ext4", "crc32c_generic"),
    *("nvme", "null_blk", "dm-mod", "md-mod", "raid1"),
    *("e1000e", "igb", "igbvf", "bonding", "psample", "macsec"),
    *("8021q", "bridge", "macvtap", "ipvlan", "uio_pci_generic"),
    *("vfio-pci", "vfio_iommu_type1", "mdev", "aer_inject"),
    *("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_port", "cxl_pmem"),
    *("ahci", "i2c-i801"),
)
#: Directories of the kernel's source with modules that its package does not have, in order.
MODULE_SOURCES: Final = ("drivers/fpga", "drivers/net/netdevsim")
#: The switches of their Makefiles.
_SWITCHES: Final = (
    *("CONFIG_NETDEVSIM=m", "CONFIG_FPGA=m", "CONFIG_FPGA_BRIDGE=m", "CONFIG_FPGA_REGION=m"),
    *("CONFIG_FPGA_DFL=m", "CONFIG_FPGA_DFL_FME=m", "CONFIG_FPGA_DFL_FME_MGR=m"),
    *("CONFIG_FPGA_DFL_FME_BRIDGE=m", "CONFIG_FPGA_DFL_FME_REGION=m"),
    *("CONFIG_FPGA_DFL_AFU=m", "CONFIG_FPGA_DFL_PCI=m"),
    # Without the type information of BTF, which takes a further program.
    "CONFIG_DEBUG_INFO_BTF_MODULES=",
)
#: Modules that are built here in the order of their loading: ours, and those of MODULE_SOURCES.
BUILT: Final = (
    *("simaccel/simaccel", "netdevsim/netdevsim"),
    *("fpga/fpga-mgr", "fpga/fpga-bridge", "fpga/fpga-region", "fpga/dfl"),
    *("fpga/dfl-fme-mgr", "fpga/dfl-fme-br", "fpga/dfl-fme-region"),
    *("fpga/dfl-fme", "fpga/dfl-afu", "fpga/dfl-pci"),
)
_DIRECTORIES: Final = ("dev", "lower", "modules", "proc", "sys", "tree", "upper")


@dataclass(frozen=True)
class Parts:
    """What boots a guest: the command of QEMU with its data, the kernel and the initramfs."""

    qemu: tuple[str, ...]
    kernel: Path
    initramfs: Path


@dataclass(frozen=True)
class _Kernel:
    """An unpacked kernel: its release, and the directory with image and headers."""

    release: str
    path: Path

    @property
    def image(self) -> Path:
        return self.path / "image"

    @property
    def headers(self) -> Path:
        return self.path / "headers" / "usr" / "src" / f"linux-headers-{self.release}"


class Build:
    """The parts of guests in a cache directory, made from packages and from our ``sources``.

    ``report`` gets the title and the begin (monotonic seconds) of each step that was necessary.
    """

    def __init__(
        self,
        cache: Path,
        packages: Packages,
        run: Run,
        *,
        sources: Path,
        report: Callable[[str, float], None],
    ) -> None:
        self._cache = cache
        self._packages = packages
        self._run = run
        self._sources = sources
        self._report = report

    def parts(self) -> Parts:
        """Return the parts; make those that are not in the cache.

        Processes that share a cache wait for each other. Raises exception.ConfigError, and
        NotPossibleHere where packages are missing and cannot be installed.
        """
        if re.search(r"\s", str(self._cache)):
            # The Makefiles of the kernel do not support it.
            raise exception.ConfigError(
                reason=f"the cache {str(self._cache)!r} has white space in its path; use --cache."
            )
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = time.monotonic()
            if installed := self._packages.install(REQUIRED):
                self._report(f"packages installed: {' '.join(installed)}", started)
            qemu = self._qemu()
            kernel = self._kernel()
            modules = self._modules(kernel, self._source(kernel))
            initramfs = self._initramfs(kernel, modules)
        return Parts(qemu, kernel.image / "boot" / f"vmlinuz-{kernel.release}", initramfs)

    def _make(self, path: Path, title: str, fill: Callable[[Path], None]) -> Path:
        """Return ``path``; if it is not there, let ``fill`` make it under another name first."""
        if path.exists():
            return path
        started = time.monotonic()
        scratch = Path(tempfile.mkdtemp(prefix="new-", dir=self._cache))
        try:
            fill(scratch / path.name)
            (scratch / path.name).rename(path)
        finally:
            shutil.rmtree(scratch)
        self._report(title, started)
        return path

    def _qemu(self) -> tuple[str, ...]:
        """Return the command of QEMU: the installed one, or a newer one that is only unpacked."""
        shown = self._run("qemu-system-x86_64", "--version")
        version = re.search(r"version (\d+)", shown)
        if version and int(version[1]) >= _OLDEST_QEMU:
            return ("qemu-system-x86_64",)
        names = [f"{name}/{self._packages.backports}" for name in _QEMU]
        path = self._make(
            self._cache / f"qemu-{self._packages.backports}",
            "a newer QEMU unpacked",
            lambda target: self._packages.unpack(target, *names),
        )
        # The firmware that packages share is that of this machine.
        data = ("-L", f"{path}/usr/share/qemu", "-L", "/usr/share/seabios")
        return (f"{path}/usr/bin/qemu-system-x86_64", *data)

    def _kernel(self) -> _Kernel:
        """Return the newest kernel of the cache, or fetch the newest of the distribution.

        A kernel of the cache that has no source yet, and of which the distribution has none any
        more, is no longer used.
        """
        cached = [path.name.removeprefix("kernel-") for path in self._cache.glob("kernel-*")]
        names = [release for release in cached if self._source_path(release).exists()]
        if not names:
            # Without the variants: cloud, real time, unsigned.
            pattern = rf"^linux-image-{re.escape(SERIES)}[.][^-]*-amd64$"
            available = [
                name.removeprefix("linux-image-") for name in self._packages.names(pattern)
            ]
            names = [release for release in cached if release in available] or available
        if not names:
            raise NotPossibleHere(f"the distribution has no kernel {SERIES} for x86-64.")
        release = max(names, key=_numbers)
        path = self._cache / f"kernel-{release}"

        def fetch(target: Path) -> None:
            abi = release.removesuffix("-amd64")
            self._packages.unpack(target / "image", f"linux-image-{release}")
            headers = [f"linux-headers-{release}", f"linux-headers-{abi}-common"]
            self._packages.unpack(target / "headers", *headers, f"linux-kbuild-{abi}")
            # Other than its links, this file has an absolute path.
            makefile = _Kernel(release, target).headers / "Makefile"
            makefile.write_text(
                makefile.read_text().replace("/usr/src/", f"{path}/headers/usr/src/")
            )
            self._run("/sbin/depmod", "-b", str(target / "image"), release)

        return _Kernel(release, self._make(path, f"kernel {release} unpacked", fetch))

    def _source(self, kernel: _Kernel) -> Path:
        """Return a directory that has MODULE_SOURCES, each under the last part of its name.

        It is apart from the unpacked kernel, which stays when the list changes.
        """

        def fetch(target: Path) -> None:
            target.mkdir()
            version = self._packages.version(f"linux-image-{kernel.release}")
            [archive] = self._packages.fetch(target, f"linux-source-{SERIES}={version}")
            extract(archive, MODULE_SOURCES, target)
            archive.unlink()

        return self._make(self._source_path(kernel.release), "source of modules unpacked", fetch)

    def _source_path(self, release: str) -> Path:
        return self._cache / f"source-{digest(release, *MODULE_SOURCES)}"

    def _modules(self, kernel: _Kernel, source: Path) -> Path:
        """Return the directory with the modules that this class compiles."""
        ours = self._sources / "simaccel"
        key = digest(kernel.release, source.name, *_SWITCHES, *BUILT, *sorted(ours.iterdir()))

        def build(target: Path) -> None:
            places = [ours, *(source / Path(name).name for name in MODULE_SOURCES)]
            for place in places:
                shutil.copytree(place, target / place.name)
            names = " ".join(f"{place.name}/" for place in places)
            (target / "Kbuild").write_text(f"obj-m += {names}\n")
            make = ["make", "-s", "-C", str(kernel.headers), f"-j{os.cpu_count() or 1}"]
            self._run(*make, f"M={target}", *_SWITCHES, "modules")
            for name in BUILT:
                self._run("strip", "--strip-debug", f"{target}/{name}.ko")

        return self._make(self._cache / f"modules-{key}", "modules compiled", build)

    def _initramfs(self, kernel: _Kernel, modules: Path) -> Path:
        """Return the initramfs: busybox, the modules in the order of their loading, and init."""
        init = self._sources / "init"
        key = digest(kernel.release, modules.name, *_MODULES, init)

        def pack(target: Path) -> None:
            tree = target.parent / "tree"
            for name in (*_DIRECTORIES, "bin"):
                (tree / name).mkdir(parents=True)
            self._run("cp", "/bin/busybox", str(tree / "bin"))
            shutil.copy(init, tree / "init")
            (tree / "init").chmod(0o755)
            order = []
            for path in self._needed(kernel):
                order.append(path.name.removesuffix(".xz"))
                content = path.read_bytes()
                plain = lzma.decompress(content) if path.suffix == ".xz" else content
                (tree / "modules" / order[-1]).write_bytes(plain)
            for name in BUILT:
                order.append(f"{Path(name).name}.ko")
                shutil.copy(modules / f"{name}.ko", tree / "modules")
            (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
            # Not compressed: the guest unpacks it slowly, and reads it fast.
            archive = 'cd "$0" && find . | cpio --quiet --create --format=newc > "$1"'
            self._run("sh", "-c", archive, str(tree), str(target))

        return self._make(self._cache / f"initramfs-{key}.cpio", "initramfs packed", pack)

    def _needed(self, kernel: _Kernel) -> list[Path]:
        """Return the files of _MODULES and of the modules that they need, in that order."""
        modprobe = ["/sbin/modprobe", "-d", str(kernel.image), "-S", kernel.release]
        # One call for each: with several names modprobe takes all but one for parameters.
        shown = [self._run(*modprobe, "--show-depends", name) for name in _MODULES]
        paths = re.findall(r"(?m)^insmod (\S+)", "".join(shown))
        return [Path(path) for path in dict.fromkeys(paths)]


def digest(*parts: str | Path) -> str:
    """Return a short name for words, and for names and contents of files."""
    value = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else b""
        value.update(repr((getattr(part, "name", part), content)).encode())
    return value.hexdigest()[:16]


def extract(package: Path, directories: Sequence[str], target: Path) -> None:
    """Extract directories of the source archive in a package linux-source, without those below.

    ``directories`` are in the order of the archive. Each becomes a directory of ``target`` with
    the last part of its name. The archive has 1.5 GB; reading stops after the last of them.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        with tarfile.open(fileobj=reader.stdout, mode="r|") as outer:
            archive = next(item for item in outer if item.name.endswith(".tar.xz"))
            with tarfile.open(fileobj=outer.extractfile(archive), mode="r|xz") as inner:
                last = False
                for item in inner:
                    # The first part is the name and the version of the kernel.
                    path = item.name.partition("/")[2]
                    directory, _, name = path.rpartition("/")
                    if item.isfile() and directory in directories:
                        place = target / Path(directory).name
                        place.mkdir(exist_ok=True)
                        if content := inner.extractfile(item):
                            (place / name).write_bytes(content.read())
                    inside = f"{path}/".startswith(f"{directories[-1]}/")
                    if last and not inside:
                        break
                    last = inside
        reader.kill()


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]
