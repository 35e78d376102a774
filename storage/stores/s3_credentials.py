"""Finds S3's endpoint and credentials by botocore, as s3fs does, for a client that lacks the usual chain.

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

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = frozenset({"anon", "endpoint_url", "key", "region", "secret", "token"})
_DEFAULT_REGION = "us-east-1"
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?(/[\w./~%-]*)?", re.ASCII)


class Keys(NamedTuple):
    """These keys are valid now; those of a role change every few hours."""

    key: str
    secret: str
    token: str | None


class S3Access:
    """Endpoint and credentials are what botocore's chain finds in this process. Never pickled, never shown."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Take options as s3fs has them: `endpoint_url`, `region`, `key`, `secret`, `token`, `anon`.

        Raises:
            PermissionError: no credentials were found, and `anon` is not set.
            ValueError: the endpoint is not a url.
        """
        session = botocore.session.get_session()
        endpoint = options.get("endpoint_url") or configured_endpoint(session)
        if endpoint is not None:
            _check_endpoint(endpoint)
        self.endpoint_url: str | None = endpoint
        self.region: str = (
            options.get("region")
            or session.get_config_variable("region")
            or os.environ.get("AWS_REGION")
            or _DEFAULT_REGION
        )
        self.ca_bundle: str | None = session.get_config_variable("ca_bundle")
        self.anonymous = bool(options.get("anon"))
        self._given = Keys(options["key"], options["secret"], options.get("token")) if options.get("key") else None
        self._found: Any = None if self.anonymous or self._given else session.get_credentials()
        if not self.anonymous and self._given is None and self._found is None:
            raise PermissionError(
                "no credentials for S3 were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), in "
                "~/.aws or from this machine's role; expected one of these"
            )

    def keys(self) -> Keys:
        """Return keys to sign with, renewed when they have expired; not for anonymous access."""
        if self._given:
            return self._given
        frozen = self._found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    def __reduce__(self) -> Any:
        raise TypeError("credentials are not pickled")


def configured_endpoint(session: botocore.session.Session | None = None) -> str | None:
    """Return S3's endpoint as the environment and `~/.aws` configure it; None for the public one."""
    session = session or botocore.session.get_session()
    found = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    return None if found is None else str(found)


def _check_endpoint(endpoint: str) -> None:
    with contextlib.suppress(ValueError):  # a port that is too large
        if _ENDPOINT.fullmatch(endpoint) and urlsplit(endpoint).port != 0:
            return
    shown = endpoint.rpartition("@")[2]
    raise ValueError(f"the endpoint '{shown}' is not valid; expected http://host:port or https://host, no password")


def check_options(url: str, options: Mapping[str, Any]) -> None:
    """Refuse options that such a store does not know, with ConfigError."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigError(f"the store '{url}' knows no option {', '.join(unknown)}; there are: {sorted(OPTIONS)}")
    if bool(options.get("key")) != bool(options.get("secret")):
        raise ConfigError(f"the store '{url}' was given one of key and secret, expected both or neither")
