// The live connection: topics in, always-current documents out.
//
// The server sends a snapshot per topic, then merge patches with revisions that rise by one. A gap is answered by
// asking for the snapshot again; a lost connection comes back with growing, jittered pauses. Listeners get the whole
// document and the patch, so that a page can redraw just what changed.

export function mergePatch(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const merged = target !== null && typeof target === "object" && !Array.isArray(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = mergePatch(merged[key], value);
  }
  return merged;
}

export class Live {
  constructor(path = "/ws/live/") {
    this.path = path;
    this.topics = new Map();
    this.statusListeners = new Set();
    this.attempt = 0;
    this.status = "connecting";
  }

  subscribe(topic, listener) {
    this.topics.set(topic, { listener, revision: null, document: null });
    if (!this.socket) this.connect();
    else this.send("subscribe", [topic]);
  }

  onStatus(listener) {
    this.statusListeners.add(listener);
    listener(this.status);
  }

  setStatus(status) {
    if (status === this.status) return;
    this.status = status;
    for (const listener of this.statusListeners) listener(status);
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    this.socket.addEventListener("open", () => {
      this.attempt = 0;
      this.send("subscribe", [...this.topics.keys()]);
    });
    this.socket.addEventListener("message", (event) => this.receive(JSON.parse(event.data)));
    this.socket.addEventListener("close", (event) => this.closed(event));
  }

  send(action, topics) {
    if (this.socket?.readyState === WebSocket.OPEN && topics.length) {
      this.socket.send(JSON.stringify({ action, topics }));
    }
  }

  receive(message) {
    const topic = this.topics.get(message.topic);
    if (message.type === "error" || !topic) return;
    this.setStatus("live");
    if (message.type === "snapshot") {
      topic.revision = message.revision;
      topic.document = message.data;
      topic.listener(topic.document, null);
      return;
    }
    if (topic.revision === null || message.revision <= topic.revision) return;
    if (message.revision !== topic.revision + 1) {
      topic.revision = null;
      this.send("refetch", [message.topic]);
      return;
    }
    topic.revision = message.revision;
    topic.document = mergePatch(topic.document, message.data);
    topic.listener(topic.document, message.data);
  }

  closed(event) {
    for (const topic of this.topics.values()) topic.revision = null;
    if (event.code === 4401 || event.code === 4403) {
      this.setStatus("refused");
      return;
    }
    this.setStatus("stale");
    const pause = Math.min(15_000, 500 * 2 ** this.attempt) * (0.5 + Math.random());
    this.attempt += 1;
    setTimeout(() => this.connect(), pause);
  }
}

const STATUS_TEXT = { connecting: "connecting", live: "live", stale: "stale", refused: "signed out" };
const STATUS_CLASS = { connecting: "chip", live: "chip good", stale: "chip wait", refused: "chip bad" };

// Shows the connection's state in an element, with the age of the last message once it is stale.
export function showStatus(live, element) {
  const words = element.dataset;
  let since = Date.now();
  live.onStatus((status) => {
    since = Date.now();
    element.className = STATUS_CLASS[status];
    element.textContent = words[status] ?? STATUS_TEXT[status];
  });
  setInterval(() => {
    const age = Date.now() - since;
    if (live.status === "stale" && age > 1000) {
      element.textContent = `${words.stale ?? STATUS_TEXT.stale} ${Math.round(age / 1000)} s`;
    }
  }, 1000);
}
