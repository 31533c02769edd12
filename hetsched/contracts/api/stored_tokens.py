"""State of a service account token that a connection stores; see `hetsched.inventory.token_renewal`."""

from __future__ import annotations

import msgspec

from ..message import Message


class StoredToken(msgspec.Struct, frozen=True, rename="camel"):
    """Account (`namespace/name`) and end of a stored token; `failure` is the reason if the last renewal failed.

    `purpose` is `connection` or `discovery`. The token itself is not part of it.
    """

    purpose: str
    account: str
    expires_at: str
    failure: Message = Message("")
