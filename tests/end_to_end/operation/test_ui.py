"""Prefect's UI shows a run of the command, as a browser displays it.

Needs Debian's Chromium, or another that `PENSTOCK_CHROMIUM` names. With `PENSTOCK_SCREENSHOTS`, a folder, the pictures
are kept there: those in `docs/images/` come from it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright
from prefect.deployments.runner import RunnerDeployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from ..conftest import BRIEF
from .test_finished_run import ask
from .test_sweeps import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
PATIENCE_MILLISECONDS = 60_000.0


@pytest.fixture(scope="module")
def chromium() -> str:
    named = os.environ.get("PENSTOCK_CHROMIUM", "chromium")
    found = shutil.which(named)
    if found is None:
        pytest.skip(f"there is no {named}: apt-get install chromium, or name one in PENSTOCK_CHROMIUM")
    return found


@pytest.fixture(scope="module")
def page(chromium, prefect_api) -> Iterator[Page]:
    """Open a tab on the UI that Prefect's server serves."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(
            viewport={"width": 1280, "height": 860}, base_url=prefect_api.removesuffix("/api"), color_scheme="light"
        )
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        expect.set_options(timeout=PATIENCE_MILLISECONDS)
        yield page
        browser.close()


@pytest.fixture
def picture(tmp_path):
    """Return a function that takes a screenshot of a page."""
    folder = Path(os.environ.get("PENSTOCK_SCREENSHOTS", tmp_path))

    def take(page: Page, name: str) -> None:
        page.wait_for_timeout(500)  # pages fade in
        assert page.screenshot(path=folder / f"{name}.png")

    return take


@pytest.fixture(scope="module")
def run(references, prefect_api):
    """Return a finished run and its flow run's id."""
    run = references.run(BRIEF)
    (flow_run,) = ask(prefect_api, "flow_runs/filter", {"flow_runs": {"name": {"any_": [f"train {run.name}"]}}})
    return run, flow_run["id"]


def test_the_page_of_a_run_shows_state_tasks_and_logs(page, run, picture):
    """The page has the state, the roles stage by stage, and log lines of Dask workers under the roles' names."""
    stored, flow_run = run
    page.goto(f"/v2/runs/flow-run/{flow_run}")
    expect(page.get_by_text(f"train {stored.name}").first).to_be_visible()
    expect(page.get_by_text("Completed").first).to_be_visible()
    expect(page.get_by_text(re.compile("committed stage=0")).first).to_be_visible()
    picture(page, "run")
    page.get_by_role("tab", name="Task Runs").click()
    for role in ("act", "learn", "evaluate"):
        for stage in range(BRIEF.stages):
            expect(page.get_by_text(f"{role} stage {stage}", exact=True).first).to_be_visible()


def test_the_artifacts_of_a_run_are_shown(page, run, picture):
    """The table has a row a stage, the curve is a picture that loads, and the summary says what to do next."""
    stored, _ = run
    open_artifact(page, f"{stored.name}-stages")
    for column in ("steps/s", "return", "wait share", "lag", "shard bytes"):
        expect(page.get_by_role("columnheader", name=column, exact=True)).to_be_visible()
    expect(page.get_by_test_id("table-display").get_by_role("row")).to_have_count(BRIEF.stages + 1)
    picture(page, "stages")
    for kind in ("curve", "summary"):
        open_artifact(page, f"{stored.name}-{kind}")
        image = page.locator("img[src^='data:image/svg']")
        expect(image).to_be_visible()
        assert image.evaluate("image => image.naturalWidth") > 100
        picture(page, kind)
    expect(page.get_by_text("What to do next:")).to_be_visible()
    expect(page.get_by_text(f"penstock show {stored.name}")).to_be_visible()


def test_the_artifacts_of_a_sweep_are_shown(page, bench, prefect_api, picture, tmp_path):
    """Its flow run names a table, which has a row a trial, the best first, and a picture that loads."""
    space = {"learning_rate": {"low": 0.001, "high": 0.1, "log": True}, "epochs": [1, 2, 4]}
    sweep = Sweep(bench, "search", tmp_path / "runs", {"name": "tpe", "space": space, "trials": 5, "startup_trials": 2})
    try:
        sweep.succeed()
    finally:
        sweep.kill()
    table = json.loads(sweep.store.read(".sweeps/tpe/table.json"))
    assert len(table) == 5
    (flow_run,) = ask(prefect_api, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["search tpe"]}}})
    page.goto(f"/v2/runs/flow-run/{flow_run['id']}")
    page.get_by_role("tab", name="Artifacts").click()
    for key in ("tpe-sweep", "tpe-parallel-coordinates"):
        expect(page.get_by_text(key).first).to_be_visible()
    open_artifact(page, "tpe-sweep")
    rows = page.get_by_test_id("table-display").get_by_role("row")
    expect(rows).to_have_count(len(table) + 1)
    for place, trial in enumerate(table, start=1):
        expect(rows.nth(place)).to_contain_text(trial["run"])
    picture(page, "sweep-table")
    open_artifact(page, "tpe-parallel-coordinates")
    image = page.locator("img[src^='data:image/svg']")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.naturalWidth") > 100
    picture(page, "sweep")


def open_artifact(page: Page, key: str) -> None:
    """Go to the newest artifact of a key."""
    found = page.request.post("/api/artifacts/latest/filter", data={"artifacts": {"key": {"any_": [key]}}}).json()
    page.goto(f"/v2/artifacts/artifact/{found[0]['latest_id']}")


def test_the_form_asks_for_every_group_of_settings(page, prefect_api, picture):
    """Fields have the order of the settings and their help; a value out of bounds is refused before anything starts."""
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        deployment = RunnerDeployment.from_entrypoint("penstock.flows.train.train", name="form").apply(_sync=True)
    page.goto(f"/v2/deployments/deployment/{deployment}/run")
    labels = ("Name", "Seed", "Store", "Environment", "Num Envs", "Schedule", "Lag", "Cluster", "Stall Seconds")
    fields = [page.get_by_text(re.compile(rf"^{label} \(Optional\)$")) for label in labels]
    expect(fields[-1]).to_be_visible()
    heights = [field.first.bounding_box()["y"] for field in fields]
    assert heights == sorted(heights)
    for text in ("Seed of all random numbers.", "Steps of every environment in a round."):
        expect(page.get_by_text(text).first).to_be_visible()
    picture(page, "form")
    wrong = {"parameters": {"config": {"seed": -1}}}
    refused = page.request.post(f"/api/deployments/{deployment}/create_flow_run", data=wrong)
    assert not refused.ok
    assert "minimum of 0" in refused.text()
