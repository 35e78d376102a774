"""`penstock check-env` for ids behind a socket: leaves and masks are found, and only allowed actions are taken."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from penstock.flows.cli.check import check
from penstock.native.conformance.runner import check_id
from penstock.native.sockets.server import EnvironmentServer
from penstock.storage.errors import ConfigError

from ...support.environments import structured, structured_environments
from ...support.environments.structured import MASKED, Explorer
from ...support.environments.structured_environments import SCENE
from ...support.services.environment_server import EnvironmentProcess
from ..sockets.test_c import compiled
from ..sockets.test_masks import LIGHTS
from ..sockets.test_socket_pool import serving
from ..sockets.test_versions import old_python
from .test_own_environment import outcomes

FORMATS, MASK = "rounds can hold observations and actions", "the mask allows a choice in every step"
CALLS = itertools.count()


def checked(served: Any) -> Any:
    """Check the environment of a server that is in this process."""
    with serving(EnvironmentServer(served, "Served", "127.0.0.1:0")) as server:
        return check_id("socket/Served", {"address": server.address})


def test_an_environment_that_refuses_forbidden_actions_passes():
    """In a process of its own: every check applies, and the settings of a run are named."""
    with EnvironmentProcess(f"{structured.__name__}:{MASKED}") as server:
        (report,) = check(f"socket/{MASKED}", resources="", sanitize=False, address=server.address)
        found = outcomes(report)
        assert report.passed
        assert {outcome for outcome, _ in found.values()} == {"pass"}
        assert "action_mask (bits), arm.position (numbers), camera (image)" in found[FORMATS][1]
        assert f"environment.address = '{server.address}'" in found[FORMATS][1]
        assert "environment.structured = true, environment.action_mask = 'info'" in found[FORMATS][1]
        assert found[MASK] == ("pass", "67% of the choices are allowed")
        assert "gymnasium.utils.env_checker" not in found


@pytest.mark.slow
def test_the_mask_of_a_dict_is_found():
    """The server is not asked for another one."""
    found = outcomes(checked(partial(Explorer, masked="observation")))
    assert {outcome for outcome, _ in found.values()} == {"pass"}
    assert "environment.action_mask = 'observation'" in found[FORMATS][1]
    assert found[MASK] == ("pass", "67% of the choices are allowed")


@pytest.mark.slow
def test_structured_actions_are_taken(monkeypatch: pytest.MonkeyPatch):
    """With nested observations and no mask, at the variable's address; Gymnasium's checker plays over the socket."""
    with EnvironmentProcess(f"{structured_environments.__name__}:{SCENE}") as server:
        monkeypatch.setenv("PENSTOCK_ENVIRONMENT_ADDRESS", server.address)
        report = check_id(f"socket/{SCENE}")
    found = outcomes(report)
    assert {outcome for outcome, _ in found.values()} == {"pass"}
    assert "rest.1.bits (bits); settings of a run: environment.structured = true" in found[FORMATS][1]
    assert "action_mask" not in found[FORMATS][1]
    assert "gymnasium.utils.env_checker" in found


def test_a_single_array_behind_a_mask_is_not_structured():
    """Its mask is found by itself."""
    found = outcomes(checked(partial(Explorer, masked="info", flat=True)))
    assert {outcome for outcome, _ in found.values()} == {"pass"}
    assert "environment.action_mask = 'info'" in found[FORMATS][1]
    assert "structured" not in found[FORMATS][1]


@pytest.mark.slow
def test_masks_of_servers_in_c_are_found(tmp_path: Any):
    """The server ends at a forbidden choice. One without masks refuses them, as one of version 1 does."""
    (tmp_path / "lights.c").write_text(LIGHTS)
    with EnvironmentProcess(command=[compiled(tmp_path / "lights.c", tmp_path / "lights")]) as server:
        report = check_id("socket/Lights", {"address": server.address})
    assert report.passed
    assert "environment.action_mask = 'info'" in outcomes(report)[FORMATS][1]
    with old_python("CartPole-v1") as old:
        report = check_id("socket/CartPole-v1", {"address": old.address})
    assert report.passed
    assert MASK not in outcomes(report)


class Flawed(Explorer):
    """Has the fault of its name."""

    def __init__(self, fault: str) -> None:
        super().__init__(masked="info", flat=fault == "bounds")
        self.fault = fault
        if fault == "bounds":
            self.observation_space = Box(-0.5, 0.5, (3,), np.float32)

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        observation, info = super()._observe()
        if self.fault == "clock":
            observation["arm"]["position"][0] = next(CALLS)
        elif self.fault == "later" and self.steps == 3:
            info.clear()
        elif self.fault == "wrong":
            info["action_mask"] = np.array([1, 0])
        return observation, info


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ("later", MASK, "'action_mask' is missing in the info of environment"),
        pytest.param(
            "clock",
            "the same seed, the same episodes",
            "the observation of environment 0 differs at step 0",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "bounds", "spaces contain what is observed", "correct its type, shape or bounds", marks=pytest.mark.slow
        ),
    ],
)
def test_a_fault_of_a_masked_environment_is_found(fault: str, name: str, said: str):
    """By the check that is about it."""
    outcome, detail = outcomes(checked(partial(Flawed, fault)))[name]
    assert outcome == "fail"
    assert said in detail


def test_what_can_not_be_checked_is_named(monkeypatch: pytest.MonkeyPatch):
    """A first mask that is none, a server that is not there, and an address that no server would be reached at."""
    with pytest.raises(ValueError, match=r"socket/Served: the server at .*: 'action_mask' is array\(\[1, 0\]\)"):
        checked(partial(Flawed, "wrong"))
    with pytest.raises(ConfigError, match="there is no address: expected"):
        check("socket/Served", resources="", sanitize=False)
    with pytest.raises(ConfigError, match="CartPole-v1 is behind no socket: leave it out"):
        check("CartPole-v1", resources="", sanitize=False, address="127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_ENVIRONMENT_ADDRESS", "127.0.0.1:2")
    with pytest.raises(ConfigError, match=r"PENSTOCK_ENVIRONMENT_ADDRESS=127\.0\.0\.1:2 would replace it"):
        check("socket/Served", resources="", sanitize=False, address="127.0.0.1:1")
