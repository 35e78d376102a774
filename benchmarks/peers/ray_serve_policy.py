"""Serves an exported policy with Ray Serve: `POST /act` and `GET /health`, as `penstock serve-policy` answers them.

    penstock export RUN policy.pt2 --to torch
    .venv-peers/ray-serve/bin/python benchmarks/peers/ray_serve_policy.py policy.pt2 --port 8952

The deployment takes Starlette's requests, without FastAPI in between. SIGTERM ends it with all processes of Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from starlette.requests import Request
    from starlette.responses import Response

MAX_ROWS = 256
# Ray's own advice for throughput: the replica answers HTTP itself.
OPTIMIZED = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
}
HAPROXY_FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "METRICS_SOCKET_PATH": "metrics.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
}


class Policy:
    """A policy as a Ray Serve deployment.

    Args:
        path: the file that `penstock export --to torch` wrote, of a policy without a memory.
        wait_seconds: how long a batch waits for more requests; None passes each request through the network alone.
    """

    def __init__(self, path: str, wait_seconds: float | None) -> None:
        import torch  # noqa: PLC0415  (the replica's process alone needs it)

        torch.set_num_threads(1)
        files = {"penstock.json": ""}
        # Penstock's network checks no guards either.
        self._program = torch.export.load(path, extra_files=files).module(check_guards=False)
        (self._noise,) = (each["shape"][1:] for each in json.loads(files["penstock.json"])["inputs"][1:])
        self._is_batching = wait_seconds is not None
        if wait_seconds is not None:
            self._together.set_batch_wait_timeout_s(wait_seconds)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        import numpy as np  # noqa: PLC0415
        import orjson  # noqa: PLC0415
        from starlette.responses import Response  # noqa: PLC0415

        if request.url.path == "/health":
            return Response(b'{"status":"ok"}', media_type="application/json")
        rows = np.asarray(orjson.loads(await request.body())["observation"], dtype=np.float32)
        actions = await self._together(rows) if self._is_batching else self._act(rows)
        answer = orjson.dumps({"action": actions}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(answer, media_type="application/json")

    def _act(self, rows: np.ndarray) -> np.ndarray:
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            (actions,) = self._program(torch.from_numpy(rows), torch.zeros((len(rows), *self._noise)))
            return actions.numpy()

    async def _together(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        import numpy as np  # noqa: PLC0415

        ends = np.cumsum([len(rows) for rows in requests])[:-1]
        return np.split(self._act(np.concatenate(requests)), ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="file of `penstock export --to torch`")
    parser.add_argument("--port", type=int, default=8952)
    parser.add_argument(
        "--mode", choices=("plain", "batch"), default="batch", help="batch: requests that wait together"
    )
    parser.add_argument("--wait-seconds", type=float, default=0.0, help="how long a batch waits for more requests")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument(
        "--ingress",
        choices=("proxy", "haproxy", "direct"),
        default="proxy",
        help="proxy: Ray Serve's default; haproxy and direct: its options for throughput, with HAProxy before the "
        "replica or nothing",
    )
    args = parser.parse_args()
    # An exception, so that the blocks below end Ray and remove its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        # Without a token of its own, Ray would leave one in the home folder.
        os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        os.environ.update(OPTIMIZED if args.ingress != "proxy" else {})
        if args.ingress == "haproxy":
            os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
            for name, file in HAPROXY_FILES.items():
                os.environ[f"RAY_SERVE_HAPROXY_{name}"] = f"{folder}/haproxy/{file}"
        elif args.ingress == "direct":
            os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"] = str(args.port)
            os.environ["RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"] = str(args.port + 1)
        serve_until_terminated(args, folder)


def serve_until_terminated(args: argparse.Namespace, folder: str) -> None:
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415
    from ray.serve.schema import LoggingConfig  # noqa: PLC0415

    # Not as a decorator: Ray reads the environment when it is imported.
    options: dict[str, Any] = {"max_batch_size": MAX_ROWS, "batch_size_fn": lambda items: sum(map(len, items))}
    Policy._together = serve.batch(**options)(Policy._together)  # noqa: SLF001
    try:
        # More processors than there are, so that two replicas find their places.
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        # Requests reach a direct replica on its own port.
        port = args.port + 2 if args.ingress == "direct" else args.port
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        deployment = serve.deployment(
            Policy,
            num_replicas=args.replicas,
            max_ongoing_requests=512,
            logging_config=LoggingConfig(enable_access_log=False),
        )
        wait_seconds = args.wait_seconds if args.mode == "batch" else None
        serve.run(deployment.bind(str(args.program.resolve()), wait_seconds))
        # Again, since Ray replaces the handler.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(f"ready at http://127.0.0.1:{args.port}", flush=True)
        while True:
            signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
