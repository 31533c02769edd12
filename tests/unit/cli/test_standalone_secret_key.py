"""The key of a standalone server is complete, private to its owner, and the same at every start."""

from pathlib import Path

import pytest

from hetsched.cli.server.standalone import environment, secret_key


def test_second_start_reads_the_stored_key(tmp_path: Path) -> None:
    key = secret_key(tmp_path)
    assert len(key) >= 40
    assert secret_key(tmp_path) == key
    assert (tmp_path / "secret-key").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["secret-key"]


def test_empty_variable_uses_the_stored_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "")
    env = environment(tmp_path, "127.0.0.1", tmp_path / "socket", demo=False)
    assert env["SECRET_KEY"] == secret_key(tmp_path)


def test_full_disk_leaves_no_partial_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_bytes: int) -> str:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("hetsched.cli.server.standalone.secrets.token_urlsafe", full)
        with pytest.raises(OSError, match="no space"):
            secret_key(tmp_path)
    assert len(secret_key(tmp_path)) >= 40
