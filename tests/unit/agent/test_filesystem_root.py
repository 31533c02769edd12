"""Links, pipes, devices, huge and binary files below a root cause no escape, hang or crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetsched.agent.tree import MAX_BYTES, Tree


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    return secret


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "sys").mkdir(parents=True)
    return tmp_path / "root"


def codes(tree: Tree) -> list[str]:
    return [problem.code for problem in tree.problems]


def test_link_inside_the_root_is_followed(root: Path) -> None:
    (root / "sys/real").mkdir()
    (root / "sys/real/value").write_text("7\n")
    (root / "sys/relative").symlink_to("./real")
    (root / "sys/absolute").symlink_to("/sys/real")
    tree = Tree(root)
    assert tree.number("sys/relative/value") == tree.number("/sys/absolute/value") == 7
    assert tree.link_name("sys/absolute") == "real"
    assert tree.problems == []


@pytest.mark.parametrize("target", ["{outside}", "../../secret", "../../../../../../{outside}"])
def test_link_outside_the_tree_is_not_followed(root: Path, outside: Path, target: str) -> None:
    (root / "sys/value").symlink_to(target.format(outside=outside))
    assert Tree(root).text("sys/value") is None


def test_dots_stop_at_the_root(root: Path, outside: Path) -> None:
    (root / "value").write_text("mine")
    tree = Tree(root)
    assert tree.text("../../secret") is None
    assert tree.text("../../value") == "mine"


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    tree = Tree(root)
    assert tree.text("a") is None
    assert codes(tree) == ["FileUnreadable"]


def test_pipe_without_a_writer_does_not_block(root: Path) -> None:
    os.mkfifo(root / "value")
    tree = Tree(root)
    assert tree.text("value") is None
    assert codes(tree) == ["FileNotRegular"]


def test_sparse_gigabyte_file_is_rejected(root: Path) -> None:
    with (root / "value").open("wb") as file:
        file.truncate(2**30)
    tree = Tree(root)
    assert tree.text("value") is None
    assert codes(tree) == ["FileTooLarge"]


def test_file_at_the_size_limit_is_read(root: Path) -> None:
    (root / "value").write_text("x" * MAX_BYTES)
    assert Tree(root).text("value") == "x" * MAX_BYTES


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b"])
def test_binary_data_is_no_text(root: Path, data: bytes) -> None:
    (root / "value").write_bytes(data)
    tree = Tree(root)
    assert tree.text("value") is None
    assert codes(tree) == ["FileNotText"]


def test_missing_file_is_no_problem(root: Path) -> None:
    tree = Tree(root)
    assert tree.text("sys/nothing/value") is None
    assert tree.names("sys/nothing") == ()
    assert not tree.exists("sys/nothing")
    assert tree.link_name("sys/nothing") is None
    assert tree.problems == []


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "sys/a").symlink_to("/sys/b")
    (root / "sys/b").mkdir()
    (root / "sys/b/value").write_text("1")
    tree = Tree(root)
    tree.text("sys/a/value")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        tree.text("sys/a/value")
        tree.names("sys/a")
        tree.text("sys/none/value")
    assert len(os.listdir("/proc/self/fd")) == before
