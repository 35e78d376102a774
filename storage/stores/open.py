"""Opens a store by its address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store


_SECRET_OF_S3 = re.compile(r"(?!arn:)([^:@/]*):.*@")
_SECRET = re.compile(r"([^:@/]*):(?!\d+/).*@")  # a number before a slash is a port
_MISTYPED = re.compile(r"(s3a?|gs|gcs|az|abfss?|file|local|memory)(\+\w+)?:(?!//)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][\w.-]*|arn:.*", re.ASCII)


def open_store(url: str | Path, **options: Any) -> Store:
    """Open a folder (`/data/runs`, `file:///data/runs`) or any url of fsspec's (`s3://bucket/runs`).

    s3fs serves `s3://`. `s3+obstore://` names another client for the same objects: the choice is part of the url, and a
    run's bytes do not depend on it.

    Args:
        url: A relative folder is made absolute, so that the store means the same in other processes.
        options: For the client, such as `endpoint_url`. Credentials belong in the environment: a store that was
            given any refuses to be pickled.

    Raises:
        ConfigError: the url's scheme, client or options are unknown, or a package is missing; the url contains a
            password; it is chained; or a local folder was given options.
    """
    text = str(url)
    scheme, separator, rest = text.partition("://")
    if scheme != scheme.lower() and separator:
        raise ConfigError(f"the store '{without_password(text)}': expected {scheme.lower()}:// in small letters")
    if not separator and (mistyped := _MISTYPED.match(text)):
        raise ConfigError(
            f"the store '{text}' would be a folder of that name; expected {mistyped[0].lower()}//bucket/folder, or "
            f"./{text} for the folder"
        )
    if not separator or scheme in {"file", "local"}:
        if options:
            raise ConfigError(f"the local store '{text}' takes no options, got {sorted(options)}; remove them")
        from penstock.storage.stores.local import LocalStore  # noqa: PLC0415  (not needed for remote stores)

        return LocalStore(Path(rest if separator else text).expanduser().absolute())
    if scheme in {"http", "https"}:
        raise ConfigError(
            f"the store '{without_password(text)}': a web server keeps no runs; of an S3 service name the bucket, as "
            "s3://bucket/folder, and its address in AWS_ENDPOINT_URL"
        )
    if "::" in text:
        raise ConfigError(
            f"the store '{without_password(text)}' is chained; expected one plain url. A cache in between would hide "
            "objects that other processes write"
        )
    if without_password(text) != text:
        raise ConfigError(
            f"the store '{without_password(text)}' has a password in its url, which logs would show; set it in the "
            "environment or in the service's own configuration file"
        )
    if scheme.partition("+")[0] in {"s3", "s3a"} and not _BUCKET.fullmatch(rest.partition("/")[0]):
        raise ConfigError(
            f"the store '{text}' names no bucket; expected {scheme}://bucket/folder, the bucket of letters, digits, "
            "'.', '-' and '_'"
        )
    if scheme.startswith("s3+"):
        return _open_s3(text, scheme[len("s3+") :], options)
    from penstock.storage.stores.fsspec import FsspecStore  # noqa: PLC0415  (slow to import, not needed for local folders)

    return FsspecStore(text, options)


def _open_s3(url: str, client: str, options: dict[str, Any]) -> Store:
    if client == "obstore":
        from penstock.storage.stores.obstore import ObstoreStore  # noqa: PLC0415  (an optional package)

        return ObstoreStore(url, options)
    raise ConfigError(f"the store '{url}' names the client '{client}'; there are: s3://, s3+obstore://")


def without_password(url: str) -> str:
    """Return an address with `***` for the password, if it has one; a secret key of AWS may have slashes."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    found = (_SECRET_OF_S3 if scheme.startswith("s3") else _SECRET).match(rest)
    return url if found is None else f"{scheme}://{found[1]}:***@{rest[found.end() :]}"
