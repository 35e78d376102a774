"""Writes a policy as a file for other runtimes: a graph in ONNX, or a program of torch.export."""

from __future__ import annotations

import io
import json
import logging
import warnings
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from penstock.native.adapters.structured_actions import leaf_formats
from penstock.native.teams.structured import TeamSpace
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.transfer.replacing import replacing, require_file

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.native.interface import ActionLeafFormat
    from penstock.tasks.inference.policy import Policy

FORMATS = ("onnx", "torch")

_ROWS = 2  # of the example that is traced; the number of rows of a batch stays free
_OPSET = 20
_ABOUT = "penstock.json"


class PolicyProgram(torch.nn.Module):
    """A policy as one function of tensors: what `export_policy` traces.

    `forward(observation, noise)` returns `(action,)`; with a memory, `forward(observation, noise, memory)` returns
    `(action, next_memory)`. Zero noise gives greedy actions; see `about` for the noise of sampled ones.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._algorithm = policy.algorithm
        self._names: dict[str, dict[str, str]] = {}
        for group, named in policy.params.items():
            self._names[group] = {name: f"{group}__{name}".replace(".", "__") for name in named}
            for name, value in named.items():
                self.register_buffer(self._names[group][name], value.detach().cpu().clone())

    def forward(self, observation: Tensor, noise: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return actions `[B, ...]`, and the next memory `[B, ...]` if there is one."""
        params = {
            group: {name: self.get_buffer(buffer) for name, buffer in named.items()}
            for group, named in self._names.items()
        }
        columns, following = self._algorithm.act(params, memory, observation, noise)
        return (columns["action"],) if following is None else (columns["action"], following)


def export_policy(policy: Policy, path: Path, kind: str) -> dict[str, Any]:
    """Write a policy as a file, whole or not at all; an existing file is replaced.

    Args:
        policy: a loaded policy.
        path: the file.
        kind: `onnx`, or `torch` for a program that `torch.export.load` reads.

    Returns:
        Names, shapes and dtypes of inputs and outputs, the kind of noise and the policy's origin; the file has them
        too: as the property `penstock` of the ONNX model, or as the extra file `penstock.json` of torch's program.

    Raises:
        ConfigError: the format is unknown, the path can't be a file's, a package is missing, or the algorithm's `act`
            can't be traced.
        PenstockError: the file can't be written.
    """
    if kind not in FORMATS:
        raise ConfigError(f"the format {kind!r} is not known, expected {' or '.join(map(repr, FORMATS))}")
    require_file(path)
    about = describe_program(policy)
    inputs = _example(policy)
    program = _traced(PolicyProgram(policy).eval(), inputs)
    if kind == "torch":
        # In memory first: of a full disk torch's writer ends the process.
        file = io.BytesIO()
        torch.export.save(program, file, extra_files={_ABOUT: json.dumps(about)})
        data = file.getvalue()
    else:
        data = _onnx_of(program, inputs, about)
    try:
        with replacing(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise PenstockError(f"'{path}' can't be written: {error.strerror}; choose a folder with space") from error
    return about


def describe_program(policy: Policy) -> dict[str, Any]:
    """Describe the inputs and outputs of an exported policy; `B` is the number of rows, which is free."""
    environment, memory = policy.environment, policy.algorithm.initial_carry(_ROWS)
    spec, action, noise = environment.observation, environment.action.spec, policy.algorithm.noise
    inputs: list[dict[str, Any]] = [
        {"name": "observation", "dtype": str(spec.dtype), "shape": ["B", *spec.shape]},
        {"name": "noise", "dtype": "float32", "shape": ["B", *noise.shape], "kind": noise.kind, "greedy": 0.0},
    ]
    if spec.leaves:
        inputs[0]["leaves"] = [leaf.to_json() for leaf in spec.leaves]
    outputs: list[dict[str, Any]] = [{"name": "action", "dtype": str(action.dtype), "shape": ["B", *action.shape]}]
    if isinstance(policy.action_space, Discrete) and policy.action_space.start:
        # The environment's own choice is the action plus this number.
        outputs[0]["start"] = int(policy.action_space.start)
    if isinstance(policy.action_space, TeamSpace):
        # The agents' own actions are `penstock.native.teams.structured.team_action(space, action)`.
        outputs[0]["agents"] = [
            {"name": name, "leaves": [_without_infinities(leaf) for leaf in leaf_formats(policy.action_space[name])]}
            for name in policy.action_space.agents
        ]
    elif environment.action.kind == "structured":
        # The environment's own action is `penstock.native.adapters.structured_actions.own_action(space, action)`.
        outputs[0]["leaves"] = [_without_infinities(leaf) for leaf in leaf_formats(policy.action_space)]
    if memory is not None:
        carried = {"dtype": "float32", "shape": ["B", *memory.shape[1:]]}
        inputs.append({"name": "memory", **carried, "start": 0.0})
        outputs.append({"name": "next_memory", **carried})
    return {
        "environment": environment.name,
        "inputs": inputs,
        "outputs": outputs,
        "origin": asdict(policy.origin),
    }


def _without_infinities(leaf: ActionLeafFormat) -> dict[str, Any]:
    """Return a leaf as JSON has it: None for a bound that there is not."""
    bounds = {
        name: [each if isfinite(each) else None for each in values]
        for name, values in (("low", leaf.get("low", [])), ("high", leaf.get("high", [])))
        if values
    }
    return {**leaf, "shape": [*leaf["shape"]], **bounds}


def _example(policy: Policy) -> tuple[Tensor, ...]:
    spec, noise = policy.environment.observation, policy.algorithm.noise
    observation = torch.zeros((_ROWS, *spec.shape), dtype=getattr(torch, str(spec.dtype)))
    memory = policy.algorithm.initial_carry(_ROWS)
    inputs = (observation, torch.zeros((_ROWS, *noise.shape)))
    return inputs if memory is None else (*inputs, memory)


def _traced(program: PolicyProgram, inputs: tuple[Tensor, ...]) -> Any:
    rows = torch.export.Dim("rows", min=1)
    try:
        # Not inference mode, whose tensors can't be traced.
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own modules, about each other
            shapes = tuple({0: rows} for _ in inputs)
            return torch.export.export(program, inputs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise ConfigError(
            f"the policy can't be exported: torch.export can't trace `act` of {type(program._algorithm).__name__}: "  # noqa: SLF001
            f"{str(error).strip().splitlines()[0]}. A custom algorithm's `act` may not branch on values of tensors"
        ) from error


def _onnx_of(program: Any, inputs: tuple[Tensor, ...], about: dict[str, Any]) -> bytes:
    try:
        import onnx  # noqa: PLC0415  (an extra)
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs packages that are not installed ({error}): pip install 'penstock-rl[onnx]'; --to torch needs "
            f"none"
        ) from error
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # It warns that torchvision is not installed, which no policy needs.
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        exported = torch.onnx.export(
            program,
            inputs,
            dynamo=True,
            verbose=False,
            opset_version=_OPSET,
            input_names=[each["name"] for each in about["inputs"]],
            output_names=[each["name"] for each in about["outputs"]],
        )
    assert exported is not None
    model = exported.model_proto
    model.metadata_props.add(key="penstock", value=json.dumps(about))
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
