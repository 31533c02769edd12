"""Environment variables, read and validated once.

An invalid variable stops every process (web, worker, beat, command) in the same way: with one line that names the
variable, the reason and the remedy, exit code 2, and without a traceback. Only the settings read variables, and only
through this module. An empty variable is treated as absent. `NAME_FILE` names a file that contains the value, for
secrets that a platform mounts. Addresses are plain URLs: django-environ parses database URLs, and `RedisAddress` parses
Redis addresses and converts them for Celery, Channels and redis-py.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import environ
import msgspec

from hetsched.adapters.http.outbound import is_place
from hetsched.contracts.errors import InputError

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})
# Prefixes of variables with secrets of hetsched.
SECRETS = ("HETSCHED_", "DJANGO_", "SECRET_KEY", "DATABASE_URL", "REDIS_URL")
_TEXT = {"type": "string"}
DATABASES = {"sqlite": "sqlite:////path/to/file", "postgres": "postgres://user:password@host:5432/name"}


def _words(words: Iterable[str]) -> list[str]:
    """Return the values of a schema for words that are read without regard to case; an empty value is allowed."""
    return list(dict.fromkeys(form for word in (*words, "") for form in (word, word.capitalize(), word.upper())))


_FLAG = {"enum": [True, False, 1, 0, *_words(sorted(TRUE | FALSE))]}


def exit_with_message(error: InputError) -> NoReturn:
    """Print the error on standard error and exit with code 2."""
    sys.stderr.write(f"hetsched: {error}\n")
    raise SystemExit(2)


def _raise(error: InputError) -> NoReturn:
    raise error


class RedisAddress(msgspec.Struct, frozen=True):
    """Address of Redis (or Valkey): `redis://`, `rediss://`, `unix:///socket?db=N`; `memory://` for tests."""

    url: str

    @property
    def in_memory(self) -> bool:
        return self.url == "memory://"

    def for_celery(self) -> str:
        """Return the URL in kombu's format: `redis+socket://` and `virtual_host` instead of `unix://` and `db`."""
        if not self.url.startswith("unix://"):
            return self.url
        return self.url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")


