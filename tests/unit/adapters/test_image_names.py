import pytest

from hetsched.adapters.oci.reference import parse_reference
from hetsched.contracts.errors import InputError

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.27", "docker.io/library/nginx:1.27"),
        ("team/app", "docker.io/team/app:latest"),
        ("index.docker.io/team/app", "docker.io/team/app:latest"),
        ("ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"),
        ("localhost/app", "localhost/app:latest"),
        ("registry:5000/app:1", "registry:5000/app:1"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("Registry.Example/app", "registry.example/app:latest"),
        (f"quay.io/x/y:1@{DIGEST}", f"quay.io/x/y@{DIGEST}"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
    ],
)
def test_image_name_is_normalised(written: str, meant: str) -> None:
    assert str(parse_reference(written)) == meant


@pytest.mark.parametrize(
    "wrong",
    ["", ":", "@", "app:", "app@", "UPPER", "a//b", "../x", "reg.example/../x", "a b", "x:tag with", "app@sha256:12",
     "http://reg.example/app", "reg.example/app?x=1", "user@reg.example/app", "reg.example:port/app", "x" * 600,
     "app\n", "reg.example/app#f"],
)  # fmt: skip
def test_invalid_image_name_is_rejected(wrong: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_reference(wrong)
    assert refusal.value.code == "ImageNameInvalid"
