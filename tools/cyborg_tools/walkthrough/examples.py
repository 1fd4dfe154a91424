# SPDX-License-Identifier: Apache-2.0
"""Run the commands of the documents, page by page, as a reader copies them."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from cyborg.model.process import AGENT
from cyborg.tests.fixtures.processes import Options, script
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.quickstart.clients import StepFailed, require
from cyborg_tools.walkthrough import pages
from cyborg_tools.walkthrough.environment import DRIVER, RACK, SPARE, WalkedCloud
from cyborg_tools.walkthrough.keys import Keys
from cyborg_tools.walkthrough.operator import PROGRAM
from cyborg_tools.walkthrough.pages import GONE, GPU, LOOKUPS, PAGES, PROFILE, Page
from cyborg_tools.walkthrough.tenant import FAKE_CLASS, Tenant, column

_FAKE: Final = "fake_driver"
#: The address of the API on the pages, and the cloud that they name.
_ADDRESS: Final = "http://127.0.0.1:6666"
_CLOUD: Final = "production"
_OTHER_PROJECT: Final = "0b1d2c3e4f5a69788796a5b4c3d2e1f0"
#: An archive of tools/capture-host.
_ARCHIVE: Final = "cyborg/tests/fixtures/hosts/guest.tar.gz"
#: How long the commands of one page may take, in seconds.
_LONGEST: Final = 4 * PATIENCE


class ExampleCloud(WalkedCloud):
    """The cloud that the pages describe."""

    name, computes = "cyborg_examples", (RACK, SPARE, GONE)

    @property
    def more(self) -> Options:
        """See Cloud; messages are signed, because cyborg-status warns of others."""
        signing: dict[str, object] = {
            "message_signing": "required",
            "message_signing_key_file": self._signing.file(),
        }
        return {**super().more, "DEFAULT": {**super().more["DEFAULT"], **signing}}

    def start(self, endings: ExitStack) -> None:
        """See WalkedCloud."""
        self.keys = self._signing
        self.keys.make()
        super().start(endings)

    @property
    def _signing(self) -> Keys:
        return Keys(self.directory, self.computes)

    def drivers(self) -> dict[str, tuple[str, Options]]:
        """See WalkedCloud."""
        soft = {"devices": "0000:0c:00.0", "attach_type": "TEST_PCI", "resource_class": "FPGA"}
        cards = {"pci_ids": "10ee:5000", "resource_class": "FPGA"}
        sections: Options = {f"{DRIVER}:soft": soft, f"{DRIVER}:cards": cards}
        loaded = f"{_FAKE}, nvme_driver, pci_driver"
        return {RACK: (loaded, sections), SPARE: (_FAKE, {}), GONE: ("", {})}

    def begin_again(self, name: str) -> None:
        """Start a daemon that was stopped, and wait until it runs."""
        host = name.partition(" on ")[2]
        deployment = self.hosts if host else self.deployment
        options = self.agent_options(host) if host else {}
        self.daemons[name] = deployment.daemon(name.partition(" ")[0], options)

    def configuration(self) -> str:
        """A configuration file for the programs on a controller and on the first host."""
        options = {group: dict(values) for group, values in self.agent_options(RACK).items()}
        del options["DEFAULT"]["message_signing_key_file"]
        more = self.deployment.write("reader", options)
        return self.deployment.conf.read_text() + more.read_text()


class ExampleWalk(Tenant):
    """A reader who copies the commands of each page, from the first to the last."""

    environment: ExampleCloud

    def play(self) -> None:
        """Run the commands of every page; the first that fails raises StepFailed."""
        instance = self._prepare()
        values = {
            "INSTANCE": instance,
            "SERVER": instance,
            "PROJECT": self.environment.project,
            "OTHER_PROJECT": _OTHER_PROJECT,
            "ENDPOINT": self.environment.url,
            "TOKEN": "no-authentication",
            "HOST": RACK,
            "PATH": f"{Path(script(PROGRAM)).parent}:{self.variables['PATH']}",
        }
        require(set(pages.GIVEN) <= values.keys(), "a variable has no value")
        selected = self.environment.plan.examples or [page.name for page in PAGES]
        for page in PAGES:
            if page.name in selected:
                self._read(page, values)

    def _prepare(self) -> str:
        """Let an instance have an accelerator; return the instance."""
        self.screen.step(f"An instance on {SPARE} has an accelerator")
        reported = f"accelerator-list --driver {_FAKE} -c uuid -c hostname"
        rows = self.awaits(
            reported,
            lambda rows: {row["hostname"] for row in rows} == {RACK, SPARE},
            "not all accelerators are listed",
        )
        (spare,) = (row["uuid"] for row in rows if row["hostname"] == SPARE)
        self.does(f"accelerator-update {spare} --status ready --wait")
        self.awaits_offered(SPARE, FAKE_CLASS, 16)
        for profile in (PROFILE, GPU):
            self.asks(f"profile-create {profile} --group resources:FPGA=1")
        server = self.boots(PROFILE, SPARE)
        self._awaits_agent(GONE, "up")
        self.screen.ok(f"The instance is {server.uuid}.")
        return str(server.uuid)

    def _read(self, page: Page, values: dict[str, str]) -> None:
        """Run the commands of a page. Raises StepFailed."""
        self.screen.step(f"The commands of doc/source/{page.name}.rst")
        place = self._place(page)
        for name in page.stopped:
            self.environment.daemons[name].stop()
            if host := name.partition(" on ")[2]:
                self._awaits_agent(host, "down")
        found = [f"{name}=$({LOOKUPS[name]})" for name in LOOKUPS if name in page.unset]
        commands = page.commands.replace(_ADDRESS, self.environment.url)
        variables = {**self.variables, **values, "HOME": str(place)}
        self._copy("\n".join([*found, commands]), place, variables)
        for name in page.stopped:
            self.environment.begin_again(name)
            if host := name.partition(" on ")[2]:
                self._awaits_agent(host, "up")
        if "profile" in page.commands:
            self._delete_profiles()
        self.screen.ok("They did what the page says.")

    def _delete_profiles(self) -> None:
        """Delete the profiles of a page, because others have the same names."""
        if own := set(column(self.asks("profile-list -c name"), "name")) - {PROFILE, GPU}:
            self.does(f"profile-delete {' '.join(sorted(own))}")

    def _place(self, page: Page) -> Path:
        """Return a new home directory of a reader, with the files that the pages name."""
        place = self.environment.place.directory / page.name.replace("/", "-")
        place.mkdir()
        (place / "hosts.txt").write_text("".join(f"{host}\n" for host in self.environment.computes))
        cloud = {"auth_type": "none", "auth": {"endpoint": self.environment.url}}
        (place / "clouds.yaml").write_text(json.dumps({"clouds": {_CLOUD: cloud}}))
        (place / "cyborg.conf").write_text(self.environment.configuration())
        # An error of the API is a failure of curl.
        (place / ".curlrc").write_text("fail-with-body\n")
        root = pages.SOURCE.parents[1]
        shutil.copy(root / _ARCHIVE, place / f"{RACK}.tar.gz")
        # The pages for contributors name files of the repository.
        (place / "cyborg").symlink_to(root / "cyborg")
        return place

    def _awaits_agent(self, host: str, state: str) -> None:
        self.awaits(
            f"service-list --host {host} --kind process -c binary -c state",
            lambda rows: column(rows, "binary", "state") == [(AGENT, state)],
            f"the agent of {host} is not {state}",
        )

    def _copy(self, commands: str, place: Path, variables: dict[str, str]) -> None:
        """Run the commands in one shell that ends at the first failure. Raises StepFailed."""
        output = place / "output.txt"
        with output.open("w") as file:
            try:
                ended = subprocess.run(
                    ["bash", "-euxo", "pipefail", "-c", commands],
                    cwd=place,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=_LONGEST,
                )
            except subprocess.TimeoutExpired as fault:
                raise StepFailed(f"the examples go on after {_LONGEST:.0f} seconds") from fault
        lines = output.read_text().splitlines()
        self.screen.raw([line for line in lines if line.startswith("+ ")])
        if ended.returncode:
            self.screen.raw(lines[-30:])
        require(ended.returncode == 0, f"an example ended with status {ended.returncode}")
