"""pip settings are passed to uv, which reads none of them; a user with a mirror configures it once."""

from pathlib import Path

import pytest

from requirements import installer


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*installer.UV_NAMES.values(), *(f"PIP_{pip.upper().replace('-', '_')}" for pip in installer.UV_NAMES)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)


def test_variables_are_handed_over_under_uvs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://mirror.test/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://a.test/simple\nhttp://b.test/simple")
    monkeypatch.setenv("PIP_CERT", "/certs/ours.pem")

    env = installer.uv_environment()

    assert env["UV_DEFAULT_INDEX"] == "http://mirror.test/simple"
    assert env["UV_INDEX"] == "http://a.test/simple http://b.test/simple"
    assert env["SSL_CERT_FILE"] == "/certs/ours.pem"


def test_variable_precedes_the_pip_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / ".config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("[global]\nindex-url = http://file.test/simple\ntimeout = 7\n")
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable.test/simple")

    env = installer.uv_environment()

    assert env["UV_DEFAULT_INDEX"] == "http://variable.test/simple"
    assert env["UV_HTTP_TIMEOUT"] == "7"


def test_uvs_own_variable_wins_over_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://pip.test/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://uv.test/simple")

    assert installer.uv_environment()["UV_DEFAULT_INDEX"] == "http://uv.test/simple"


def test_missing_folders_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path}/gone http://wheels.test/")

    assert installer.uv_environment()["UV_FIND_LINKS"] == f"{tmp_path},http://wheels.test/"
