"""Receive webhooks of hetsched and reject unsigned messages: `python webhook_receiver.py 8080`.

The environment variable WEBHOOK_SECRET contains the secret that `POST /api/v1/webhooks/` returned.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

OLDEST_SECONDS = 300
seen = set()  # in production, keep the message ids for three days in persistent storage


def verified(secret, headers, body, now=None):
    """Return the message, or None if its signature or its time is invalid."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs((now or time.time()) - int(sent_at)) > OLDEST_SECONDS:
        return None
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    wanted = f"v1,{base64.b64encode(signed).decode()}"
    # During a rotation there are two signatures; one match is enough.
    given = headers.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given):
        return None
    return json.loads(body)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        message = verified(os.environ["WEBHOOK_SECRET"], self.headers, body)
        if message is None:
            self.send_response(401)
        else:
            if self.headers["webhook-id"] not in seen:  # a message can arrive more than once
                seen.add(self.headers["webhook-id"])
                print(message["type"], message.get("id", ""), flush=True)  # noqa: T201
            self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
