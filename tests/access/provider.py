"""An OpenID provider on loopback that needs no password and returns wrong data on request."""

from __future__ import annotations

import json
import secrets
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT, SECRET = "hetsched", "a secret of the client's"


class Provider:
    """Issuer, keys and issued codes; `lies` changes one item of a response so that it is wrong."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.lies: dict[str, Any] = {}
        self.person: dict[str, Any] = {"sub": "248289", "preferred_username": "ada", "groups": ["platform"]}
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answer(self, b"")

            def do_POST(self) -> None:
                provider.answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def authorize(self, address: str) -> str:
        """Authorize a request as the provider's login page would; return the redirect URL."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert asked["client_id"] == CLIENT
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = {"code": code, "state": asked["state"], **self.lies.get("back", {})}
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def answer(self, call: Any, body: bytes) -> None:
        path = urlsplit(call.path).path
        self.asked.append(path)
        if path in self.lies.get("moved", ()):
            call.send_response(302)
            call.send_header("Location", f"{self.issuer}/elsewhere")
            call.end_headers()
            return
        given = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": lambda: {"keys": [self.key.as_dict(private=False)]},
            "/token": lambda: self.token(call, body),
            "/userinfo": lambda: self.lies.get("userinfo", self.person),
        }[path]()
        text = json.dumps(given).encode()
        call.send_response(400 if "error" in given else 200)
        call.send_header("Content-Type", "application/json")
        call.send_header("Content-Length", str(len(text)))
        call.end_headers()
        call.wfile.write(text)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo", "id_token_signing_alg_values_supported": ["RS256"],
            **self.lies.get("metadata", {}),
        }  # fmt: skip

    def token(self, call: Any, body: bytes) -> dict[str, Any]:
        given = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        name, _, secret = b64decode(call.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")
        asked = self.codes.pop(given["code"], None)  # a code is valid only once
        if asked is None or (unquote(name), unquote(secret)) != (CLIENT, SECRET):
            return {"error": "invalid_grant"}
        challenge = urlsafe_b64encode(sha256(given["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if challenge != asked["code_challenge"] or given["redirect_uri"] != asked["redirect_uri"]:
            return {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"],
            **{name: value for name, value in self.person.items() if name not in self.lies.get("kept", ())},
            **self.lies.get("claims", {}),
        }  # fmt: skip
        return {"access_token": "opaque", "token_type": "Bearer", "id_token": self.signed(claims)}

    def signed(self, claims: dict[str, Any]) -> str:
        match self.lies.get("signed"):
            case "none":
                parts = [{"alg": "none"}, claims]
                return ".".join(urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts) + "."
            case "client secret":
                key = OctKey.import_key(SECRET)
                return str(jwt.encode({"alg": "HS256"}, claims, key, algorithms=["HS256"]))
            case "another":
                other = RSAKey.generate_key(2048, {"kid": "one"})
                return str(jwt.encode({"alg": "RS256", "kid": "one"}, claims, other))
        return str(jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key))
