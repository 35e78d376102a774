"""A batch of MuJoCo models in Warp (mujoco_warp) as functions of a state, on Warp's CPU device.

All that a step of MuJoCo depends on is copied into Warp's arrays before it, and out of them after: a state is NumPy
arrays, and no derived quantity outlives a step. Rewards and ends are a task's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.native.simulators.warp_tasks import Task

_CONTACTS, _CONSTRAINTS = 32, 160
"""Room for those of one environment, far more than bodies of so few parts make."""
_PHYSICS = ("qpos", "qvel", "act", "qacc_warmstart", "time")
"""Arrays of mujoco_warp's Data that a step depends on besides `ctrl`."""


@dataclass(frozen=True, slots=True)
class WarpState:
    """The state of a batch: arrays `[num_envs, ...]` that nobody changes."""

    physics: tuple[NDArray[np.float32], ...]
    """In the order of Data's qpos, qvel, act, qacc_warmstart, time."""
    observation: NDArray[np.float32]
    reward: NDArray[np.float32]
    done: NDArray[np.bool_]


class WarpProgram:
    """The functions of `num_envs` environments of one task; `data` is mujoco_warp's, of the latest step."""

    def __init__(self, task: Task, num_envs: int) -> None:
        """Load the model; Warp compiles its kernels in the first step, once for this user on this machine.

        Raises:
            ImportError: mujoco_warp is not installed.
            Exception: Whatever mujoco_warp raises for the model.
        """
        import mujoco  # noqa: PLC0415  (an optional extra)
        import warp  # noqa: PLC0415  (the same)

        warp.config.log_level = warp.LOG_ERROR  # it prints each kernel that it loads
        import mujoco_warp  # noqa: PLC0415  (the same)

        model = mujoco.MjModel.from_xml_path(str(task.model))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self._warp, self._mujoco_warp, self._task, self.num_envs = warp, mujoco_warp, task, num_envs
        with warp.ScopedDevice("cpu"):
            self.model = mujoco_warp.put_model(model)
            self.data = mujoco_warp.put_data(model, data, nworld=num_envs, nconmax=_CONTACTS, njmax=_CONSTRAINTS)
        self.control_range: NDArray[np.float32] = model.actuator_ctrlrange.astype(np.float32)
        self._seconds = float(model.opt.timestep) * task.frame_skip
        self._initial = np.array(data.qpos, np.float32), np.array(data.qvel, np.float32)
        state = self._fresh_state()
        self.leaves = [(array.shape, array.dtype) for array in self.arrays(state)]
        self.observation_shape: tuple[int, ...] = state.observation.shape[1:]
        self.observation_dtype = np.dtype(np.float32)

    def fresh(self, keys: NDArray[np.uint32], episodes: NDArray[np.int32]) -> WarpState:
        """Return the state of new episodes: their noise is NumPy's PCG64 of key and number."""
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        return self.replace(self._fresh_state(), keys, episodes, everyone)

    def step(self, state: WarpState, action: NDArray[np.float32]) -> WarpState:
        """Return the state after one step of all: `frame_skip` of MuJoCo with the same controls."""
        for name, array in zip(_PHYSICS, state.physics, strict=True):
            self._numpy(name)[:] = array
        self._numpy("ctrl")[:] = action
        with self._warp.ScopedDevice("cpu"):
            for _ in range(self._task.frame_skip):
                self._mujoco_warp.step(self.model, self.data)
        physics = tuple(self._numpy(name).copy() for name in _PHYSICS)
        reward, done = self._task.judge(state.physics[0], physics[0], physics[1], action, self._seconds)
        return WarpState(physics, self._task.observe(*physics[:2]), reward.astype(np.float32), done)

    def replace(
        self, state: WarpState, keys: NDArray[np.uint32], episodes: NDArray[np.int32], over: NDArray[np.bool_]
    ) -> WarpState:
        """Return the state with new episodes for the environments in `over`."""
        physics = tuple(array.copy() for array in state.physics)
        for env in np.flatnonzero(over).tolist():
            drawn = np.random.default_rng([*keys[env].tolist(), int(episodes[env])])
            for array in physics:
                array[env] = 0
            physics[0][env], physics[1][env] = self._task.start(*self._initial, drawn)
        seen = np.where(over[:, None], self._task.observe(*physics[:2]), state.observation)
        reward, done = np.where(over, np.float32(0), state.reward), state.done & ~over
        return WarpState(physics, seen, reward, done)

    @staticmethod
    def observation(state: WarpState) -> NDArray[np.float32]:
        """Return a state's observations, `[num_envs, ...]`."""
        return state.observation

    @staticmethod
    def rewards(state: WarpState) -> NDArray[np.float32]:
        """Return a state's rewards, `[num_envs]`."""
        return state.reward

    @staticmethod
    def dones(state: WarpState) -> NDArray[np.bool_]:
        """Return for each environment whether its episode has ended."""
        return state.done

    @staticmethod
    def arrays(state: WarpState) -> list[NDArray[Any]]:
        """Return copies of all arrays of a state."""
        return [array.copy() for array in (*state.physics, state.observation, state.reward, state.done)]

    @staticmethod
    def state_of(arrays: list[NDArray[Any]]) -> WarpState:
        """Return the state that has such arrays, which are copied."""
        *physics, observation, reward, done = (np.array(array) for array in arrays)
        return WarpState(tuple(physics), observation, reward, done)

    def _fresh_state(self) -> WarpState:
        physics = tuple(np.zeros_like(self._numpy(name)) for name in _PHYSICS)
        observation = self._task.observe(*physics[:2])
        count = self.num_envs
        return WarpState(physics, observation, np.zeros(count, np.float32), np.zeros(count, np.bool_))

    def _numpy(self, name: str) -> NDArray[np.float32]:
        """Return the memory of one of Data's arrays, `[num_envs, ...]`."""
        array: NDArray[np.float32] = getattr(self.data, name).numpy()
        return array
