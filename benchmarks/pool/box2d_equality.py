"""Shows that Box2D from the sources of box2d-py 2.3.8 computes the bits of the package `box2d` 2.3.10.

    python -m benchmarks.pool.box2d_equality [--steps 5000] [--sdist box2d-py-2.3.8.tar.gz]

needs g++ and `pip install box2d==2.3.10`. It builds the same random worlds twice: hilly ground of edges, polygons
that fall on it and on each other, walkers of three bodies whose joints have motors and limits, and pushes; and compares
position, angle and velocities of all bodies with == after every step.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import Box2D
import numpy as np
from Box2D.b2 import fixtureDef, polygonShape, revoluteJointDef

from benchmarks.support.programs import BENCHMARKS, ROOT

SOURCES = ROOT / "native" / "packages" / "box2d" / "box2d_sources.py"
HALF = (("box", 0.4, 0.3), ("leg", 0.1, 0.5))


def build(folder: Path, sdist: str | None) -> ctypes.CDLL:
    """Compile the prepared sources, and the functions that drive them, as a pool's library is compiled."""
    subprocess.run([sys.executable, SOURCES, folder, *([sdist] if sdist else [])], check=True)
    library = folder / "world.so"
    flags = [
        "-std=c++20",
        "-O3",
        "-DNDEBUG",
        "-ffp-contract=off",
        "-fPIC",
        "-shared",
        "-I",
        folder,
        "-I",
        SOURCES.parent,
    ]
    subprocess.run(
        ["g++", *flags, BENCHMARKS / "bare" / "box2d_world.cpp", folder / "box2d.cpp", "-o", library], check=True
    )
    loaded = ctypes.CDLL(str(library))
    loaded.world_new.restype = ctypes.c_void_p
    return loaded


def compare(library: ctypes.CDLL, seed: int, steps: int) -> tuple[int, int]:
    """Step one world twice; return the numbers compared, and how many of them differ."""
    rng = np.random.default_rng(seed)
    real = ctypes.c_float
    theirs = Box2D.b2World(gravity=(0, -10))
    ground = theirs.CreateStaticBody()
    mine = ctypes.c_void_p(library.world_new(real(-10)))
    heights = np.float32(rng.uniform(0, 1.5, 41))
    for i in range(40):
        ends = [(float(i), float(heights[i])), (float(i + 1), float(heights[i + 1]))]
        ground.CreateEdgeFixture(vertices=ends, density=0, friction=0.5)
        library.add_edge(mine, *(real(value) for end in ends for value in end), real(0.5))

    bodies = []

    def add(x: float, y: float, angle: float, points: list[tuple[float, float]], restitution: float) -> None:
        fixture = fixtureDef(shape=polygonShape(vertices=points), density=1.5, friction=0.3, restitution=restitution)
        bodies.append(theirs.CreateDynamicBody(position=(x, y), angle=angle, fixtures=fixture))
        flat = (real * (2 * len(points)))(*np.ravel(points).tolist())
        library.add_polygon(
            mine, real(x), real(y), real(angle), flat, len(points), real(1.5), real(0.3), real(restitution)
        )

    for _ in range(12):
        around = np.sort(rng.uniform(0, 2 * np.pi, 6))
        points = [(0.6 * float(np.cos(a)), 0.5 * float(np.sin(a))) for a in around]
        add(float(rng.uniform(4, 36)), float(rng.uniform(3, 12)), float(rng.uniform(-3, 3)), points, 0.2)
    for _ in range(4):
        x, y, first = float(rng.uniform(6, 34)), 6.0, len(bodies)
        for half in (HALF[0], HALF[1], HALF[1]):
            _, w, h = half
            add(x, y, 0.0, [(-w, -h), (w, -h), (w, h), (-w, h)], 0.0)
        for leg, lower, upper, speed in ((1, 0.2, 0.9, 0.5), (2, -0.9, -0.2, -0.5)):
            side = -0.3 if leg == 1 else 0.3
            joint = {"lowerAngle": lower, "upperAngle": upper, "motorSpeed": speed, "maxMotorTorque": 40.0}
            theirs.CreateJoint(
                revoluteJointDef(
                    bodyA=bodies[first],
                    bodyB=bodies[first + leg],
                    localAnchorA=(side, -0.2),
                    localAnchorB=(0, 0.4),
                    enableMotor=True,
                    enableLimit=True,
                    **joint,
                )
            )
            anchors = (real * 4)(side, -0.2, 0, 0.4)
            numbers = (real(value) for value in joint.values())
            library.add_joint(mine, first, first + leg, anchors, *numbers)

    out = np.empty((len(bodies), 6), np.float32)
    compared = different = 0
    for index in range(steps):
        if index % 10 == 0:
            pushed = int(rng.integers(len(bodies)))
            force = float(rng.uniform(-60, 60)), float(rng.uniform(0, 90))
            bodies[pushed].ApplyForceToCenter(force, True)
            library.push(mine, pushed, real(force[0]), real(force[1]))
        theirs.Step(1.0 / 50, 6 * 30, 2 * 30)
        library.step(mine, out.ctypes.data_as(ctypes.c_void_p))
        expected = np.float32(
            [(*b.position, b.angle, *b.linearVelocity, b.angularVelocity) for b in bodies],
        )
        compared += out.size
        different += int((out != expected).sum())
    library.world_delete(mine)
    return compared, different


def main() -> int:
    """Compare ten worlds; the exit code is 1 if any number differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000, help="of each world")
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--sdist", help="the archive, if it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder), options.sdist)
        total = np.zeros(2, np.int64)
        for seed in range(options.worlds):
            total += compare(library, seed, options.steps)
    print(f"box2d-py 2.3.8 beside box2d {Box2D.__version__}: {options.worlds} worlds, {options.steps} steps each")
    print(f"{total[0]:,} numbers of float32 compared, {total[1]:,} differ")
    return int(total[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
