"""Where S3 is and as whom to talk to it, for clients that lack the usual chain: found as s3fs finds it, by botocore.

Environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AWS_PROFILE` ...), then `~/.aws`, then the machine's role.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import botocore.session
from botocore.configprovider import ConfiguredEndpointProvider

from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = frozenset({"anon", "endpoint_url", "key", "region", "secret", "token"})
_DEFAULT_REGION = "us-east-1"
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?(/[\w./~%-]*)?", re.ASCII)


class Keys(NamedTuple):
    """Valid for now; a role's change every few hours."""

    key: str
    secret: str
    token: str | None


class S3Access:
    """What the chain gives in this process. Holds credentials: never pickled, never shown."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Options as s3fs has them: `endpoint_url`, `region`, `key`, `secret`, `token`, `anon`.

        Raises:
            PermissionError: no credentials were found, and `anon` is not set.
            ValueError: the endpoint is no url, on which one of the clients would end the process.
        """
        session = botocore.session.get_session()
        endpoint = options.get("endpoint_url")
        if endpoint is None:
            endpoint = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
        if endpoint is not None:
            _check_endpoint(endpoint)
        self.endpoint_url: str | None = endpoint
        self.region: str = (
            options.get("region")
            or session.get_config_variable("region")
            or os.environ.get("AWS_REGION")
            or _DEFAULT_REGION
        )
        self.anonymous = bool(options.get("anon"))
        self._given = Keys(options["key"], options["secret"], options.get("token")) if options.get("key") else None
        self._found: Any = None if self.anonymous or self._given else session.get_credentials()
        if not self.anonymous and self._given is None and self._found is None:
            raise PermissionError(
                "no credentials for S3 were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), in "
                "~/.aws or from this machine's role"
            )

    def keys(self) -> Keys:
        """Keys to sign with, renewed when they have run out; not for anonymous access."""
        if self._given:
            return self._given
        frozen = self._found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    def __reduce__(self) -> Any:
        raise TypeError("credentials are not pickled")


def _check_endpoint(endpoint: str) -> None:
    with contextlib.suppress(ValueError):  # a port that is too large
        if _ENDPOINT.fullmatch(endpoint) and urlsplit(endpoint).port != 0:
            return
    shown = endpoint.rpartition("@")[2]
    raise ValueError(f"the endpoint '{shown}' is no url such as http://host:port or https://host, without a password")


def check_options(url: str, options: Mapping[str, Any]) -> None:
    """Refuse options that such a store does not know, with ConfigError."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigError(f"the store '{url}' knows no option {', '.join(unknown)}; there are: {sorted(OPTIONS)}")
    if bool(options.get("key")) != bool(options.get("secret")):
        raise ConfigError(f"the store '{url}' was given one of key and secret, expected both or neither")
