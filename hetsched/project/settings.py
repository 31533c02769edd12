"""Settings of every process and every deployment; only environment variables differ.

Options of a deployment are environment variables read through `ENV`; the rest is fixed here. SQLite runs in WAL mode
with immediate transactions (readers never block, writers queue instead of failing). PostgreSQL is accessed through a
connection pool per process. Celery acknowledges late and prefetches one task at a time, so no task is lost when a
worker is killed. Messages are only hints: periodic sweeps of the database do the work of lost messages.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from whitenoise.compress import Compressor

from hetsched.access.roles import Role
from hetsched.adapters import assets

from . import logs
from .environment import Environment, RedisAddress, exit_with_message

ENV = Environment(os.environ, refuse=exit_with_message)
BASE_DIR = Path(__file__).resolve().parents[2]
DATA_DIR = ENV.folder(
    "HETSCHED_DATA", Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "hetsched"
)

# --- Identity and environment -----------------------------------------------------------------------------------------
DEBUG = ENV.flag("HETSCHED_DEBUG", default=False)
HTTPS = ENV.choice("HETSCHED_HTTPS", ("off", "on", "proxy"))
# Peers whose X-Forwarded-For and X-Forwarded-Proto are trusted. By default a proxy on this machine is trusted, but it
# is exempt from the connection limit only if HTTPS=proxy declares it.
_named_proxies = ENV.names("FORWARDED_ALLOW_IPS")
HETSCHED_TRUSTED_PROXIES = _named_proxies or ["127.0.0.1", "::1"]
HETSCHED_NAMED_PROXIES = HETSCHED_TRUSTED_PROXIES if _named_proxies or HTTPS == "proxy" else []
_key = ENV.secret("SECRET_KEY", least_characters=40)
SECRET_KEY_GIVEN = bool(_key)
# Without a key each process generates its own: fine for one-off commands; a system check rejects it for servers.
SECRET_KEY = _key or secrets.token_urlsafe(48)
ALLOWED_HOSTS = ENV.names("ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]"))
CSRF_TRUSTED_ORIGINS = ENV.origins("CSRF_TRUSTED_ORIGINS")

ROOT_URLCONF = "hetsched.project.urls"
ASGI_APPLICATION = "hetsched.project.asgi.application"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "knox",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "hetsched.project",
    "hetsched.journal",
    "hetsched.access",
    "hetsched.inventory",
    "hetsched.policies",
    "hetsched.placement",
    "web",
]
MIDDLEWARE = [
    "hetsched.project.middleware.RequestLog",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "hetsched.access.sessions.LastSeenMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "hetsched.project.body_gate.BodyGate",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [assets.TEMPLATES],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["web.pages.filters"],
        },
    }
]

# --- Database ---------------------------------------------------------------------------------------------------------
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
_database = ENV.database("DATABASE_URL", f"sqlite:///{DATA_DIR / 'hetsched.sqlite3'}")
EMBEDDED = _database["ENGINE"].endswith("sqlite3")
_pool_size = ENV.number("HETSCHED_DB_POOL", 10, least=2, most=200)
IDLE_TRANSACTION_SECONDS = 30
if EMBEDDED:
    with contextlib.suppress(OSError):  # the system check hetsched.E003 reports the error
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        (DATA_DIR / "static").mkdir(exist_ok=True)
    _database["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA temp_store=MEMORY;"
        "PRAGMA mmap_size=134217728;PRAGMA journal_size_limit=67108864;PRAGMA cache_size=-20000;"
        "PRAGMA wal_autocheckpoint=8000;",  # pages; see `storage.log_checkpoints`
    }
else:
    # The pool is opened by the first query of each process, after the worker has forked.
    _database.setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": _pool_size, "timeout": 10}
    # If a process hangs or a machine disappears inside a transaction, its locks must be released.
    _database["OPTIONS"].setdefault("options", f"-c idle_in_transaction_session_timeout={IDLE_TRANSACTION_SECONDS}s")
# Keep SQLite connections, because opening the file reads its whole schema. PostgreSQL's connections stay open in their
# pool.
DATABASES: dict[str, dict[str, Any]] = {"default": {**_database, "CONN_MAX_AGE": None if EMBEDDED else 0}}
CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 20_000}}
}

# --- Channel layer and message broker ---------------------------------------------------------------------------------
REDIS = ENV.redis("REDIS_URL", RedisAddress("redis://127.0.0.1:6379/0"))
BROKER = ENV.redis("HETSCHED_BROKER_URL", REDIS)
CHANNEL = ENV.redis("HETSCHED_CHANNEL_URL", REDIS)
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    if CHANNEL.in_memory
    # This backend survives a restart of Redis; each web process has one subscription and distributes messages to its
    # sockets. The timeouts are short because Redis must not block a request; `relay` sends messages that timed out
    # later.
    else {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": CHANNEL.url, "socket_connect_timeout": 3, "socket_timeout": 3}]},
    }
}

# --- Scheduler and periodic tasks -------------------------------------------------------------------------------------
HETSCHED_BATCH = ENV.number("HETSCHED_BATCH", 500, least=1, most=10_000)
# Whether the informer process of a live cluster also schedules and binds pods; otherwise workers do, triggered by
# messages.
HETSCHED_DECIDE_IN_WATCH = ENV.flag("HETSCHED_DECIDE_IN_WATCH", default=True)
# How long the resources of a force-deleted pod stay reserved on a ready node.
HETSCHED_FORCED_HOLD_SECONDS = ENV.number("HETSCHED_FORCED_HOLD_SECONDS", 120, least=0, most=86_400)
# Longest duration of a hold (which reserves capacity for pods that do not exist yet), maximum number of concurrent
# holds per owner, and the time for which the result of a what-if can be submitted as a plan.
HETSCHED_LONGEST_HOLD_SECONDS = ENV.number("HETSCHED_LONGEST_HOLD_SECONDS", 3600, least=1, most=604_800)
HETSCHED_MOST_HOLDS = ENV.number("HETSCHED_MOST_HOLDS", 20, least=0, most=10_000)
HETSCHED_PLAN_SECONDS = ENV.number("HETSCHED_PLAN_SECONDS", 600, least=1, most=86_400)
# Whether an informer process lists and watches the clusters that another process schedules, to take over faster.
HETSCHED_STANDBY = ENV.flag("HETSCHED_STANDBY", default=True)
HETSCHED_LEASE_SECONDS = ENV.number("HETSCHED_LEASE_SECONDS", 10, least=1, most=300)
HETSCHED_SWEEP_SECONDS = ENV.number("HETSCHED_SWEEP_SECONDS", 5, least=1, most=60)
# Interval of the checks of reservations and node loads; 0 disables the checks.
HETSCHED_CHECK_SECONDS = ENV.number("HETSCHED_CHECK_SECONDS", 60, least=0, most=86_400)
CANARY_SECONDS = 10
# The canary of the schedule queue runs more often because readiness depends on it.
SCHEDULE_CANARY_SECONDS = 3
# Interval of the checks of plans and golden placements, and the maximum duration of a policy preview.
HETSCHED_DESK_SECONDS = ENV.number("HETSCHED_DESK_SECONDS", 60, least=1, most=3600)
HETSCHED_REPLAY_SECONDS = ENV.number("HETSCHED_REPLAY_SECONDS", 600, least=10, most=86_400)
# Interval at which a worker of the queue `discover` publishes node facts to live clusters; 0 disables this.
HETSCHED_DISCOVER_SECONDS = ENV.number("HETSCHED_DISCOVER_SECONDS", 60, least=0, most=86_400)
# Callback hosts that submissions may name, as host or host:port; none by default.
HETSCHED_CALLBACK_HOSTS = ENV.places("HETSCHED_CALLBACK_HOSTS")
# API servers that clusters may be connected to, as host or host:port; an empty list allows any.
HETSCHED_CLUSTER_HOSTS = ENV.places("HETSCHED_CLUSTER_HOSTS")
# Programs that may be run for the credentials of a connection (none by default), and the variables that they receive.
HETSCHED_EXEC_CREDENTIALS = ENV.programs("HETSCHED_EXEC_CREDENTIALS")
HETSCHED_EXEC_ENVIRONMENT = ENV.variables("HETSCHED_EXEC_ENVIRONMENT")
# Registries whose images are looked up, as host or host:port (`*` for all public registries), and registries without
# TLS.
HETSCHED_REGISTRIES = ENV.places("HETSCHED_REGISTRIES", others=("*",))
HETSCHED_PLAIN_REGISTRIES = ENV.places("HETSCHED_PLAIN_REGISTRIES")
# Sources that collectors may read, as host:port (none by default), the maximum response size in bytes, and the interval
# of the search for due collectors.
HETSCHED_SOURCE_HOSTS = ENV.places("HETSCHED_SOURCE_HOSTS", port=True)
HETSCHED_SOURCE_BYTES = ENV.number("HETSCHED_SOURCE_BYTES", 256 << 10, least=1 << 10, most=64 << 20)
HETSCHED_COLLECT_SECONDS = ENV.number("HETSCHED_COLLECT_SECONDS", 5, least=1, most=3600)
HETSCHED_IMAGE_WAIT_SECONDS = ENV.number("HETSCHED_IMAGE_WAIT_SECONDS", 5, least=0, most=600)
HETSCHED_IMAGE_TAG_SECONDS = ENV.number("HETSCHED_IMAGE_TAG_SECONDS", 3600, least=10, most=2_592_000)
# Report interval of node agents.
HETSCHED_AGENT_REPORT_SECONDS = ENV.number("HETSCHED_AGENT_REPORT_SECONDS", 30, least=1, most=3600)
# Whether agents may also receive the key that signs allocations of their node over plain HTTP, where an eavesdropper
# could read it.
HETSCHED_AGENT_KEYS_OVER_HTTP = ENV.flag("HETSCHED_AGENT_KEYS_OVER_HTTP", default=False)
# Minimum time between two messages of one node.
HETSCHED_AGENT_PAUSE_MILLIS = ENV.number("HETSCHED_AGENT_PAUSE_MILLIS", 500, least=0, most=60_000)
# Service accounts whose pods are node agents, as namespace:name; the API server of their cluster authenticates them.
HETSCHED_AGENT_ACCOUNTS = ENV.names("HETSCHED_AGENT_ACCOUNTS", ("hetsched:hetsched-agent",))
# Largest reported amount, in percent of the known amount, that takes effect without approval by an operator.
HETSCHED_GROWTH_PERCENT = ENV.number("HETSCHED_GROWTH_PERCENT", 200, least=100, most=100_000)
HETSCHED_DEMO = ENV.flag("HETSCHED_DEMO", default=True)  # whether workloads are submitted to demo clusters
HETSCHED_DEMO_SECONDS = ENV.number("HETSCHED_DEMO_SECONDS", 2, least=1, most=60)
# Detail that is stored of a decision; each level includes the previous one: `verdict`, `reasons`, `nodes` (the best
# ones), `matrix` (every node that fits).
HETSCHED_KEEP_WITH_DECISION = ENV.choice("HETSCHED_KEEP_WITH_DECISION", ("nodes", "verdict", "reasons", "matrix"))
_top_nodes = ENV.number("HETSCHED_TOP_NODES", 3, least=0, most=100)
HETSCHED_TOP_NODES = {"nodes": _top_nodes, "matrix": 1_000_000}.get(HETSCHED_KEEP_WITH_DECISION, 0)
# Pods that a process decides in batches before it loads the machine code of the compiled loop, 120 MiB.
HETSCHED_COMPILE_AFTER_PODS = ENV.number("HETSCHED_COMPILE_AFTER_PODS", 5000, least=0, most=1_000_000_000)
HETSCHED_KEEP_FINISHED_HOURS = ENV.number("HETSCHED_KEEP_FINISHED_HOURS", 168, least=1, most=87_600)
HETSCHED_KEEP_SUMMARIES_DAYS = ENV.number("HETSCHED_KEEP_SUMMARIES_DAYS", 90, least=1, most=36_500)

CELERY_BROKER_URL = BROKER.for_celery()
CELERY_RESULT_BACKEND = "cache+memory://" if BROKER.in_memory else BROKER.for_celery()
CELERY_RESULT_EXPIRES = 300
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = CELERY_RESULT_ACCEPT_CONTENT = ["json"]
CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# By default, Celery would reopen the SQLite file or the pool for each task; see project/celery.py.
CELERY_DB_REUSE_MAX = sys.maxsize
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A hanging task must not occupy its process: it is interrupted after the first limit and killed after the second.
CELERY_TASK_SOFT_TIME_LIMIT, CELERY_TASK_TIME_LIMIT = 270, 300
CELERY_TASK_ANNOTATIONS = {
    "workers.schedule.run": {"soft_time_limit": 90, "time_limit": 110},
    "workers.replay.run": {
        "soft_time_limit": HETSCHED_REPLAY_SECONDS + 30,
        "time_limit": HETSCHED_REPLAY_SECONDS + 60,
    },
}
# The visibility timeout is longer than any task except a preview, whose row records that it is running. The broker
# restores unacknowledged messages every 10 s instead of every 100 s.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {"visibility_timeout": 360, "unacked_restore_throttle": 1}
if not BROKER.in_memory:
    # An unreachable broker must not block a request or a worker: these timeouts limit each wait for a response, and
    # consumers check the connection at the same interval.
    CELERY_BROKER_TRANSPORT_OPTIONS |= {"socket_connect_timeout": 2, "socket_timeout": 4, "health_check_interval": 4}
CELERY_TASK_DEFAULT_QUEUE = "io"
CELERY_TASK_QUEUES: dict[str, dict[str, str]] = {"schedule": {}, "io": {}, "discover": {}, "preview": {}}
# Queues that are required for readiness: a canary task is sent through each queue.
HETSCHED_VITAL_QUEUES = ("schedule", "io")
CELERY_TASK_CREATE_MISSING_QUEUES = False
CELERY_TASK_ROUTES = {
    "workers.schedule.*": {"queue": "schedule"},
    "workers.discover.*": {"queue": "discover"},
    "workers.replay.*": {"queue": "preview"},
    "workers.*": {"queue": "io"},
}
CELERY_IMPORTS = [
    "workers.schedule",
    "workers.bind",
    "workers.create",
    "workers.evict",
    "workers.shadow",
    "workers.report",
    "workers.callback",
    "workers.images",
    "workers.renew_tokens",
    "workers.collect",
    "workers.policy_workflow",
    "workers.replay",
    "workers.rebalance",
    "workers.periodic_tasks",
    "workers.sweep",
    "workers.canary",
    "workers.audit",
    "workers.discover",
    "workers.demo",
]
CELERY_TIMEZONE = "UTC"
AUDIT_SECONDS = 60
CELERY_BEAT_SCHEDULE_FILENAME = str(DATA_DIR / "beat-schedule")


# Tolerated difference between the clocks of the beat and worker machines; it is added to the lifetime of periodic
# messages.
CLOCKS_APART_SECONDS = 900
# Period of the check for stored tokens that end soon. Tokens live for at least ten minutes.
RENEW_TOKENS_SECONDS = 60


def _every(task: str, seconds: int, queue: str = "io", args: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the beat entry that sends `task` every `seconds`; a message that is not consumed in time expires."""
    # Beat does not import the task, so it does not know that the task's result is ignored.
    options = {"expires": 2 * seconds + CLOCKS_APART_SECONDS, "queue": queue, "ignore_result": True}
    return {
        "task": "workers.periodic_tasks.run",
        "schedule": timedelta(seconds=seconds),
        "options": options,
        "args": (task, seconds, list(args)),
    }


