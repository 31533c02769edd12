"""Invalid environment variables are rejected with name, reason and remedy, and never with a secret."""

from pathlib import Path

import pytest

from hetsched.contracts.errors import InputError
from hetsched.project.environment import Environment, RedisAddress, exit_with_message

LOCAL = RedisAddress("redis://127.0.0.1:6379/0")


def refusal(value: str, read: str, *args: object, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        getattr(Environment({"X": value}), read)("X", *args, **options)
    assert caught.value.place == "X"
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("value", ["maybe", "2", "ja"])
def test_flag(value: str) -> None:
    assert refusal(value, "flag", default=False).code == "EnvInvalid"


@pytest.mark.parametrize("value", ["-1", "0", "11", "1.5", "١", "9" * 5000, "ten"])
def test_number(value: str) -> None:
    refusal(value, "number", 5, least=1, most=10)


def test_choice() -> None:
    assert "off, on, proxy" in refusal("tls", "choice", ("off", "on", "proxy")).hint


@pytest.mark.parametrize("value", ["example.org", "ftp://example.org", "https://example.org/path", "https://"])
def test_origins(value: str) -> None:
    refusal(value, "origins")


@pytest.mark.parametrize("value", ["http://p:9090", "p:9090/x", "u@p:9090", "*:9090", ":9090", "p:port", "a,https://b"])
def test_places(value: str) -> None:
    refusal(value, "places")
    refusal(value, "places", port=True)


@pytest.mark.parametrize("value", ["prometheus", "[::1]"])
def test_places_that_need_a_port(value: str) -> None:
    refusal(value, "places", port=True)


def test_folder_must_be_absolute() -> None:
    refusal("data", "folder", Path("/tmp"))


def test_folder_must_not_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    refusal(str(file), "folder", Path("/tmp"))


def test_short_secret_is_not_shown() -> None:
    assert "hunter2" not in str(refusal("hunter2", "secret", least_characters=40))


@pytest.mark.parametrize(
    "value", ["127.0.0.1:6379", "amqp://h", "redis://", "redis://h:0", "redis://h:99999", "unix://x"]
)
def test_redis(value: str) -> None:
    refusal(value, "redis", LOCAL)


@pytest.mark.parametrize("value", ["mysql://h/db", "hetsched.sqlite3", "postgres://h", "postgres://h:port/db"])
def test_database(value: str) -> None:
    refusal(value, "database", "sqlite:////tmp/x")


def test_password_of_a_refused_database_is_not_shown() -> None:
    assert "hunter2" not in str(refusal("postgres://me:hunter2@host", "database", "sqlite:////tmp/x"))


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Environment({"X_FILE": str(tmp_path / "none")}).text("X")
    assert (caught.value.code, caught.value.place) == ("EnvInvalid", "X_FILE")


def test_value_and_file_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Environment({"X": "a", "X_FILE": str(tmp_path)}).text("X")
    assert caught.value.code == "EnvTwice"


def test_exit_code_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Environment({"X": "maybe"}, refuse=exit_with_message).flag("X", default=False)
    assert caught.value.code == 2
    assert capsys.readouterr().err == "hetsched: X: 'maybe' is not a boolean [EnvInvalid]. Use 1 or 0\n"
