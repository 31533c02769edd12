"""Valid, absent and empty environment variables."""

from pathlib import Path

import pytest

from hetsched.contracts.errors import InputError
from hetsched.project.environment import Environment, RedisAddress

LOCAL = RedisAddress("redis://127.0.0.1:6379/0")


def test_empty_counts_as_absent() -> None:
    env = Environment({"X": " "})
    assert env.flag("X", default=True) is True
    assert env.number("X", 7, least=1, most=9) == 7
    assert env.redis("X", LOCAL) == LOCAL
    assert env.folder("X", Path("/srv")) == Path("/srv")


def test_list_loses_blanks() -> None:
    assert Environment({"X": " a, ,b "}).names("X") == ["a", "b"]


def test_places_are_in_lower_case() -> None:
    assert Environment({"X": "Prometheus:9090, [fd00::5]:80"}).places("X") == ["prometheus:9090", "[fd00::5]:80"]


def test_programs_are_absolute_paths_and_variables_are_no_secrets() -> None:
    assert Environment({"X": "/bin/a, /usr/bin/b"}).programs("X") == ["/bin/a", "/usr/bin/b"]
    assert Environment({"X": "AWS_PROFILE,region"}).variables("X") == ["AWS_PROFILE", "region"]
    for path in ("aws", "./aws", "/bin/../tmp/aws", "/"):
        with pytest.raises(InputError, match="EnvInvalid"):
            Environment({"X": path}).programs("X")
    for name in ("LD_PRELOAD", "SECRET_KEY", "DATABASE_URL", "HETSCHED_TOKEN", "A=B", "1A", "SECRET_KEY_FILE"):
        with pytest.raises(InputError, match="EnvInvalid"):
            Environment({"X": name}).variables("X")


@pytest.mark.parametrize(
    ("given", "celery"),
    [
        ("redis://h:6379/3", "redis://h:6379/3"),
        ("rediss://u:p@h/0", "rediss://u:p@h/0"),
        ("unix:///run/s.sock", "redis+socket:///run/s.sock"),
        ("unix:///run/s.sock?db=2", "redis+socket:///run/s.sock?virtual_host=2"),
        ("memory://", "memory://"),
    ],
)
def test_celery_has_its_own_spelling(given: str, celery: str) -> None:
    assert Environment({"X": given}).redis("X", LOCAL).for_celery() == celery


def test_database_on_a_unix_socket() -> None:
    config = Environment({"X": "postgres://me@%2Frun%2Fpg/db"}).database("X", "")
    assert (config["HOST"], config["NAME"], config["USER"]) == ("/run/pg", "db", "me")


def test_value_out_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 40 + "\n")
    assert Environment({"X_FILE": str(file)}).secret("X", least_characters=40) == "k" * 40