CELERY_BEAT_SCHEDULE = {
    "sweep": _every("workers.sweep.run", HETSCHED_SWEEP_SECONDS),
    **{
        f"canary-{queue}": _every("workers.canary.run", seconds, queue, (queue,))
        for queue, seconds in zip(HETSCHED_VITAL_QUEUES, (SCHEDULE_CANARY_SECONDS, CANARY_SECONDS), strict=True)
    },
}
CELERY_BEAT_SCHEDULE["audit"] = _every("workers.audit.run", AUDIT_SECONDS)
CELERY_BEAT_SCHEDULE["desk"] = _every("workers.policy_workflow.tick", HETSCHED_DESK_SECONDS)
CELERY_BEAT_SCHEDULE["renew-tokens"] = _every("workers.renew_tokens.run", RENEW_TOKENS_SECONDS)
CELERY_BEAT_SCHEDULE["collect"] = _every("workers.collect.tick", HETSCHED_COLLECT_SECONDS)
if HETSCHED_CHECK_SECONDS:
    CELERY_BEAT_SCHEDULE["check"] = _every("workers.canary.check", HETSCHED_CHECK_SECONDS)
if HETSCHED_DISCOVER_SECONDS:
    CELERY_BEAT_SCHEDULE["discover"] = _every("workers.discover.run", HETSCHED_DISCOVER_SECONDS, "discover")
