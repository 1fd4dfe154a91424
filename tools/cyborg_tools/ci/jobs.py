# SPDX-License-Identifier: Apache-2.0
"""The steps of ``.ci/run``: the gate, which each run takes, and the long jobs.

A long job runs if a file of its subjects has changed since the commit that passed it last, and in
its turn: each commit has one of ``TURNS`` numbers. The steps run one after the other, because two
processors are busy with one of them, and what waits for a clock must not run beside it. The order
of the long jobs is that in which they get what is left of the time of a run.
"""

from dataclasses import dataclass
from typing import Final

#: Every so many commits each long job runs although its subject has not changed.
TURNS: Final = 8
#: Stands in a command for the options of the command line that name servers.
SERVERS: Final = "{servers}"
#: Stands in a command for the seed of the run.
SEED: Final = "{seed}"


@dataclass(frozen=True)
class Job:
    """A step: commands that run one after the other, until one fails.

    ``statuses`` are the exit statuses besides 0 that are no failure. For a long job ``subjects``
    are the paths, files or directories, whose change makes it run, and ``turn`` is the number of
    the commits that it runs at in any case.
    """

    name: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    subjects: tuple[str, ...] = ()
    turn: int | None = None
    statuses: tuple[int, ...] = ()
    #: Variables of the environment.
    variables: tuple[tuple[str, str], ...] = ()


_TEST: Final = ("tools/test", "--seed", SEED)
#: Let pytest print which tests take longest: what the gate must lose next.
_DURATIONS: Final = ("--", "--durations=30")
_UNIT: Final = "cyborg/tests/unit"
_FUNCTIONAL: Final = "cyborg/tests/functional"
_KERNEL: Final = "cyborg/tests/kernel"
_KERNEL_SUBJECTS: Final = (
    "cyborg/drivers",
    "cyborg/testing",
    _KERNEL,
    "tools/cyborg_tools/kernel",
    "tools/kernel-guest",
    "tools/kernel",
)
#: What the processes of a cloud do together.
_CLOUD: Final = (
    "cyborg/cmd",
    "cyborg/service.py",
    "cyborg/systemd.py",
    "cyborg/rpc",
    "cyborg/conductor/app.py",
    "cyborg/conductor/jobs.py",
    "cyborg/conductor/leases.py",
    "cyborg/conductor/endpoint.py",
    "cyborg/conductor/tasks",
    "cyborg/agent/app.py",
    "cyborg/agent/loop.py",
    "cyborg/agent/heartbeats.py",
    "cyborg/db/engine.py",
    "tools/cyborg_tools/servers.py",
    "tools/cyborg_tools/program.py",
)

GATE: Final = (
    Job("lint", "style, types, layers, words", (("tools/lint",),)),
    Job(
        "alerts",
        "alert rules, as Prometheus reads them",
        (
            ("promtool", "check", "rules", "etc/monitoring/alerts.yaml"),
            ("promtool", "test", "rules", "etc/monitoring/alerts_test.yaml"),
        ),
    ),
    Job(
        "serverless",
        "tests that need no server; of those of whole processes what has changed, and a fifth",
        ((*_TEST, "--serverless", "--sample", *_DURATIONS),),
    ),
    Job(
        "services",
        "functional tests: those of what has changed, and a fifth of the others",
        ((*_TEST, "--services", "--sample", SERVERS, *_DURATIONS),),
    ),
    Job(
        "kernel",
        "the guard and one whole life on a real kernel",
        (("tools/kernel", "test", "--short"),),
    ),
    Job("chaos", "two faults of chaos", (("tools/chaos", "--sample", "2", "--seed", SEED),)),
    Job("quickstart", "the quickstart, in a fresh clone", ((".ci/quickstart",),)),
    Job(
        "mutants",
        "do tests notice defects? A measure: a survivor refuses nothing",
        (("tools/mutants", "--sample", "6", "--seed", SEED, "--measure"),),
    ),
)

