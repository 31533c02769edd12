"""`hetsched docs`: the reference pages that follow from the code.

Rule: a page that repeats what the code says is written by the code: one page per plugin from what the plugin declares,
the life of a pod from its table of states. `--check` says which pages are out of date; the tests run it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetsched.contracts.errors import InputError

from .output import console

if TYPE_CHECKING:
    from hetsched.engine.framework.registry import PluginInfo, Registry

PLUGINS = "reference/plugins"
_MADE = "<!-- Written by `hetsched docs`; change the code instead. -->\n\n"


def docs(
    out: Annotated[Path, typer.Option(help="Folder of the documentation.")] = Path("docs"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a page is out of date.")] = False,
) -> None:
    """Write the reference pages: plugins and the life of a pod."""
    from hetsched.engine.framework.registry import load_registry

    pages = reference_pages(load_registry())
    stale = [name for name, text in pages.items() if _read(out / name) != text]
    stale += [str(page.relative_to(out)) for page in sorted((out / PLUGINS).glob("*.md")) if _extra(page, out, pages)]
    if check and stale:
        raise InputError("DocsStale", f"out of date: {', '.join(stale)}", place=str(out), hint="Run hetsched docs")
    for name in stale if not check else []:
        if name in pages:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(pages[name], encoding="utf-8")
        else:
            (out / name).unlink()
    console().print(f"{len(pages)} pages, {len(stale)} written" if not check else f"{len(pages)} pages are current")


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.is_file() else ""


def _extra(page: Path, out: Path, pages: dict[str, str]) -> bool:
    return str(page.relative_to(out)) not in pages


def reference_pages(registry: Registry) -> dict[str, str]:
    """Return every generated page by its path under the documentation folder."""
    pages = {f"{PLUGINS}/{info.name}.md": plugin_page(info, described) for info, described in _described(registry)}
    rows = [f"| [{info.name}]({info.name}.md) | {', '.join(info.points)} | {info.summary} |" for info in registry]
    pages[f"{PLUGINS}/README.md"] = (
        f"{_MADE}# Plugins\n\n| plugin | extension points | what it does |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    pages["reference/pod-lifecycle.md"] = lifecycle_page()
    return pages


def _described(registry: Registry) -> list[tuple[PluginInfo, dict[str, Any]]]:
    by_name = {described["name"]: described for described in registry.describe()}
    return [(info, by_name[info.name]) for info in registry]


def plugin_page(info: PluginInfo, described: dict[str, Any]) -> str:
    """Return the page of one plugin: its rule as its file states it, its parameters, and who uses it."""
    from hetsched.engine.framework.builtin_policies import BUILTIN

    users = [name for name, policy in BUILTIN.items() if any(use.name == info.name for use in policy.plugins)]
    lines = [
        f"{_MADE}# {info.name}\n",
        f"{info.summary}\n",
        f"- Extension points: {', '.join(info.points)}",
        f"- Answers change with: {'the inventory' if info.reads == 'static' else 'every placement'}; "
        f"looks at: {'one node' if info.scope == 'row' else 'the whole cluster'}",
        f"- Built-in policies that use it: {', '.join(users) or 'none'}",
        f"- Code: `{info.source.replace('.', '/')}.py`\n",
        "```text",
        info.doc,
        "```\n",
        "## Parameters\n",
        *_parameters(described),
    ]
    return "\n".join(lines) + "\n"


def _parameters(described: dict[str, Any]) -> list[str]:
    properties = described["params"].get("properties", {})
    if not properties:
        return ["None."]
    rows = ["| name | default | allowed | meaning |", "|---|---|---|---|"]
    for name, schema in properties.items():
        default = described["defaults"][name]
        meaning = schema.get("description", schema.get("title", ""))
        rows.append(f"| `{name}` | `{default}` | {_allowed(schema)} | {meaning} |")
    return rows


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "see the schema"))
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{kind}, {low} to {high}" if low is not None and high is not None else kind


def lifecycle_page() -> str:
    """Return the states of a pod and the ways between them, drawn from the one table."""
    from hetsched.placement.lifecycle import pairs

    arrows = "\n".join(f"    {_word(source)} --> {_word(target)}" for source, target in pairs())
    return (
        f"{_MADE}# The life of a pod\n\n"
        "The table stands in `hetsched/placement/lifecycle.py`; the database refuses every other step.\n\n"
        f"```mermaid\nstateDiagram-v2\n    [*] --> pending\n{arrows}\n```\n"
    )


def _word(state: str) -> str:
    return state.replace("-", "_")
