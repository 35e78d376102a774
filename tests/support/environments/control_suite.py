"""The control suite's tasks, computed with Python's `mujoco` and NumPy alone, to hold the pool's against.

Exponentials and logarithms are the C library's, as the pool's are: NumPy's own differ in the last digit on some
processors.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import mujoco
import numpy as np

from .control_suite_models import model_of, terrain

OWN_ARRAYS: dict[str, tuple[str, ...]] = {
    "reacher": ("geom_pos",),
    "swimmer": ("geom_pos",),
    "fish-swim": ("geom_pos",),
    "finger-spin": ("dof_damping",),
    "finger-turn": ("site_pos",),
    "lqr": ("jnt_stiffness",),
    "manipulator": ("body_pos", "body_quat"),
    "point_mass-hard": ("wrap_prm",),
    "quadruped-escape": ("bumps",),
    "stacker": ("body_pos",),
}
"""By the beginning of a task's name, the arrays of the model that each environment has for itself; `bumps` are the
numbers of which its height field is made."""
CONTROL_SECONDS = {
    "ball_in_cup": 0.02,
    "dog": 0.015,
    "finger": 0.02,
    "fish": 0.04,
    "hopper": 0.02,
    "humanoid": 0.025,
    "humanoid_CMU": 0.02,
    "manipulator": 0.01,
    "quadruped": 0.02,
    "stacker": 0.01,
    "swimmer": 0.03,
    "walker": 0.025,
}
ARM = ("arm_root", "arm_shoulder", "arm_elbow", "arm_wrist", "finger", "fingertip", "thumb", "thumbtip")
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
HINGE = mujoco.mjtJoint.mjJNT_HINGE


def tolerance(x, low=0.0, high=0.0, margin=0.0, kind="gaussian", at_margin=0.1) -> Any:
    """Return the suite's reward: 1 within the bounds, a sigmoid of the distance outside; of an array, of each value."""
    if isinstance(x, np.ndarray):
        return np.array(
            [_tolerance(value, low, high, margin, kind, at_margin, lambda d: d * d) for value in x.tolist()]
        )
    return _tolerance(float(x), low, high, margin, kind, at_margin, lambda d: math.pow(d, 2))


def _tolerance(x, low, high, margin, kind, at_margin, square) -> float:
    if low <= x <= high or margin == 0:
        return float(low <= x <= high)
    d = (low - x if x < low else x - high) / margin
    if kind == "gaussian":
        return math.exp(-0.5 * square(d * math.sqrt(-2 * math.log(at_margin))))
    if kind == "reciprocal":
        return 1 / (d * (1 / at_margin - 1) + 1)
    if kind == "long_tail":
        return 1 / (square(d * math.sqrt(1 / at_margin - 1)) + 1)
    d = d * (1 - at_margin) if kind == "linear" else square(d * math.sqrt(1 - at_margin))
    return 1 - d if d < 1 else 0.0


