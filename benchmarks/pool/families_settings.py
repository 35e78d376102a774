"""The settings that an id of an environment needs beside itself, to be trained."""

from __future__ import annotations

import contextlib
from typing import Any


def settings_for(name: str, address: str | None = None) -> dict[str, str]:
    """Return the settings that an id needs beside itself: the network of an image, the algorithm of several agents."""
    from penstock import native  # noqa: PLC0415  (slow to import)

    settings: dict[str, Any] = {"address": address} if address else {}
    with contextlib.closing(native.make(name, 1, one_array=True, one_action=True, **settings)) as pool:
        shape, agents = pool.environment["observation"]["shape"], pool.environment.get("agents")
    if agents:
        return {"algorithm.name": "ippo"}
    image = len(shape) >= 2 and min(shape[-2:]) >= 36
    if image or len(shape) < 3 or max(shape[:2]) > 64:  # tables, and pixels with their channels last: a perceptron
        return {"algorithm.network": "nature"} if image else {}
    return {"algorithm.network": "small"}
