"""Options that the commands which send pods to a server share."""

from __future__ import annotations

from typing import Annotated

import typer

from hetsched.client import Goal

from ..name_completion import a_cluster, a_policy

TargetCluster = Annotated[
    str, typer.Option(help="Target cluster; may be omitted if the server has one.", autocompletion=a_cluster)
]
PlacementPolicy = Annotated[str, typer.Option(help="Policy for placement.", autocompletion=a_policy)]
Priority = Annotated[int | None, typer.Option(help="Priority of all pods.", show_default=False)]
WaitGoal = Annotated[
    Goal | None, typer.Option("--for", help="State to wait for; --wait means placed.", show_default=False)
]