class Reference:
    """One environment of a task `domain-task`."""

    def __init__(self, name: str) -> None:
        self.domain, self.task = name.split("-")
        self.model = copy.copy(model_of(self.domain, self.task))
        self.data = mujoco.MjData(self.model)
        own = next((arrays for start, arrays in OWN_ARRAYS.items() if name.startswith(start)), ())
        self.own = {array: np.empty((30, 30)) if array == "bumps" else getattr(self.model, array) for array in own}
        self.own_size = sum(array.size for array in self.own.values())
        low, high = self.model.actuator_ctrlrange.T
        limited = self.model.actuator_ctrllimited.astype(bool)
        self.bounds = [np.where(limited, low, -np.inf), np.where(limited, high, np.inf)]
        self.steps = round(CONTROL_SECONDS.get(self.domain, self.model.opt.timestep) / self.model.opt.timestep)

    def load(self, state: np.ndarray) -> None:
        """A pool's saved state: MuJoCo's integration state, the sensors, and the environment's own array."""
        size = mujoco.mj_stateSize(self.model, INTEGRATION)
        end = size + self.model.nsensordata
        self.load_own(state[end:])
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, state[:size], INTEGRATION)
        mujoco.mj_step1(self.model, self.data)
        self.data.sensordata[:] = state[size:end]

    def load_own(self, values: np.ndarray) -> None:
        """The environment's own arrays of the model, one after the other."""
        for array in self.own.values():
            array[...] = values[: array.size].reshape(array.shape)
            values = values[array.size :]
        assert not values.size
        if "bumps" in self.own:
            self.model.hfield_data[:] = terrain(self.own["bumps"], self.model.hfield_nrow[0])

    def begin(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """An episode at that place: the forward dynamics without actuators, before and after it is set."""
        mujoco.mj_resetData(self.model, self.data)
        for values in (None, (qpos, qvel)):
            if values is not None:
                self.data.qpos[:], self.data.qvel[:] = values
            self.model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
            mujoco.mj_forward(self.model, self.data)
            self.model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)

    def step(self, action: np.ndarray) -> None:
        """`mj_step` for the length of a control, and what follows from the new positions and velocities."""
        self.data.ctrl[:] = np.clip(action, *np.float32(self.bounds))
        for _ in range(self.steps):
            mujoco.mj_step(self.model, self.data)
        mujoco.mj_step1(self.model, self.data)

    def observe(self) -> np.ndarray:
        parts = getattr(self, f"_observe_{self.domain.removesuffix('_CMU')}", self._observe_state)()
        return np.concatenate([np.ravel(part) for part in parts])

    def reward(self) -> float:
        return getattr(self, f"_reward_{self.domain.removesuffix('_CMU')}")()

    # Shorthands

    def _at(self, body: str, place: str) -> float:
        return self.data.body(body).xmat["xyz".index(place[0]) * 3 + "xyz".index(place[1])]

    def _sensor(self, name: str) -> np.ndarray:
        return self.data.sensor(name).data

    def _small_control(self) -> float:
        return (tolerance(self.data.ctrl, 0, 0, 1, "quadratic", 0).mean() + 4) / 5

    def _to_target(self, geom: str) -> np.ndarray:
        return self.data.geom("target").xpos - self.data.geom(geom).xpos

    def _observe_state(self) -> list[Any]:
        return [self.data.qpos, self.data.qvel]

    # Domains

    def _observe_acrobot(self):
        arms = ("upper_arm", "lower_arm")
        return [[self._at(arm, place) for place in ("xz", "zz") for arm in arms], self.data.qvel]

    def _reward_acrobot(self):
        distance = np.linalg.norm(self.data.site("target").xpos - self.data.site("tip").xpos)
        return tolerance(distance, 0, self.model.site("target").size[0], 0 if "sparse" in self.task else 1)

    def _reward_ball_in_cup(self):
        away = np.abs(self.data.site("target").xpos - self.data.body("ball").xpos)[[0, 2]]
        room = self.model.site("target").size[[0, 2]] - self.model.geom("ball").size[0]
        return float((away < room).all())

    def _poles(self):
        return [f"pole_{number}" for number in range(1, self.model.nq)]

    def _observe_cartpole(self):
        angles = [[self._at(pole, "zz"), self._at(pole, "xz")] for pole in self._poles()]
        return [self.data.qpos[:1], angles, self.data.qvel]

    def _reward_cartpole(self):
        cart, cosines = self.data.qpos[0], [self._at(pole, "zz") for pole in self._poles()]
        if "sparse" in self.task:
            return tolerance(cart, -0.25, 0.25) * np.prod([tolerance(cosine, 0.995, 1) for cosine in cosines])
        slow = (1 + tolerance(self.data.qvel[1:], margin=5).min()) / 2
        upright, centered = np.mean([(cosine + 1) / 2 for cosine in cosines]), (1 + tolerance(cart, margin=2)) / 2
        return upright * self._small_control() * slow * centered

    def _observe_cheetah(self):
        return [self.data.qpos[1:], self.data.qvel]

    def _reward_cheetah(self):
        return tolerance(self._sensor("torso_subtreelinvel")[0], 10, math.inf, 10, "linear", 0)

    def _hinges(self):
        joints = [index for index in range(self.model.njnt) if self.model.jnt_type[index] == HINGE]
        return self.data.qpos[self.model.jnt_qposadr[joints]], self.data.qvel[self.model.jnt_dofadr[joints]]

    def _dogs_velocity(self):
        return self._sensor("torso_linvel") @ self.data.body("torso").xmat.reshape(3, 3)

    def _velocity(self, kind, name):
        index = mujoco.mj_name2id(self.model, kind, name)
        velocity = np.empty(6)
        mujoco.mj_objectVelocity(self.model, self.data, kind, index, velocity, 0)
        return velocity[3:]

    def _observe_dog(self):
        names = (
            "accelerometer",
            "velocimeter",
            "gyro",
            *(f"{part}_{side}" for part in ("foot", "hand") for side in "LR"),
        )
        touch = [self._sensor(f"{part}_{side}") for part in ("palm", "sole") for side in "LR"]
        heights = [self.data.body(name).xpos[2] for name in ("torso", "pelvis")]
        upright = [self.data.body(name).xmat[6:] for name in ("skull", "torso", "pelvis")]
        sensors = [*map(self._sensor, names), *touch, self.data.act]
        seen = [*self._hinges(), heights, *upright, self._dogs_velocity(), *sensors]
        if self.task != "fetch":
            return seen
        head = self.data.site("head")
        frame, objects = head.xmat.reshape(3, 3), mujoco.mjtObj
        moves = self._velocity(objects.mjOBJ_GEOM, "ball") - self._velocity(objects.mjOBJ_SITE, "head")
        ways = [self.data.geom("ball").xpos - head.xpos, moves, self.data.geom("target").xpos - head.xpos]
        return [*seen, *(way @ frame for way in ways)]

    def _reward_dog(self):
        standing = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, standing)
        heights = {name: standing.body(name).xpos[2] * 0.9 for name in ("torso", "pelvis")}
        factors = [tolerance(self.data.body(name).xpos[2], high, math.inf, high) for name, high in heights.items()]
        cosine = np.cos(np.deg2rad(30))
        upright = [self._at(name, "zz") for name in ("skull", "torso", "pelvis")]
        factors += [tolerance(value, cosine, math.inf, cosine + 1, "linear", 0) for value in upright]
        force = sum(self._sensor(f"{part}_{side}")[0] for part in ("palm", "sole") for side in "LR")
        weight = -self.model.opt.gravity[2] * self.model.body("torso").subtreemass[0]
        factors.append(tolerance(force, weight, math.inf, weight, "linear", 0.9))
        if self.task == "fetch":
            return math.prod([*factors, *self._fetches()])
        speed = {"stand": 0, "walk": 1, "trot": 3, "run": 9}[self.task]
        if speed:
            factors.append(
                (4 * tolerance(self._dogs_velocity()[0], speed, 2 * speed, max(1, speed), "linear", 0) + 1) / 5
            )
        return math.prod(factors)

    def _fetches(self):
        ball, size = self.data.geom("ball").xpos, self.model.geom("target").size[0]
        to_mouth = 0.5 * sum(np.linalg.norm(ball - self.data.site(f"{jaw}_bite").xpos) for jaw in ("upper", "lower"))
        to_target = np.linalg.norm(ball - self.data.geom("target").xpos)
        bites = tolerance(to_mouth, 0, self.model.site("upper_bite").size[0], 2, "reciprocal")
        brings = tolerance(to_target, 0, size, self.model.geom("floor").size[0], "reciprocal")
        return (1 if to_target < 2 * size else (6 * bites + 1) / 7), (brings + 1) / 2

    def _from_spinner(self, name):
        return (self._sensor(name) - self._sensor("spinner"))[[0, 2]]

    def _distance_to_turn(self):
        radius = {"turn_easy": 0.07, "turn_hard": 0.03}[self.task]
        return np.linalg.norm(self._from_spinner("target") - self._from_spinner("tip")) - radius

    def _observe_finger(self):
        joints = [self._sensor(name) for name in ("proximal", "distal")]
        speeds = [self._sensor(f"{name}_velocity") for name in ("proximal", "distal", "hinge")]
        touch = [math.log1p(self._sensor(name)[0]) for name in ("touchtop", "touchbottom")]
        target = [] if self.task == "spin" else [self._from_spinner("target"), self._distance_to_turn()]
        return [*joints, self._from_spinner("tip"), *speeds, touch, *target]

    def _reward_finger(self):
        if self.task == "spin":
            return float(self._sensor("hinge_velocity")[0] <= -15)
        return float(self._distance_to_turn() <= 0)

    def _mouth_to_target(self):
        return self._to_target("mouth") @ self.data.geom("mouth").xmat.reshape(3, 3)

    def _observe_fish(self):
        names = (
            "tail1",
            "tail_twist",
            "tail2",
            *(f"fin{side}_{way}" for side in ("right", "left") for way in ("roll", "pitch")),
        )
        target = [self._mouth_to_target()] if self.task == "swim" else []
        return [[self.data.joint(name).qpos[0] for name in names], self._at("torso", "zz"), *target, self.data.qvel]

    def _reward_fish(self):
        upright = self._at("torso", "zz")
        if self.task == "upright":
            return tolerance(upright, 1, 1, 1)
        radii = self.model.geom("mouth").size[0] + self.model.geom("target").size[0]
        near = tolerance(np.linalg.norm(self._mouth_to_target()), 0, radii, 2 * radii)
        return (7 * near + 0.5 * (upright + 1)) / 8

    def _observe_hopper(self):
        touch = [math.log1p(self._sensor(name)[0]) for name in ("touch_toe", "touch_heel")]
        return [self.data.qpos[1:], self.data.qvel, touch]

    def _reward_hopper(self):
        stands = tolerance(self.data.body("torso").xipos[2] - self.data.body("foot").xipos[2], 0.6, 2)
        if self.task == "stand":
            return stands * self._small_control()
        return stands * tolerance(self._sensor("torso_subtreelinvel")[0], 2, math.inf, 1, "linear", 0.5)

    def _observe_humanoid(self):
        if self.task == "run_pure_state":
            return self._observe_state()
        cmu = self.domain == "humanoid_CMU"
        trunk = self.data.body("thorax" if cmu else "torso")
        names = ("lhand", "lfoot", "rhand", "rfoot") if cmu else ("left_hand", "left_foot", "right_hand", "right_foot")
        frame = trunk.xmat.reshape(3, 3)
        limbs = [(self.data.body(name).xpos - trunk.xpos) @ frame for name in names]
        velocity = self._sensor("thorax_subtreelinvel" if cmu else "torso_subtreelinvel")
        head = self.data.body("head").xpos[2]
        return [self.data.qpos[7:], head, *limbs, frame[2], velocity, self.data.qvel]

    def _reward_humanoid(self):
        up, trunk = (
            (self._at("thorax", "zy"), "thorax")
            if self.domain == "humanoid_CMU"
            else (self._at("torso", "zz"), "torso")
        )
        stands = tolerance(self.data.body("head").xpos[2], 1.4, math.inf, 0.35)
        stands *= tolerance(up, 0.9, math.inf, 1.9, "linear", 0)
        horizontal = self._sensor(f"{trunk}_subtreelinvel")[:2]
        speed = {"stand": 0, "walk": 1}.get(self.task, 10)
        if speed == 0:
            return self._small_control() * stands * tolerance(horizontal, margin=2).mean()
        moves = tolerance(np.linalg.norm(horizontal), speed, math.inf, speed, "linear", 0)
        return self._small_control() * stands * ((5 * moves + 1) / 6)

    def _reward_lqr(self):
        position, control = self.data.qpos, self.data.ctrl
        return 1 - (0.5 * np.dot(position, position) + 0.5 * np.dot(control, control) * 0.1)

    def _observe_pendulum(self):
        return [self._at("pole", "zz"), self._at("pole", "xz"), self.data.qvel]

    def _reward_pendulum(self):
        return tolerance(self._at("pole", "zz"), np.cos(np.deg2rad(8)), 1)

    def _reward_point_mass(self):
        size = self.model.geom("target").size[0]
        return tolerance(np.linalg.norm(self._to_target("pointmass")), 0, size, size) * self._small_control()

    def _observe_quadruped(self):
        toes = [
            f"{kind}_toe_{at}"
            for kind in ("force", "torque")
            for at in ("front_left", "front_right", "back_right", "back_left")
        ]
        seen = [
            *self._hinges(),
            self.data.act,
            self._sensor("velocimeter"),
            self._at("torso", "zz"),
            self._sensor("imu_accel"),
            self._sensor("imu_gyro"),
            [math.asinh(value) for toe in toes for value in self._sensor(toe)],
        ]
        torso = self.data.body("torso")
        if self.task == "escape":
            rays = [self._sensor(f"rf_{row}{column}")[0] for row in range(4) for column in range(5)]
            distances = [1 if distance == -1 else math.tanh(distance) for distance in rays]
            return [*seen, -(torso.xpos @ torso.xmat.reshape(3, 3)), distances]
        if self.task != "fetch":
            return seen
        ball = self.data.joint("ball_root").qvel
        ways = [self.data.body("ball").xpos - torso.xpos, ball[:3] - self.data.joint("root").qvel[:3], ball[3:]]
        ways.append(self.data.site("target").xpos - torso.xpos)
        return [*seen, *(way @ torso.xmat.reshape(3, 3) for way in ways)]

    def _reward_quadruped(self):
        if self.task == "fetch":
            return tolerance(self._at("torso", "zz"), 1, math.inf, 2, "linear", 0) * self._brings_ball()
        if self.task == "escape":
            cosine, radius = np.cos(np.deg2rad(20)), self.model.hfield_size[0, 0]
            upright = tolerance(self._at("torso", "zz"), cosine, math.inf, 1 + cosine, "linear", 0)
            distance = np.linalg.norm(self.data.site("workspace").xpos)
            return upright * tolerance(distance, radius, math.inf, radius, "linear", 0)
        speed = {"walk": 0.5, "run": 5}[self.task]
        moves = tolerance(self._sensor("velocimeter")[0], speed, math.inf, speed, "linear", 0.5)
        return tolerance(self._at("torso", "zz"), 1, math.inf, 2, "linear", 0) * moves

    def _brings_ball(self):
        arena, ball = self.model.geom("floor").size[0] * math.sqrt(2), self.data.body("ball").xpos
        near = self.model.site("workspace").size[0] + self.model.geom("ball").size[0]
        ways = {name: np.linalg.norm((self.data.site(name).xpos - ball)[:2]) for name in ("workspace", "target")}
        fetches = tolerance(ways["target"], 0, self.model.site("target").size[0], arena, "linear", 0)
        return tolerance(ways["workspace"], 0, near, arena, "linear", 0) * (0.5 + 0.5 * fetches)

    def _pose(self, body):
        return [*self.data.body(body).xpos[[0, 2]], *self.data.body(body).xquat[[0, 2]]]

    def _observe_arm(self):
        angles = [self.data.joint(name).qpos[0] for name in ARM]
        touch = [math.log1p(value) for value in self.data.sensordata]
        speeds = [self.data.joint(name).qvel for name in ARM]
        return [[[math.sin(angle), math.cos(angle)] for angle in angles], speeds, touch, self._pose("hand")]

    def _apart(self, site, other):
        return np.linalg.norm(self.data.site(site).xpos - self.data.site(other).xpos)

    def _observe_manipulator(self):
        name = "peg" if "peg" in self.task else "ball"
        speeds = [self.data.joint(f"{name}_{way}").qvel for way in "xzy"]
        return [*self._observe_arm(), self._pose(name), speeds, self._pose(f"target_{name}")]

    def _reward_manipulator(self):
        def close(site, other):
            return tolerance(self._apart(site, other), 0, 0.01, 0.02)

        if "ball" in self.task:
            return close("ball", "target_ball")
        grasping = (close("peg_grasp", "grasp") + close("peg_pinch", "pinch")) / 2
        return max((close("peg", "target_peg") + close("target_peg_tip", "peg_tip")) / 2, grasping / 3)

    def _observe_stacker(self):
        boxes = [f"box{number}" for number in range(int(self.task[-1]))]
        speeds = [self.data.joint(f"{box}_{way}").qvel for box in boxes for way in "xyz"]
        return [*self._observe_arm(), *map(self._pose, boxes), speeds, self.data.body("target").xpos[[0, 2]]]

    def _reward_stacker(self):
        size = self.model.geom("target").size[0]
        nearest = min(self._apart(f"box{number}", "target") for number in range(int(self.task[-1])))
        return tolerance(nearest, margin=2 * size) * tolerance(self._apart("grasp", "target"), 0.1, math.inf, 0.01)

    def _observe_reacher(self):
        return [self.data.qpos, self._to_target("finger")[:2], self.data.qvel]

    def _reward_reacher(self):
        radii = {"easy": 0.05, "hard": 0.015}[self.task] + self.model.geom("finger").size[0]
        return tolerance(np.linalg.norm(self._to_target("finger")[:2]), 0, radii)

    def _nose_to_target(self):
        return (self._to_target("nose") @ self.data.body("head").xmat.reshape(3, 3))[:2]

    def _observe_swimmer(self):
        velocities = self.data.sensordata[12:].reshape(-1, 6)[:, [0, 1, 5]]
        return [self.data.qpos[3:], self._nose_to_target(), velocities]

    def _reward_swimmer(self):
        size = self.model.geom("target").size[0]
        return tolerance(np.linalg.norm(self._nose_to_target()), 0, size, 5 * size, "long_tail")

    def _observe_walker(self):
        matrices = self.data.xmat.reshape(-1, 9)[1:, [0, 2]]
        return [matrices, self.data.body("torso").xpos[2], self.data.qvel]

    def _reward_walker(self):
        stands = tolerance(self.data.body("torso").xpos[2], 1.2, math.inf, 0.6)
        standing = (3 * stands + (1 + self._at("torso", "zz")) / 2) / 4
        if self.task == "stand":
            return standing
        speed = {"walk": 1, "run": 8}[self.task]
        moves = tolerance(self._sensor("torso_subtreelinvel")[0], speed, math.inf, speed / 2, "linear", 0.5)
        return standing * (5 * moves + 1) / 6
