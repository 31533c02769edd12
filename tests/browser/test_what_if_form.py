"""The what-if form evaluates its fields or YAML, keeps them in the address, and writes nothing."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: pasted}
spec: {containers: [{name: main, image: x, resources: {requests: {cpu: "1"}}}]}
"""


def test_example_shows_the_full_result(visitor: Visitor) -> None:
    page = visitor.open("/what-if/")
    expect(page.locator("#examples")).to_be_visible()
    page.click("[data-example='0']")
    expect(page.locator("#sentence")).to_contain_text("default/what-if fits on")
    expect(page.locator(".banner")).to_contain_text(
        re.compile(r"Feasibility at \d\d:\d\d:\d\d\. Nothing is reserved\.")
    )
    expect(page.locator("#result")).to_contain_text("Best nodes for default/what-if: 6 of 48 are feasible")
    expect(page.locator("#grid .ghost")).to_have_count(1)
    # RVA22 with vectors: four K1 boards and two SG2044; the other 42 nodes are faint.
    expect(page.locator("#grid .out")).to_have_count(42)
    assert "isa=rva22u64_v" in page.url
    expect(page.locator("#examples")).to_be_hidden()


def test_narrow_grid_shows_whole_pool_names(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open("/what-if/?cpu=1")
    names = page.locator("#grid h4 > span:first-child")
    expect(names).to_have_count(13)
    page.locator("#grid").scroll_into_view_if_needed()
    cut = names.evaluate_all(
        "names => names.filter(name => name.scrollWidth > name.clientWidth).map(name => name.textContent)"
    )
    assert cut == []


def test_request_is_sent_after_a_pause_in_typing(visitor: Visitor) -> None:
    page = visitor.open("/what-if/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "what-if" in request.url else None)
    page.locator("[name=cpu]").press_sequentially("1000", delay=30)
    expect(page.locator("#sentence")).to_contain_text("never fits this cluster")
    expect(page.locator("#result")).to_contain_text("InsufficientResource")
    assert len(asked) == 1


def test_link_repeats_the_what_if(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1&isa=x86-64-v4&replicas=3&policy=best-fit")
    expect(page.locator("#sentence")).to_have_text(re.compile(r"all 3 pods fit, on \d of 48 nodes"))
    expect(page.locator(".banner")).to_contain_text("Policy best-fit v")
    assert page.locator("[name=isa]").input_value() == "x86-64-v4"
    page.click("button[type=reset]")
    expect(page.locator("#examples")).to_be_visible()
    assert page.url.endswith("/what-if/")


def test_every_wrong_field_of_the_yaml_is_shown(visitor: Visitor) -> None:
    visitor.expected.append("400 (Bad Request)")
    page = visitor.open("/what-if/")
    page.click("#mode [value=yaml]")
    page.fill("#yaml", POD.replace("pasted", "Pasted").replace('"1"', "much"))
    expect(page.locator("#result p:has(.mono)")).to_have_text(
        [
            "metadata.name: must be a lower-case RFC 1123 name, not 'Pasted' NameInvalid",
            "spec.containers[0].resources.requests.cpu: 'much' is not a valid quantity QuantityMalformed",
        ]
    )
    expect(page.locator("#result")).to_contain_text("Did you mean pasted?")
    expect(page.locator("#result")).to_contain_text("Use a number with an optional suffix")


def test_yaml_is_copied_from_the_form_into_the_fragment(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=2")
    expect(page.locator("#sentence")).to_contain_text("fits on")
    page.click("#mode [value=yaml]")
    assert 'cpu: "2"' in page.locator("#yaml").input_value()
    page.fill("#yaml", POD)
    expect(page.locator("#sentence")).to_contain_text("default/pasted fits on")
    address = page.url
    assert "#yaml=" in address
    assert "pasted" not in address.partition("#")[0]
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#sentence")).to_contain_text("default/pasted fits on")


def test_invalid_question_shows_code_and_request(visitor: Visitor) -> None:
    visitor.expected.append("status of 400")
    page = visitor.open("/what-if/?cpu=lots")
    note = page.locator("#result [role=alert]")
    expect(note).to_contain_text("'lots' is not a valid quantity")
    expect(note).to_contain_text(re.compile(r"QuantityMalformed.*Request [0-9a-f]{32}"))
    page.fill("[name=cpu]", "1")
    expect(page.locator("#sentence")).to_contain_text("fits on")


def test_misconfigured_request_has_its_verdict(visitor: Visitor) -> None:
    visitor.expected.append("status of 400")  # the meaning of the string is requested too
    page = visitor.open("/what-if/?isa=rv64gc_nonsense")
    expect(page.locator("#result .chip").first).to_have_text("misconfigured")
    expect(page.locator("#ghosts")).to_be_hidden()


def test_what_if_is_copied_as_commands(visitor: Visitor) -> None:
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.open("/what-if/?cpu=1&isa=rva22u64_v&policy=spread")
    expect(page.locator("#sentence")).to_contain_text("fits on")

    def copied(kind: str) -> str:
        page.locator("#copied").evaluate("(e) => { e.textContent = ''; }")
        page.click(f"[data-copies={kind}]")
        expect(page.locator("#copied")).to_have_text("Copied")
        return str(page.evaluate("navigator.clipboard.readText()"))

    assert 'hetsched.io/isa: "rva22u64_v"' in copied("yaml")
    assert "--cluster cluster.yaml --policy 'spread'" in copied("cli")
    curl = copied("curl")
    assert "/api/v1/what-if/" in curl
    assert "$HETSCHED_TOKEN" in curl
    assert copied("link") == page.url


def test_what_if_keeps_the_cluster_revision(visitor: Visitor) -> None:
    page = visitor.open("/")
    before = page.locator("[data-head=revision]").inner_text()
    visitor.open("/what-if/?cpu=1&replicas=5")
    expect(page.locator("#sentence")).to_contain_text("all 5 pods fit")
    visitor.open("/")
    expect(page.locator("[data-head=revision]")).to_have_text(before)


def test_nearest_fit_is_applied_with_one_click(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1000")
    row = page.locator(".nearest tbody tr").first
    expect(row).to_contain_text("resources.requests.cpu")
    row.get_by_role("button").click()
    expect(page.locator("#sentence")).to_contain_text("default/what-if fits on")
    assert page.locator("[name=cpu]").input_value() != "1000"
    expect(page.locator("#result")).to_contain_text("Tipping points")


def test_implied_choices_are_disabled(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?isa=rv64gc")
    page.click("#picker summary")
    chip = page.locator("#isa-chips button[value=v]")
    chip.click()
    expect(page.locator("[name=isa]")).to_have_value("rv64gcv")
    page.fill("#isa-find", "zve32x")
    implied = page.locator("#isa-chips button[value=zve32x]")
    expect(implied).to_have_attribute("aria-disabled", "true")
    implied.click(force=True)
    expect(page.locator("[name=isa]")).to_have_value("rv64gcv")
    expect(page.locator("#result")).to_contain_text("of 48 are feasible")


def test_program_fills_in_its_requirements(visitor: Visitor) -> None:
    page = visitor.open("/what-if/")
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    program = header + struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, 0, 0, 0, 0x5, 64, 56, 0, 64, 0, 0)
    page.set_input_files("#binary", {"name": "app", "mimeType": "", "buffer": program})
    expect(page.locator("#binary-said")).to_contain_text("app needs riscv: rv64")
    expect(page.locator("#sentence")).to_contain_text("default/what-if fits on")
    visitor.expected.append("status of 400")
    page.set_input_files("#binary", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    expect(page.locator("#binary-said")).to_contain_text("ElfMalformed")


def test_two_questions_are_compared_in_one_link(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1&isa=rva22u64_v")
    expect(page.locator("#sentence")).to_contain_text("fits on")
    page.click("#pin")
    expect(page.locator("#comparison [data-same]")).to_contain_text("Both results are equal")
    page.fill("[name=isa]", "x86-64-v3")
    expect(page.locator("#comparison [data-same]")).to_have_count(0)
    rows = page.locator("#comparison tr.differs")
    expect(rows.first).to_contain_text("isa x86-64-v3")
    expect(rows.first).to_contain_text("isa rva22u64_v")
    page.reload()
    expect(rows.first).to_contain_text("isa rva22u64_v")
    page.get_by_role("button", name="Swap").click()
    expect(page.locator("[name=isa]")).to_have_value("rva22u64_v")


def test_nodes_are_drained_and_copied_before_the_question(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1&isa=rva22u64_v")
    page.click("#fleet-part summary")
    page.fill("#drain-name", "k1-0")
    page.press("#drain-name", "Enter")
    expect(page.locator("#drained")).to_contain_text("k1-0")
    expect(page.locator("#grid [data-name=k1-0]")).to_have_class(re.compile("out"))
    page.fill("#copy-name", "k1-1")
    page.fill("#copy-count", "2")
    page.click("#copy-add")
    page.click("#matrix-part summary")
    expect(page.locator("#matrix")).to_contain_text("k1-1-copy-2")
    assert "drain=k1-0" in page.url
    assert "copy=k1-1%3A2" in page.url


def test_displaced_pod_without_a_node_is_shown_as_a_failure(visitor: Visitor) -> None:
    summary = "the displaced pod fits on no other node; hpc/solver does not fit now: 0 of 47 nodes fit"
    displaced = {
        "pod": "hpc/solver",
        "from": "k1-0",
        "to": None,
        "verdict": "not-now",
        "message": "it does not fit now",
    }

    def failed(route: Route) -> None:
        answer = route.fetch()
        changes = {"verdict": "not-now", "summary": summary, "displaced": [displaced]}
        route.fulfill(response=answer, json={**answer.json(), **changes})

    visitor.page.route("**/api/v1/what-if/", failed)
    page = visitor.open("/what-if/?cpu=1&drain=k1-0")
    headline = page.locator("#result .verdict-line")
    expect(headline.locator(".chip")).to_have_class("chip wait")
    expect(headline).to_contain_text("the displaced pod fits on no other node")
    headings = page.locator("#result table", has_text="hpc/solver").locator("thead th")
    expect(headings).to_have_text(["Pod", "Node", "New node", "Result"])
    row = page.locator("#result tr", has_text="hpc/solver")
    expect(row).to_contain_text("no node")
    expect(row.locator(".chip")).to_have_class("chip wait")


def test_nodes_are_grouped_by_reason_and_exported(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1&isa=rva22u64_v")
    page.click("#matrix-part summary")
    expect(page.locator("#matrix tbody tr")).to_have_count(48)
    page.locator("#matrix [data-group]", has_text="feasible").click()
    expect(page.locator("#matrix tbody tr")).to_have_count(6)
    with page.expect_download() as saved:
        page.click("#matrix [data-saves=csv]")
    lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith("rank,node,feasible,")
    assert len(lines) == 7


SEND = """async ([method, address, text]) => {
    const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
    const headers = {"Content-Type": "application/json", "X-CSRFToken": token, "If-Match": "*"};
    const answer = await fetch(`/api/v1/${address}`, {method, headers, body: text});
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    return answer.text();
}"""


@pytest.fixture
def demo_copy(visitor: Visitor, console: Console) -> Iterator[str]:
    """Return the export of a copy of the demo cluster in which no pod of another test starts or ends."""
    page = visitor.open("/what-if/")

    def send(method: str, address: str, text: str | None = None) -> str:
        answer: str = page.evaluate(SEND, [method, address, text])
        return answer

    send("POST", "clusters/", json.dumps({"name": "copy", "reason": "test"}))
    send("POST", "clusters/copy/import/?reason=test", send("GET", "clusters/demo/export/"))
    yield send("GET", "clusters/copy/export/")
    console.run("from hetsched.inventory.models import Cluster; Cluster.objects.get(name='copy').delete()")


def test_page_rest_and_command_give_the_same_document(visitor: Visitor, console: Console, demo_copy: str) -> None:
    page = visitor.open("/what-if/?cluster=copy&cpu=2&memory=1Gi&isa=x86-64-v3&copy=epyc-0%3A1")
    with page.expect_response("**/api/v1/what-if/") as answered:
        page.fill("[name=cpu]", "3")
    body = answered.value.request.post_data_json
    assert body["cluster"] == "copy"
    folder = console.plane.folder
    (folder / "cluster.json").write_text(demo_copy)
    (folder / "pods.json").write_text(json.dumps(body["manifest"]))
    files = ("-f", str(folder / "pods.json"), "--cluster", str(folder / "cluster.json"))
    printed = console.plane.run(
        "-m", "hetsched.cli", "whatif", *files, "--copy-node", "epyc-0=1", "--explain", "-o", "json"
    )
    documents = [
        answered.value.json(),
        json.loads(page.evaluate(SEND, ["POST", "what-if/", json.dumps(body)])),
        json.loads(printed),
    ]
    for document in documents:
        del document["evaluatedAt"]
    assert documents[0] == documents[1] == documents[2]
