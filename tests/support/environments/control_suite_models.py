"""Models of the control suite's tasks, from the suite's own files by MuJoCo's own editor."""

from __future__ import annotations

import functools
import re
import warnings
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from penstock.native.pool.mujoco_library import package_folder

if TYPE_CHECKING:
    from pathlib import Path

FLOORS = {
    "quadruped-walk": 10,
    "quadruped-run": 100,
    "quadruped-escape": 40,
    "dog-stand": 15,
    "dog-walk": 15,
    "dog-trot": 45,
    "dog-run": 135,
}


@functools.cache
def model_of(domain: str, task: str) -> mujoco.MjModel:
    """The model of the suite's file, with what a task adds to it or takes out: copy it before you change it."""
    path = package_folder("dm_control") / "suite" / f"{domain}.xml"
    if domain == "swimmer":
        return _with_links(path, int(re.findall(r"\d+", task)[0]))
    if domain == "lqr":
        return _with_masses(path, *map(int, re.findall(r"\d+", task)))
    spec = mujoco.MjSpec.from_file(str(path))
    if domain == "cartpole":
        parent = spec.body("pole_1")
        for number in range(2, 1 + {"two_poles": 2, "three_poles": 3}.get(task, 1)):
            parent = parent.add_body(name=f"pole_{number}", pos=[0, 0, 1], childclass="pole")
            parent.add_joint(spec.find_default("pole"), name=f"hinge_{number}")
            parent.add_geom(spec.find_default("pole"), name=f"pole_{number}")
    for kind, names in _removed(domain, task).items():
        for name in names:
            spec.delete(getattr(spec, kind)(name))
    if domain == "quadruped" and task != "escape":
        for sensor in list(spec.sensors):
            if sensor.type == mujoco.mjtSensor.mjSENS_RANGEFINDER:
                spec.delete(sensor)
    if width := FLOORS.get(f"{domain}-{task}"):
        spec.geom("floor").size[:2] = width
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an attribute that MuJoCo will drop
        return spec.compile()


def _removed(domain: str, task: str) -> dict[str, list[str]]:
    """Return the names of what a task's model has not, by kind."""
    walls = ["wall_px", "wall_py", "wall_nx", "wall_ny"]
    if domain == "quadruped":
        alone = {"geom": walls, "body": ["ball"], "site": ["target"]} if task != "fetch" else {"geom": []}
        return alone if task == "escape" else {**alone, "geom": [*alone["geom"], "terrain"]}
    if domain == "dog" and task != "fetch":
        return {"camera": ["ball", "head"], "geom": [*walls, "target"], "body": ["ball"]}
    if domain == "manipulator":
        kept = {"bring_ball": "", "bring_peg": "", "insert_ball": "cup", "insert_peg": "slot"}[task]
        other = "ball" if "peg" in task else "peg"
        return {"body": [other, f"target_{other}", *(name for name in ("cup", "slot") if name != kept)]}
    return {"body": [f"box{number}" for number in range(int(task[-1]), 4)]} if domain == "stacker" else {}


def terrain(bumps: np.ndarray, width: int) -> np.ndarray:
    """Return the heights of `quadruped-escape`: a bowl, times a spline through the bumps."""
    from scipy import ndimage

    row, column = np.ogrid[-1 : 1 : width * 1j, -1 : 1 : width * 1j]
    bowl = 0.5 - np.cos(2 * np.pi * np.clip(np.sqrt(column**2 + row**2), 0.04, 1)) / 2
    return (bowl * ndimage.zoom(bumps, width / len(bumps))).ravel()


def _with_masses(path: Path, masses: int, motors: int) -> mujoco.MjModel:
    bodies = "".join(
        f'<body pos=".25 0 {0 if mass else 0.1}"><joint name="{mass}" stiffness="20"/><geom/>' for mass in range(masses)
    )
    actuator = "".join(f'<motor joint="{mass}"/>' for mass in range(motors))
    text = path.read_text().replace("</worldbody>", f"{bodies}{'</body>' * masses}</worldbody>")
    text = text.replace("</mujoco>", f"<actuator>{actuator}</actuator></mujoco>")
    return mujoco.MjModel.from_xml_string(text.replace("./common", str(path.parent / "common")))


def _with_links(path: Path, links: int) -> mujoco.MjModel:
    limit = 360 / links
    body, ends, motors, sensors = "", "", "", ""
    for number in range(links - 1):
        body += (
            f'<body name="segment_{number}" pos="0 .1 0"><geom class="visual"/><geom class="inertial"/>'
            f'<site name="site_{number}"/><joint name="joint_{number}" range="{-limit} {limit}"/>'
        )
        ends += "</body>"
        motors += f'<motor joint="joint_{number}"/>'
        sensors += f'<velocimeter site="site_{number}"/><gyro site="site_{number}"/>'
    text = path.read_text().replace('<site name="head"/>', f'<site name="head"/>{body}{ends}')
    text = text.replace("</mujoco>", f"<actuator>{motors}</actuator><sensor>{sensors}</sensor></mujoco>")
    return mujoco.MjModel.from_xml_string(text.replace("./common", str(path.parent / "common")))
