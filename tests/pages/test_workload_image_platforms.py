import pytest
from django.test import Client
from django.utils import timezone

from hetsched.inventory.models import ImageIndex
from hetsched.placement.models import Workload
from tests.builders import a_pod
from tests.situations import a_cluster, submitted

pytestmark = pytest.mark.django_db


@pytest.fixture
def workload() -> Workload:
    return submitted(a_cluster(), a_pod("p").images(("linux/amd64/v3", "linux/arm64"), "<b>no answer</b>"))


def test_workload_page_shows_platforms_reasons_and_warnings(viewer: Client, workload: Workload) -> None:
    shown = viewer.get(f"/workloads/{workload.pk}/").content.decode()
    assert "linux/amd64/v3, linux/arm64" in shown
    assert "platforms unknown: &lt;b&gt;no answer&lt;/b&gt;" in shown
    assert "stock containerd rejects this image on every linux/amd64 node" in shown


def test_api_returns_image_platforms_with_the_time_of_the_last_read(viewer: Client, workload: Workload) -> None:
    now = timezone.now()
    # The builder gives images this name; a registry would be Docker Hub.
    ImageIndex.objects.create(
        cluster=workload.cluster, reference="docker.io/library/image-0:latest", digest="sha256:1", read_at=now,
        message="the registry does not answer", wanted_at=now, not_before=now,
    )  # fmt: skip
    first, second = viewer.get(f"/api/v1/workloads/{workload.pk}/").json()["images"]
    assert first["platforms"] == ["linux/amd64/v3", "linux/arm64"]
    assert (first["digest"], first["failure"], first["unknown"]) == ("sha256:1", "the registry does not answer", None)
    assert (second["platforms"], second["unknown"], second["readAt"]) == ([], "<b>no answer</b>", None)