class Environment:
    """Typed access to a mapping of variables.

    `schemas` has the JSON Schema of each variable that was read; numbers and booleans may also be written as strings.
    Raises: InputError `EnvInvalid` or `EnvTwice`, through `refuse`; `place` is the variable's name.
    """

    def __init__(self, source: Mapping[str, str], refuse: Callable[[InputError], NoReturn] = _raise) -> None:
        self._source = source
        self._refuse = refuse
        self.schemas: dict[str, dict[str, Any]] = {}

    @property
    def asked(self) -> set[str]:
        """Return the names of all variables that were read, with those of their files."""
        return {f"{name}{suffix}" for name in self.schemas for suffix in ("", "_FILE")}

    def _get(self, name: str, schema: Mapping[str, Any] = _TEXT) -> str:
        self.schemas[name] = dict(schema)
        value = self._source.get(name, "").strip()
        file = self._source.get(f"{name}_FILE", "").strip()
        if not file:
            return value
        if value:
            self._refuse(InputError("EnvTwice", f"{name}_FILE is also set", place=name, hint="Set only one of them"))
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "the file is not text"
            self._invalid(f"{name}_FILE", f"{file}: {reason}", "Name a readable file that contains the value")

    def _invalid(self, name: str, message: str, hint: str) -> NoReturn:
        self._refuse(InputError("EnvInvalid", message, place=name, hint=hint))

    def text(self, name: str, default: str = "") -> str:
        return self._get(name) or default

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, _FLAG).lower()
        if value in TRUE or value in FALSE:
            return value in TRUE
        if value:
            self._invalid(name, f"{value!r} is not a boolean", "Use 1 or 0")
        return default

    def choice(self, name: str, options: tuple[str, ...]) -> str:
        """Return the value, which must be one of `options`; the first option is the default."""
        value = self._get(name, {"enum": _words(options)}).lower() or options[0]
        if value not in options:
            self._invalid(name, f"{value!r} is not a valid value", f"Use one of: {', '.join(options)}")
        return value

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        digits = f"^({'' if least else '0|'}[1-9][0-9]{{0,{len(str(most)) - 1}}})?$"
        value = self._get(name, {"type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": digits})
        if not value:
            return default
        if not (value.isascii() and value.isdigit() and len(value) < 19 and least <= int(value) <= most):
            self._invalid(name, f"{value[:40]!r} is not a whole number from {least} to {most}", f"Default: {default}")
        return int(value)

    def names(self, name: str, default: tuple[str, ...] = ()) -> list[str]:
        """Parse a comma-separated list; surrounding blanks and empty items are removed."""
        value = self._get(name)
        return [part.strip() for part in value.split(",") if part.strip()] if value else list(default)

    def places(self, name: str, *, port: bool = False, others: Collection[str] = ()) -> list[str]:
        """Parse a list of `host` or `host:port`, and return it in lower case.

        If `port` is true, every item must have a port. `others` lists further valid items, such as `*`.
        """
        found = [place.lower() for place in self.names(name)]
        for place in found:
            if place not in others and not (is_place(place) and (":" in place.rpartition("]")[2] or not port)):
                wanted = "host:port" if port else "host or host:port"
                self._invalid(name, f"{place[:80]!r} is not a valid address", f"Write {wanted}, comma-separated")
        return found

    def programs(self, name: str) -> list[str]:
        """Parse a list of absolute paths of programs."""
        found = self.names(name)
        for path in found:
            if not (path.startswith("/") and os.path.normpath(path) == path) or path == "/":
                self._invalid(name, f"{path[:80]!r} is not an absolute path", "Write /folder/program, comma-separated")
        return found

    def variables(self, name: str) -> list[str]:
        """Parse a list of environment variables that other programs may receive: no secrets, no loader settings."""
        found = self.names(name)
        for variable in found:
            if not re.fullmatch(r"[A-Za-z_]\w*", variable, re.ASCII) or variable.startswith(("LD_", *SECRETS)):
                hint = "Write names without secrets of hetsched and without LD_ variables, comma-separated"
                self._invalid(name, f"{variable[:80]!r} is not a variable for other programs", hint)
        return found

    def origins(self, name: str) -> list[str]:
        """Parse a list of web origins such as `https://hetsched.example.org`."""
        found = self.names(name)
        for origin in found:
            parts = urlsplit(origin)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
                self._invalid(name, f"{origin!r} is not a web origin", "Write scheme://host[:port], comma-separated")
        return [origin.rstrip("/") for origin in found]

    def pairs(self, name: str, values: frozenset[str]) -> dict[str, str]:
        """Parse a comma-separated list of `key=value`, where the value is one of `values`."""
        found: dict[str, str] = {}
        for part in self.names(name):
            key, _equals, value = (piece.strip() for piece in part.rpartition("="))
            if not key or value not in values:
                hint = f"Use one of these values: {', '.join(sorted(values))}"
                self._invalid(name, f"{part[:80]!r} is not KEY=VALUE", hint)
            found[key] = value
        return found

    def provider(self, name: str) -> str:
        """Return the URL of a service, which must use https, or http on this machine."""
        value = self._get(name)
        parts = urlsplit(value)
        local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
        if value and (not parts.hostname or parts.query or parts.fragment or not (parts.scheme == "https" or local)):
            self._invalid(name, f"{value[:80]!r} is not an https address", "Write https://host[:port][/path]")
        return value

    def folder(self, name: str, default: Path) -> Path:
        value = self._get(name, {**_TEXT, "pattern": "^([/~].*)?$"})
        path = Path(value).expanduser() if value else default
        if not path.is_absolute():
            self._invalid(name, f"{value!r} is not an absolute path", "Write the full path, starting with /")
        if path.exists() and not path.is_dir():
            self._invalid(name, f"{path} is not a folder", "Name a folder; it is created if it does not exist")
        return path

    def secret(self, name: str, *, least_characters: int) -> str:
        """Return a secret, or an empty string if it is not set; error messages never contain the value."""
        value = self._get(name, {**_TEXT, "anyOf": [{"maxLength": 0}, {"minLength": least_characters}]})
        if value and len(value) < least_characters:
            self._invalid(
                name,
                f"the value has only {len(value)} characters",
                f"Use at least {least_characters} random characters",
            )
        return value

    def redis(self, name: str, default: RedisAddress) -> RedisAddress:
        value = self._get(name)
        if not value:
            return default
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            self._invalid(name, "the port is not a valid port number", "Example: redis://127.0.0.1:6379/0")
        if value == "memory://" or (parts.scheme in {"redis", "rediss"} and parts.hostname and port != 0):
            return RedisAddress(value)
        if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
            return RedisAddress(value)
        self._invalid(
            name, f"the scheme {parts.scheme!r} or the host is not supported", "Use redis://, rediss:// or unix:///"
        )

    def database(self, name: str, default: str) -> dict[str, Any]:
        """Return Django's DATABASES entry for a database URL; the settings module adds the options for the engine."""
        value = self._get(name) or default
        scheme = value.partition(":")[0]
        if scheme not in {"sqlite", "postgres", "postgresql"}:
            self._invalid(name, f"the scheme {scheme[:20]!r} is not supported", " or ".join(DATABASES.values()))
        try:
            config: dict[str, Any] = environ.Env.db_url_config(value)
        except ValueError:
            self._invalid(name, "the value is not a database URL", " or ".join(DATABASES.values()))
        if not config["NAME"]:
            self._invalid(name, "the URL does not name a database", f"Example: {DATABASES[scheme.removesuffix('ql')]}")
        config["HOST"] = unquote(config["HOST"])
        return config