LONG: Final = (
    Job(
        "functional",
        "all functional tests on MariaDB and RabbitMQ; dialects and locks on PostgreSQL as well",
        (
            (*_TEST, "--services", SERVERS, *_DURATIONS),
            (*_TEST, "--serverless", *_DURATIONS, _FUNCTIONAL, "tools/tests"),
        ),
        ("cyborg", "client", "tools"),
        turn=0,
    ),
    Job(
        "kernel-drivers",
        "drivers on a real kernel",
        (
            (
                *("tools/kernel", "test", "--timeout", "2400", "--machine", "pci", "--"),
                *(f"{_KERNEL}/test_{name}.py" for name in ("mdev", "nvme", "fpga", "nvidia")),
                *(f"{_KERNEL}/test_{name}.py" for name in ("lives", "cleaning", "devlink")),
            ),
        ),
        _KERNEL_SUBJECTS,
        turn=0,
    ),
    Job(
        "kernel-host",
        "the host, the guard, the privileged process and the kit on a real kernel",
        (
            (
                *("tools/kernel", "test", "--timeout", "2400", "--"),
                *(f"--ignore={_KERNEL}/test_{name}.py" for name in ("mdev", "nvme", "fpga")),
                *(f"--ignore={_KERNEL}/test_{name}.py" for name in ("nvidia", "lives")),
                *(f"--ignore={_KERNEL}/test_{name}.py" for name in ("cleaning", "devlink")),
            ),
        ),
        (*_KERNEL_SUBJECTS, "cyborg/agent/findings.py", "cyborg/agent/device_events.py"),
        turn=4,
    ),
    Job(
        "keystone",
        "real Keystone: the SDK, tempest, all commands, both defaults of the policies",
        ((*_TEST, "--full", "--services", SERVERS, "--", f"{_FUNCTIONAL}/keystone"),),
        (
            "cyborg/api",
            "client/cyborg_cli",
            "cyborg/policies",
            "cyborg/policy.py",
            "cyborg/clients/http.py",
            f"{_FUNCTIONAL}/keystone",
            "cyborg/tests/fixtures/keystone.py",
        ),
        turn=1,
    ),
    Job(
        "nova",
        "real Nova: servers that boot, move and read their metadata",
        ((*_TEST, "--nova", SERVERS, *_DURATIONS),),
        (
            "client/cyborg_cli/compute.py",
            "client/cyborg_cli/instance_moves.py",
            "cyborg/api/controllers/v2/arqs.py",
            "cyborg/api/controllers/v2/vendordata.py",
            "cyborg/clients/nova.py",
            "cyborg/conductor/arqs",
            "cyborg/conductor/tasks/nova_events.py",
            f"{_FUNCTIONAL}/nova",
            "cyborg/tests/fixtures/real_nova.py",
        ),
        turn=3,
    ),
    Job(
        "contract",
        "drivers and quickstart on all hosts, and the tables of personas",
        (
            (
                *(*_TEST, "--full", "--serverless", "--"),
                *(f"{_UNIT}/testing", f"{_UNIT}/drivers", f"{_UNIT}/api/test_personas.py"),
            ),
            (*_TEST, "--full", "--", f"{_FUNCTIONAL}/life/test_scenario_hosts.py"),
            (*_TEST, "--full", "--", "tools/tests/test_quickstart.py", "-k", "scenario_host"),
        ),
        (
            "cyborg/drivers",
            "cyborg/testing",
            "tools/cyborg_tools/quickstart",
            f"{_UNIT}/testing",
            "cyborg/policies",
            f"{_UNIT}/api/test_personas.py",
        ),
        turn=2,
        variables=(("CYBORG_TEST_FUZZ", "1"),),
    ),
    Job(
        "dashboard",
        "the panels on a real Horizon, in Chromium",
        (("tools/dashboard",),),
        (
            "dashboard",
            "tools/cyborg_tools/dashboard",
            "tools/cyborg_tools/quickstart",
            "tools/dashboard",
            "cyborg/api",
            "cyborg/policies",
            "cyborg/testing/hosts.d",
        ),
        turn=6,
    ),
    Job(
        "malformed",
        "generated input of every parser",
        ((*_TEST, "--serverless", "--", _UNIT, "-k", "malformed or nearly_valid"),),
        ("cyborg/api", "client/cyborg_cli", "cyborg/drivers", "cyborg/model", "cyborg/rpc"),
        turn=1,
        variables=(("CYBORG_TEST_ALL", "1"), ("CYBORG_TEST_FUZZ", "1")),
    ),
    Job(
        "lowest",
        "unit tests with the oldest libraries that are allowed",
        ((*_TEST, "--lowest"),),
        ("requirements.txt", "client/requirements.txt", "test-requirements.txt", "setup.cfg"),
        turn=3,
    ),
    Job(
        "walkthrough",
        "all that operators do, over TLS and with signed messages; the commands of the documents",
        (
            ("tools/walkthrough", "--tls", SERVERS),
            ("tools/walkthrough", "--examples", SERVERS),
            (*_TEST, "--services", SERVERS, "--", "tools/tests/services"),
        ),
        (
            *_CLOUD,
            "client/cyborg_cli",
            "cyborg/wsgi",
            "tools/cyborg_tools/walkthrough",
            "tools/cyborg_tools/dev",
            "tools/tests/services",
            "doc/source",
        ),
        turn=5,
    ),
    Job(
        "chaos-short",
        "processes killed, servers restarted, disks filled, under load",
        (("tools/chaos", "--short", "--seed", SEED),),
        (*_CLOUD, "tools/cyborg_tools/chaos"),
        turn=6,
    ),
    Job(
        "chaos-night",
        "the faults of a night, and what operators are shown",
        (("tools/chaos", "--night", "--seed", SEED),),
        (*_CLOUD, "cyborg/conductor/audit", "tools/cyborg_tools/chaos"),
        turn=7,
    ),
    Job(
        "edge",
        "each web server: the walk of a client, and attacks without a token",
        (
            (
                *(*_TEST, "--full", "--services", SERVERS, "--"),
                *(f"{_FUNCTIONAL}/edge", f"{_FUNCTIONAL}/deployed"),
            ),
        ),
        (
            "cyborg/wsgi",
            "cyborg/api/app.py",
            "cyborg/api/framework.py",
            "etc",
            f"{_FUNCTIONAL}/edge",
            f"{_FUNCTIONAL}/deployed",
        ),
        turn=2,
    ),
    Job(
        "outages",
        "servers that are lost or refuse, clusters, signing begun, the nodes of devstack",
        (
            (
                *(*_TEST, "--full", "--services", SERVERS, "--"),
                f"{_FUNCTIONAL}/cluster",
                f"{_FUNCTIONAL}/daemons/test_outages.py",
                f"{_FUNCTIONAL}/daemons/test_refusals.py",
                f"{_FUNCTIONAL}/rolling/test_signing.py",
                f"{_FUNCTIONAL}/devstack",
            ),
        ),
        (
            *_CLOUD,
            "devstack",
            "cyborg/db/faults.py",
            "cyborg/db/migrations",
            "cyborg/db/schema.py",
            "cyborg/db/schema_lock.py",
            f"{_FUNCTIONAL}/cluster",
            f"{_FUNCTIONAL}/daemons/test_outages.py",
            f"{_FUNCTIONAL}/daemons/test_refusals.py",
            f"{_FUNCTIONAL}/rolling/test_signing.py",
            f"{_FUNCTIONAL}/devstack",
        ),
        turn=4,
    ),
    Job(
        "crashes",
        "crashes at all boundaries, and a hundred differences of Placement",
        ((*_TEST, "--services", SERVERS, "--", f"{_FUNCTIONAL}/crash", f"{_FUNCTIONAL}/drift"),),
        (
            "cyborg/conductor/arqs",
            "cyborg/conductor/reports",
            "cyborg/conductor/tasks",
            "cyborg/agent/reporter.py",
            f"{_FUNCTIONAL}/crash",
            f"{_FUNCTIONAL}/drift",
        ),
        turn=5,
        variables=(("CYBORG_TEST_ALL", "1"),),
    ),
    Job(
        "documents",
        "documents, without a warning",
        (("tools/docs",),),
        ("doc", "api-ref", "releasenotes", "cyborg/conf", "cyborg/policies"),
        turn=3,
    ),
    Job(
        "archive",
        "install from a git archive, the client beside others, and the environments of tox",
        ((".ci/archive",), (".ci/client",), (".ci/tox",)),
        (
            "setup.py",
            "setup.cfg",
            "pyproject.toml",
            "MANIFEST.in",
            "requirements.txt",
            "test-requirements.txt",
            "tox.ini",
            "tools/environment.py",
            "tools/tox-install",
            "client",
            ".ci/archive",
            ".ci/client",
            ".ci/tox",
        ),
        turn=6,
    ),
    Job(
        "advisories",
        "advisories about dependencies",
        (("tools/dependencies", "audit"),),
        ("constraints.txt", "requirements.txt", "client/requirements.txt"),
        turn=7,
        # 77: the advisories cannot be asked.
        statuses=(77,),
    ),
)
