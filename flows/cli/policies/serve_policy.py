"""`penstock serve-policy`: answers HTTP requests with a run's actions, and follows new versions."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from typing import Annotated

import typer

from penstock.flows.cli.training import Store, Trust  # noqa: TC001  (typer reads annotations)
from penstock.storage.errors import ConfigError


def serve_policy(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    version: Annotated[str, typer.Option(help="newest, which follows training; best; or a number.")] = "newest",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8900,
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Most rows that pass the network together.")] = 256,
    poll_seconds: Annotated[float, typer.Option(min=0.1, help="Interval of looking for a new version.")] = 5.0,
    device: Annotated[str, typer.Option(help="Device of the network: cpu or cuda.")] = "cpu",
    trust: Trust = False,
    store: Store = None,
) -> None:
    """Answer HTTP requests with a run's actions.

    Until Ctrl-C: POST /act, GET /policy, /health, /metrics.
    Whoever reaches the port may ask: there is no password. docs/policy.md has examples.
    """
    from penstock.tasks.inference.finding import check_policy, parse_version

    wanted = parse_version(version)
    check_policy(run, wanted, store, trust=trust)
    if device != "cpu":  # the CPU is always there, and to ask for another one torch is imported
        from penstock.tasks.inference.loading import require_device

        require_device(device)
    listening = _listen(host, port)
    typer.echo(f"loading version {version} of run {run}", err=True)
    import torch
    import uvicorn

    from penstock.tasks.inference.http_server import PolicyServer
    from penstock.tasks.inference.loading import load_newer, load_policy

    policy = load_policy(run, wanted, store=store, device=device, trust=trust)

    server = PolicyServer(
        policy, load_newer if wanted == "newest" else None, poll_seconds=poll_seconds, max_rows=max_batch_rows
    )
    torch.set_num_threads(1)  # small networks: more threads cost more than they bring
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    where = f"[{host}]" if ":" in host else host
    address = f"http://{where}:{listening.getsockname()[1]}"
    typer.echo(f"version {policy.origin.version} of run {run} at {address}; Ctrl-C ends it")
    options = uvicorn.Config(server.app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(options).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            listening = stack.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
            stack.pop_all()
    except socket.gaierror as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}; choose another --host") from error
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}; choose another --port") from error
    return listening
