"""Checks that a Prefect server answers its user, before anything that needs it starts."""

from __future__ import annotations

import base64
import logging
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus

from penstock.storage.errors import PenstockError
from penstock.storage.stores.open import without_password

logger = logging.getLogger(__name__)

CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
"""Variable with the auth string that Prefect's clients send."""
_ANSWER_SECONDS = 10.0
_BUSY_SECONDS = 90.0
"""Longer than `kept_answering` takes to replace a silent server: half a minute and a start."""
_POLL_SECONDS = 0.03
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


def require_prefect(api_url: str, patience_seconds: float | None = None) -> None:
    """Check that a server answers at a `PREFECT_API_URL` and takes `PREFECT_API_AUTH_STRING`, if that is set.

    A server that takes the connection and gives no answer, as a busy or a dying one does, is asked again.

    Args:
        api_url: the address.
        patience_seconds: for how long; default: one and a half minutes.

    Raises:
        PenstockError: no server answers, it wants another auth string, or the address is invalid.
    """
    try:
        for path in ("health", "admin/version"):
            _ask(api_url, path, _BUSY_SECONDS if patience_seconds is None else patience_seconds)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _REFUSED and "PREFECT_API_KEY" not in os.environ:
            raise PenstockError(
                f"PREFECT_API_URL = {without_password(api_url)}: the server there refused this user ({error.code}); "
                f"set {CLIENT_AUTH} to its auth string. That of a server which `penstock` started is in the file "
                f"that it named at its start"
            ) from None
        # Prefect's client judges any other answer itself.
        if error.code != HTTPStatus.NOT_FOUND:
            return
        found = "the server there has no Prefect API (404)"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return  # Prefect has settings of its own for certificates.
        found = str(error.reason)
    except (OSError, ValueError) as error:
        found = str(error)
    else:
        return
    raise PenstockError(
        f"PREFECT_API_URL = {without_password(api_url)}: no Prefect server answers: {found}. Start one (`prefect "
        f"server start`), correct the address (it ends in /api), or unset it: `penstock train` then starts its own"
    )


def _ask(api_url: str, path: str, patience_seconds: float) -> None:
    """Make a request, and repeat it while the server is too busy to answer, or is restarted."""
    deadline, is_there = time.monotonic() + patience_seconds, False
    while True:
        try:
            with urllib.request.urlopen(_request(api_url, path), timeout=_ANSWER_SECONDS):  # noqa: S310  (the user's)
                return
        except urllib.error.HTTPError:
            raise
        except (TimeoutError, ConnectionResetError) as error:  # which includes a connection closed without an answer
            if time.monotonic() > deadline:
                raise
            if not is_there:
                is_there = True
                shown = without_password(api_url)
                logger.warning("the Prefect server at %s gives no answer yet (%s); waiting", shown, error)
        except urllib.error.URLError:
            # A connection that can't be made is tried again only where there was a server a moment ago.
            if not is_there or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _request(api_url: str, path: str) -> urllib.request.Request:
    """Return a request to the API with the header that Prefect's client sends.

    A name and password in the address become a header as well, unless there is an auth string.
    """
    address = urllib.parse.urlsplit(f"{api_url.rstrip('/')}/{path}")
    request = urllib.request.Request(address._replace(netloc=address.netloc.rpartition("@")[2]).geturl())  # noqa: S310
    credentials = os.environ.get(CLIENT_AUTH)
    if credentials is None and address.username is not None:
        credentials = ":".join(urllib.parse.unquote(part or "") for part in (address.username, address.password))
    if credentials is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")
    return request
