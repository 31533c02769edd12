"""Hostile addresses for every component that makes outbound calls; none of them may be called."""

from __future__ import annotations

# hosts that are allowed in the configuration of these tests
NAMES = frozenset({"metrics.example:9090", "localhost:9090", "10.0.0.5:9090", "[fd00::5]:9090"})

SPELLINGS = [
    # spellings of 169.254.169.254 and 127.0.0.1 that resolvers accept
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://0xA9.0xFE.0xA9.0xFE/",
    "http://127.1:9090/",
    "http://0/",
    "http://2130706433:9090/",
    "http://[::1]:9090/",
    "http://[::ffff:127.0.0.1]:9090/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[0:0:0:0:0:ffff:169.254.169.254]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[fe80::1%25eth0]/",
    "http://[::]/",
    # hosts that only look like an allowed one
    "http://metrics.example:9091/",
    "http://metrics.example@169.254.169.254/",
    "http://user:secret@metrics.example:9090/",
    "http://169.254.169.254#@metrics.example:9090/",
    "http://169.254.169.254?@metrics.example:9090/",
    "http://169.254.169.254\\@metrics.example:9090/",
    "http://metrics.example.evil.test:9090/",
    "http://evil.test/metrics.example:9090",
    "http://metrics.example.:9090/",
    "http://metrics%2eexample:9090/",
    "http://metrics。example:9090/",
    "http://ｍetrics.example:9090/",
    "http://metrics.example:9090\r\nHost: evil.test/",
    "http://metrics.example :9090/",
    "http://\tmetrics.example:9090/",
    "http://localhost.evil.test:9090/",
    "http://localhost:9091/",
    # schemes other than http
    "file:///etc/passwd",
    "gopher://metrics.example:9090/_x",
    "ftp://metrics.example:9090/",
    "//metrics.example:9090/",
    "metrics.example:9090/",
    "http:metrics.example:9090/",
    "http://",
    "http://:9090/",
    "http://metrics.example:99999/",
    "http://metrics.example:9090:9090/",
    "http://[::1/",
    "http://metrics.example:9090/" + "a" * 3000,
    "",
]
