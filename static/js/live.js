// The live connection: topics in, always-current documents out.
//
// The server sends a snapshot per topic, then merge patches with revisions that rise by one. A gap is answered by
// asking for the snapshot again; a lost connection comes back with growing, jittered pauses; a silent one is asked, and
// given up when it does not answer. Listeners get the whole document and the patch, so a page redraws just what changed.

const QUIET_SECONDS = 25;
const ANSWER_SECONDS = 8;
const LONGEST_PAUSE_SECONDS = 15;
// Logged out, or not allowed (any more): trying again changes nothing.
const FINAL_CODES = new Set([4401, 4403]);

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
    this.paused = false;
    this.heardAt = Date.now();
    this.askedAt = null;
    setInterval(() => this.listen(), 1000);
    window.addEventListener("online", () => this.connect());
  }

  // `listener(document, patch)`: patch is null when the whole document is new.
  subscribe(topic, listener) {
    this.topics.set(topic, { listener, revision: null, document: null, held: false });
    if (this.socket) this.send("subscribe", [topic]);
    else this.connect();
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

  // Holding still keeps the documents current; letting go shows them as they are by then.
  pause(paused) {
    this.paused = paused;
    if (!paused) {
      for (const topic of this.topics.values()) {
        if (topic.held) topic.listener(topic.document, null);
        topic.held = false;
      }
    }
    this.setStatus(paused ? "paused" : this.socket?.readyState === WebSocket.OPEN ? "live" : "stale");
  }

  connect() {
    if (this.socket && this.socket.readyState <= WebSocket.OPEN) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    this.socket = socket;
    socket.addEventListener("open", () => this.send("subscribe", [...this.topics.keys()]));
    socket.addEventListener("message", (event) => this.receive(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.closed(socket, event.code));
  }

  send(action, topics) {
    if (this.socket?.readyState === WebSocket.OPEN && topics.length) {
      this.socket.send(JSON.stringify({ action, topics }));
    }
  }

  receive(message) {
    this.heardAt = Date.now();
    this.askedAt = null;
    this.attempt = 0;
    const topic = this.topics.get(message.topic);
    if (message.type === "error" || !topic) return;
    this.setStatus(this.paused ? "paused" : "live");
    if (message.type === "snapshot") {
      topic.revision = message.revision;
      topic.document = message.data;
      this.tell(topic, null);
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
    this.tell(topic, message.data);
  }

  tell(topic, patch) {
    if (this.paused) topic.held = true;
    else topic.listener(topic.document, patch);
  }

  // A sleeping laptop or a dropped route closes nothing: ask for the last topic again, and hang up when nothing comes.
  listen() {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    const now = Date.now();
    if (this.askedAt !== null) {
      if (now - this.askedAt > ANSWER_SECONDS * 1000) this.closed(this.socket, 1006);
    } else if (now - this.heardAt > QUIET_SECONDS * 1000) {
      this.askedAt = now;
      this.send("refetch", [...this.topics.keys()].slice(-1));
    }
  }

  closed(socket, code) {
    if (socket !== this.socket) return;
    this.socket = null;
    this.askedAt = null;
    socket.close();
    for (const topic of this.topics.values()) topic.revision = null;
    if (FINAL_CODES.has(code)) {
      this.setStatus("refused");
      return;
    }
    this.setStatus("stale");
    const pause = Math.min(LONGEST_PAUSE_SECONDS, 0.5 * 2 ** this.attempt) * (0.5 + Math.random());
    this.attempt += 1;
    setTimeout(() => this.connect(), pause * 1000);
  }
}

let shared = null;

// One connection for all that a page follows.
export function liveOfPage() {
  shared ??= new Live();
  return shared;
}

const STATUS_CLASS = { connecting: "", live: "good", stale: "wait", refused: "bad", paused: "info" };

// Shows the connection's state in an element whose data attributes hold the words, with the age once it is stale.
export function showStatus(live, element) {
  const words = element.dataset;
  let since = Date.now();
  live.onStatus((status) => {
    since = Date.now();
    element.className = `chip ${STATUS_CLASS[status]}`;
    element.textContent = words[status];
  });
  setInterval(() => {
    const age = Math.round((Date.now() - since) / 1000);
    if (live.status === "stale" && age > 0) element.textContent = `${words.stale} ${age} s`;
  }, 1000);
  document.addEventListener("keydown", (event) => {
    if (event.key === "." && !event.target.closest("input, textarea, select, dialog")) live.pause(!live.paused);
  });
}
