"""Targets for the first texts of the environment protocol: the HELLO of a client, and the WELCOME of a server."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from penstock.native.sockets import wire
from penstock.native.sockets.agreement import Agreement, read_welcome
from penstock.native.sockets.batch import RefusedError
from penstock.native.sockets.rows import Rows, described_space
from penstock.native.sockets.server import Hello, read_hello

from .mutators import mutate_bytes, mutate_json
from .target import Target

if TYPE_CHECKING:
    from random import Random

    from gymnasium.spaces import Space

NAME, TOKEN, NUM_ENVS = "Maze-v0", b"secret", 4
_MASKED = b'"action_mask": true'


def _hello(hello: Hello, settings: bytes | None = None) -> bytes:
    """Return the first frame of a client, with its settings or with other bytes in their place."""
    name, settings = hello.name.encode(), json.dumps(hello.settings).encode() if settings is None else settings
    sizes, wishes = (len(hello.token), len(name), len(settings)), wire.MASKS if hello.masks else 0
    head = wire.HELLO_HEAD.pack(wire.MAGIC, hello.version, wishes, hello.num_envs, hello.limit, *sizes)
    return head + hello.token + name + settings


def _welcome(described: object, version: int, sizes: tuple[int, int]) -> bytes:
    return wire.WELCOME_HEAD.pack(version, NUM_ENVS, *sizes) + json.dumps(described).encode()


def _described(observation: Space, action: Space, version: int = wire.VERSION, choices: int = 0) -> bytes:
    described = {"name": NAME, "observation": described_space(observation), "action": described_space(action)}
    described |= {"max_episode_steps": 500, "reward_threshold": 475.0, "action_mask": bool(choices)}
    sizes = Rows(described["observation"], choices).bytes, Rows(described["action"]).bytes
    return _welcome(described, version, sizes)


def hello_of(data: bytes) -> Hello:
    return read_hello(memoryview(data), TOKEN)


def check_hello(hello: Hello, data: bytes) -> None:
    again = hello_of(_hello(hello))
    assert repr(again) == repr(hello)  # NaN, which a setting may be, equals nothing


def welcome_of(data: bytes) -> Agreement:
    """Read a WELCOME as a client does, which asks for the version and for the mask that the text has."""
    if len(data) < wire.WELCOME_HEAD.size:
        raise ValueError("too short")
    (version,) = struct.unpack_from("<I", data)
    version = version if version in (wire.PLAIN_VERSION, wire.VERSION) else wire.VERSION
    return read_welcome(memoryview(data), NAME, NUM_ENVS, None, version, masks=_MASKED in data)


def check_welcome(agreement: Agreement, data: bytes) -> None:
    """The spaces, described again, have the same rows, and a value of each is written and read unchanged."""
    choices = agreement.observations.choices
    spaces = (agreement.observation_space, agreement.observations, choices), (agreement.action_space, agreement.actions)
    for space, rows, *mask in spaces:
        again = Rows(described_space(space), *mask)
        assert again.dtype == rows.dtype
        assert [leaf.path for leaf in again.leaves] == [leaf.path for leaf in rows.leaves]
        if rows.bytes < 1 << 16:
            buffer = np.zeros(1, rows.dtype)
            space.seed(1)
            try:
                value = space.sample()
            except ValueError:  # of Gymnasium, for integers between bounds that are further apart than an int64 holds
                continue
            rows.write(buffer, 0, value)
            rows.check(buffer)


def mutate_hello(data: bytes, random: Random) -> bytes:
    """Change the settings and keep the sizes right, or any bytes."""
    if random.random() < 0.5:
        return mutate_bytes(data, random)
    try:
        hello = hello_of(data)
    except (RefusedError, wire.WireError):
        return mutate_bytes(data, random)
    return _hello(hello, mutate_json(json.dumps(hello.settings).encode(), random))


def mutate_welcome(data: bytes, random: Random) -> bytes:
    """Change the description, and announce the bytes that its rows have if it still is one."""
    if random.random() < 0.2:
        return mutate_bytes(data, random)
    head, text = data[: wire.WELCOME_HEAD.size], mutate_json(data[wire.WELCOME_HEAD.size :], random)
    try:
        described = json.loads(text)
        choices = described["action"]["n"] if described.get("action_mask") else 0
        sizes = Rows(described["observation"], choices).bytes, Rows(described["action"]).bytes
        return _welcome(described, struct.unpack_from("<I", head)[0], sizes)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, struct.error):
        return head + text


_VECTOR = Box(-1.0, np.array([1.0, 2.0], np.float32))
_NESTED = Dict(
    map=Box(0, 255, (3, 4), np.uint8), pair=Tuple([Discrete(3, start=-1), MultiBinary(3)]), cards=MultiDiscrete([2, 5])
)
HELLOS = (
    Hello(wire.VERSION, NUM_ENVS, -1, TOKEN, NAME, {"size": 8, "wind": [0.5, None]}, True),
    Hello(wire.PLAIN_VERSION, 1, 200, TOKEN, "", {}, False),
)
WELCOMES = (
    _described(_VECTOR, Discrete(2), wire.PLAIN_VERSION),
    _described(_VECTOR, Discrete(5), choices=5),
    _described(_NESTED, Tuple([Discrete(2), Box(-1.0, 1.0, (2,))])),
)
SOCKET_TARGETS = (
    Target(
        "socket-hello", hello_of, tuple(map(_hello, HELLOS)), (RefusedError, wire.WireError), check_hello, mutate_hello
    ),
    Target("socket-welcome", welcome_of, WELCOMES, (ValueError,), check_welcome, mutate_welcome),
)