if HETSCHED_DEMO:
    CELERY_BEAT_SCHEDULE["demo"] = _every("workers.demo.tick", HETSCHED_DEMO_SECONDS)

# --- Requests, limits and authentication ------------------------------------------------------------------------------
# Maximum size of a request body in bytes: in general, and on the paths that accept manifests and cluster files.
HETSCHED_BODY_BYTES = ENV.number("HETSCHED_BODY_BYTES", 1 << 20, least=1 << 10, most=1 << 30)
HETSCHED_MANIFEST_BYTES = ENV.number("HETSCHED_MANIFEST_BYTES", 32 << 20, least=1 << 10, most=1 << 30)
HETSCHED_LARGE_PATHS = ("/api/v1/clusters/", "/api/v1/workloads/", "/api/v1/what-if/", "/admin/inventory/")
HETSCHED_REPORT_PATHS = ("/api/v1/agent/",)
# Maximum size in bytes of an uploaded program or image archive, which is inspected and then discarded.
HETSCHED_BINARY_BYTES = ENV.number("HETSCHED_BINARY_BYTES", 256 << 20, least=1 << 10, most=4 << 30)
HETSCHED_BINARY_PATHS = ("/api/v1/isa/inspect/",)
# Maximum memory for request bodies in one web process, for all clients and for one address, then the minimum transfer
# rate of a body and its deadline.
HETSCHED_BODIES_BYTES = ENV.number("HETSCHED_BODIES_BYTES", 512 << 20, least=1 << 20, most=64 << 30)
HETSCHED_BODIES_BYTES_PER_ADDRESS = ENV.number(
    "HETSCHED_BODIES_BYTES_PER_ADDRESS", 256 << 20, least=1 << 20, most=64 << 30
)
HETSCHED_BODY_BYTES_PER_SECOND = ENV.number("HETSCHED_BODY_BYTES_PER_SECOND", 16 << 10, least=1, most=1 << 30)
HETSCHED_BODY_SECONDS = ENV.number("HETSCHED_BODY_SECONDS", 300, least=1, most=86_400)
DATA_UPLOAD_MAX_MEMORY_SIZE = HETSCHED_MANIFEST_BYTES
# Credential for scraping /metrics, as an alternative to a viewer's token; without either, only this machine may scrape.
HETSCHED_METRICS_TOKEN = ENV.secret("HETSCHED_METRICS_TOKEN", least_characters=20)
# Maximum number of open live sockets of one user or token in one web process.
HETSCHED_SOCKETS_PER_USER = ENV.number("HETSCHED_SOCKETS_PER_USER", 20, least=1, most=100_000)
# Maximum number of open live sockets of one address; all clients behind one gateway share an address.
HETSCHED_SOCKETS_PER_ADDRESS = ENV.number("HETSCHED_SOCKETS_PER_ADDRESS", 100, least=1, most=100_000)
# Limits of one web process: the number of open connections including live sockets (above it, requests get 503), the
# number of HTTP connections of one address (above it, new connections are closed), the time for a request head, and the
# time after which a client that does not read its response is disconnected.
HETSCHED_CONNECTIONS = ENV.number("HETSCHED_CONNECTIONS", 2000, least=10, most=1_000_000)
HETSCHED_CONNECTIONS_PER_ADDRESS = ENV.number("HETSCHED_CONNECTIONS_PER_ADDRESS", 500, least=1, most=1_000_000)
HETSCHED_HEAD_SECONDS = ENV.number("HETSCHED_HEAD_SECONDS", 10, least=1, most=600)
HETSCHED_UNREAD_SECONDS = ENV.number("HETSCHED_UNREAD_SECONDS", 60, least=1, most=86_400)
# Maximum number of pending pods of one cluster; submissions above it are refused with Retry-After.
HETSCHED_MOST_WAITING_PODS = ENV.number("HETSCHED_MOST_WAITING_PODS", 200_000, least=1, most=10_000_000)
# Maximum number of pending pods of one namespace, so that one team cannot use up the limit of the cluster.
HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE = ENV.number(
    "HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE", 50_000, least=1, most=10_000_000
)
# Rate limits of submissions and other writes for one token or user, per minute and as a burst; 0 per minute disables a
# limit.
HETSCHED_SUBMITS_PER_MINUTE = ENV.number("HETSCHED_SUBMITS_PER_MINUTE", 12_000, least=0, most=10_000_000)
HETSCHED_SUBMITS_AT_ONCE = ENV.number("HETSCHED_SUBMITS_AT_ONCE", 2_000, least=1, most=10_000_000)
HETSCHED_WRITES_PER_MINUTE = ENV.number("HETSCHED_WRITES_PER_MINUTE", 3_000, least=0, most=10_000_000)
HETSCHED_WRITES_AT_ONCE = ENV.number("HETSCHED_WRITES_AT_ONCE", 500, least=1, most=10_000_000)
# Rate limit of requests that do not write, in each web process.
HETSCHED_READS_PER_MINUTE = ENV.number("HETSCHED_READS_PER_MINUTE", 30_000, least=0, most=10_000_000)
HETSCHED_READS_AT_ONCE = ENV.number("HETSCHED_READS_AT_ONCE", 5_000, least=1, most=10_000_000)
# Rate limit of requests without a credential, per address; they may read only the product's public information.
HETSCHED_STRANGERS_PER_MINUTE = ENV.number("HETSCHED_STRANGERS_PER_MINUTE", 60, least=0, most=10_000_000)
HETSCHED_STRANGERS_AT_ONCE = ENV.number("HETSCHED_STRANGERS_AT_ONCE", 60, least=1, most=10_000_000)
# Maximum queue time of a write in an overloaded web process, above which it is refused with Retry-After. 0 disables the
# limit.
HETSCHED_LONGEST_QUEUE_MILLIS = ENV.number("HETSCHED_LONGEST_QUEUE_MILLIS", 5000, least=0, most=600_000)
# Cluster of a request that does not name one, if several clusters exist.
HETSCHED_DEFAULT_CLUSTER = ENV.text("HETSCHED_DEFAULT_CLUSTER")

