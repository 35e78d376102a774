"""moto's S3 server, in which one of several concurrent creates of an object wins, as on S3. Run it as a script.

moto looks for the object and then writes it, in several threads: now and then two creates won, and a run that needs a
store with one winner was refused.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any

from moto.s3.responses import S3Response
from moto.server import main

if TYPE_CHECKING:
    from collections.abc import Callable

_WRITING = threading.Lock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked(*arguments: Any, **options: Any) -> Any:
        with _WRITING:
            return method(*arguments, **options)

    return locked


if __name__ == "__main__":
    # Both have the whole body when they are called: a client that stops in the middle holds up no other.
    S3Response.put_object = _one_at_a_time(S3Response.put_object)
    S3Response._key_response_post = _one_at_a_time(S3Response._key_response_post)
    main()
