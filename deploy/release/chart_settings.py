"""Write the settings of hetsched into the schema of the chart: `python -m deploy.release.chart_settings`.

helm rejects unknown settings, wrong types and invalid choices before it changes the cluster. The schema of each setting
is the one that `hetsched.project.environment` records when the settings module reads the variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).resolve().parents[1] / "helm" / "hetsched" / "values.schema.json"
# Variables that the chart sets from other values or from Secrets.
RESERVED = frozenset({
    "SECRET_KEY", "DATABASE_URL", "REDIS_URL", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "HETSCHED_REGISTRIES",
    "HETSCHED_PLAIN_REGISTRIES", "HETSCHED_METRICS_TOKEN",
})  # fmt: skip
_BLOCK = re.compile(r'(?<=\n    "settings": \{\n).*?(?=\n    \},\n    "extraEnv")', re.DOTALL)


def updated(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a values schema with the given schemas as the properties of `settings`."""
    names = sorted(schemas.keys() - RESERVED)
    rows = ",\n".join(f"        {json.dumps(name)}: {json.dumps(schemas[name])}" for name in names)
    files = json.dumps({f"^({'|'.join(names)})_FILE$": {"type": "string", "pattern": "^(/.*)?$"}})
    block = (
        '      "type": "object", "additionalProperties": false,\n'
        f'      "properties": {{\n{rows}\n      }},\n'
        f'      "patternProperties": {files}'
    )
    return _BLOCK.sub(lambda _: block, text)


def main() -> None:
    """Update the schema of the chart."""
    from hetsched.project.settings import ENV

    SCHEMA.write_text(updated(SCHEMA.read_text(), ENV.schemas))


if __name__ == "__main__":
    main()
