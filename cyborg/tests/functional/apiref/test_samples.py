# SPDX-License-Identifier: Apache-2.0
"""Every sample of the reference is what was asked and answered; each one is shown in its place."""

import re
from collections.abc import Mapping

import pytest
from oslo_config import cfg

from cyborg.model.scope import Scope
from cyborg.tests import committed
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.functional.apiref import refusals
from cyborg.tests.functional.apiref.recorder import Recorder
from cyborg.tests.functional.apiref.site import described_site
from cyborg.tests.functional.apiref.story import PROJECT, USERS, Story
from cyborg.tests.functional.environments import new_environment
from cyborg.tests.unit.api_reference import SAMPLES, methods, minor, version

HOW = committed.advice("The samples are not what the API answers.", "functional/apiref")


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, placement: PlacementService, conf: cfg.ConfigOpts
) -> Recorder:
    """The samples of one run."""
    files = tmp_path_factory.mktemp("reference")
    compute = fresh_host("reference")
    project, shown = Scope.of_project(PROJECT), "compute-1.example.com"
    names = {
        **USERS,
        str(project.host(compute)): str(project.host(shown)),
        compute: shown,
        compute.replace(".", "_"): "compute-1_example_com",
    }
    recorder = Recorder(names)
    with new_environment(files, placement) as (environment, nova, glance):
        site = described_site(environment, conf, files, compute)
        try:
            Story(site, recorder, placement, nova, glance).tell()
            refusals.tell(site, recorder)
        finally:
            site.processes.stop()
    return recorder


def kept() -> Mapping[str, str]:
    """The samples as they are in the reference."""
    found = sorted(SAMPLES.glob("**/*.json"))
    return {str(one.relative_to(SAMPLES).with_suffix("")): one.read_text() for one in found}


def test_samples_equal_the_responses_of_the_api(recorded: Recorder) -> None:
    if committed.REWRITE:
        for name in kept().keys() - recorded.texts.keys():
            (SAMPLES / f"{name}.json").unlink()
        for name, text in recorded.texts.items():
            file = SAMPLES / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    assert kept() == recorded.texts, HOW


def test_samples_are_shown_with_their_request(recorded: Recorder) -> None:
    for name, made in recorded.exchanges.items():
        if name.startswith("errors/"):
            continue
        path = f"/v2{made.path.partition('?')[0]}"
        (shown,) = (
            one
            for one in methods()
            if one.method == made.method
            and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one.url), path)
            and any(sample.startswith(f"{name}-re") for sample in one.samples)
        )
        assert made.status == shown.codes[0], name
        assert version(f"{name}-resp") == minor(made.version or "2.0"), name