# The server of `hetsched extender`: the clients that it accepts, its certificates, and its listen addresses.
HETSCHED_EXTENDER_CLIENTS = ENV.names("HETSCHED_EXTENDER_CLIENTS")
HETSCHED_EXTENDER_CERTIFICATES = ENV.folder("HETSCHED_EXTENDER_CERTIFICATES", DATA_DIR / "extender" / "server")
HETSCHED_EXTENDER_HOST = ENV.text("HETSCHED_EXTENDER_HOST", "127.0.0.1")
HETSCHED_EXTENDER_PORT = ENV.number("HETSCHED_EXTENDER_PORT", 8443, least=0, most=65_535)
HETSCHED_EXTENDER_PROBE_PORT = ENV.number("HETSCHED_EXTENDER_PROBE_PORT", 8444, least=0, most=65_535)
# Must be less than the httpTimeout of the calling scheduler.
HETSCHED_EXTENDER_SECONDS = ENV.number("HETSCHED_EXTENDER_SECONDS", 2, least=1, most=60)
HETSCHED_EXTENDER_BYTES = ENV.number("HETSCHED_EXTENDER_BYTES", 1 << 20, least=1 << 10, most=1 << 30)

AUTHENTICATION_BACKENDS = ["hetsched.access.login.RateLimitedBackend"]
# Whether the admin site (`/admin/`) is served, in which accounts are managed and database rows are shown.
HETSCHED_ADMIN = ENV.flag("HETSCHED_ADMIN", default=True)
# Whether users may sign in with name and password; otherwise only through the identity provider.
HETSCHED_PASSWORDS = ENV.flag("HETSCHED_PASSWORDS", default=True)
# OpenID Connect provider, our client credentials, and the role of each of the provider's groups (`*` for every user).
HETSCHED_OIDC_ISSUER = ENV.provider("HETSCHED_OIDC_ISSUER")
HETSCHED_OIDC_CLIENT_ID = ENV.text("HETSCHED_OIDC_CLIENT_ID")
HETSCHED_OIDC_CLIENT_SECRET = ENV.secret("HETSCHED_OIDC_CLIENT_SECRET", least_characters=16)
HETSCHED_OIDC_SCOPE = " ".join(dict.fromkeys(["openid", *ENV.names("HETSCHED_OIDC_SCOPES", ("profile", "email"))]))
HETSCHED_OIDC_GROUPS_CLAIM = ENV.text("HETSCHED_OIDC_GROUPS_CLAIM", "groups")
# Hosts of the provider, other than the issuer's host, that may have private addresses.
HETSCHED_OIDC_HOSTS = ENV.places("HETSCHED_OIDC_HOSTS")
HETSCHED_OIDC_ROLES = ENV.pairs("HETSCHED_OIDC_ROLES", frozenset({*Role, "admin"}))
_oidc_name = ENV.text("HETSCHED_OIDC_NAME", "single sign-on")
HETSCHED_OIDC_NAME = _oidc_name if HETSCHED_OIDC_ISSUER else ""
LOGIN_URL = "/login/"
CSRF_FAILURE_VIEW = "web.pages.errors.csrf_failed"
LOGIN_REDIRECT_URL = LOGOUT_REDIRECT_URL = "/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "CommonPasswordValidator", "NumericPasswordValidator")
] + [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}}]
KNOX_TOKEN_MODEL = "access.Token"  # noqa: S105
MIGRATION_MODULES = {"knox": None}  # no table for knox's own tokens, which are not used
REST_KNOX = {"TOKEN_PREFIX": "hs_", "AUTH_HEADER_PREFIX": "Bearer", "TOKEN_TTL": timedelta(days=90)}
REST_FRAMEWORK = {
    # Bearer first: its challenge makes an anonymous request a 401 instead of a 403.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "hetsched.access.authentication.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["hetsched.access.permissions.RolePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "web.api.problems.handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "hetsched",
    "DESCRIPTION": "Submit workloads, read decisions, ask what-if.",
    "VERSION": "1.0.0",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    # The default hook would collect enumerations as components; the schemas of the structs contain them already.
    "POSTPROCESSING_HOOKS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_ENGINE = "hetsched.access.sessions"
# Maximum lifetime of a session, and its idle timeout.
HETSCHED_SESSION_HOURS = ENV.number("HETSCHED_SESSION_HOURS", 12, least=1, most=720)
HETSCHED_SESSION_IDLE_MINUTES = ENV.number("HETSCHED_SESSION_IDLE_MINUTES", 120, least=1, most=43_200)
SESSION_COOKIE_AGE = HETSCHED_SESSION_HOURS * 3600
_secure = HTTPS != "off" and not DEBUG
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = _secure
SESSION_COOKIE_NAME = "__Host-hetsched" if _secure else "hetsched"
CSRF_COOKIE_NAME = "__Host-csrftoken" if _secure else "csrftoken"
HETSCHED_DEVICE_COOKIE_NAME = "__Host-hetsched-device" if _secure else "hetsched-device"
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _secure else 0
SECURE_REDIRECT_EXEMPT = [r"^(healthz|livez|readyz|metrics)$"]  # called by probes inside the deployment, without TLS
# TLS of sub-domains, and preloading, are decisions of the domain's owner.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# --- Pages ------------------------------------------------------------------------------------------------------------
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [assets.LOCALE]
STATIC_URL = "/static/"
STATIC_ROOT = ENV.folder("HETSCHED_STATIC", DATA_DIR / "static")
STATICFILES_DIRS = [assets.STATIC]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "hetsched.project.static_files.StaticFileStorage"},
}
# Evaluated when a web process loads, because a supervisor reads the settings before the files are collected.
WHITENOISE_USE_FINDERS = SimpleLazyObject(lambda: not (STATIC_ROOT / "staticfiles.json").is_file())
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = (*Compressor.SKIP_COMPRESS_EXTENSIONS, "map")

logs.hide(SECRET_KEY, HETSCHED_METRICS_TOKEN, HETSCHED_OIDC_CLIENT_SECRET, str(_database.get("PASSWORD") or ""))
LOGGING = logs.logging_config(
    ENV.choice("HETSCHED_LOG_FORMAT", ("json", "console")),
    ENV.choice("HETSCHED_LOG_LEVEL", ("info", "debug", "warning", "error")).upper(),
)
