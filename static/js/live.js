// The live connection: subscribes to topics and keeps their documents current.
//
// The server sends a snapshot per topic, then merge patches with increasing revisions. One patch may contain several
// changes; its `since` is the revision that it follows. A client that has a document, from its page or from a previous
// connection, resumes after its revision (status "replaying" until it is current). After a gap the client requests the
// snapshot. After a disconnect it reconnects with exponential backoff and jitter. It probes a silent connection and closes
// it if there is no answer. Listeners get the whole document and the patch, so that a page redraws only changes. The
// document and its maps stay the same objects; the values of the maps are replaced.

const QUIET_SECONDS = 25;
const ANSWER_SECONDS = 8;
const LONGEST_PAUSE_SECONDS = 15;
// Signed out or forbidden: reconnecting does not help.
const FINAL_CODES = new Set([4401, 4403]);

const isMap = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function mergePatch(target, patch) {
  if (!isMap(patch)) return patch;
  const merged = isMap(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = mergePatch(merged[key], value);
  }
  return merged;
}

// Like `mergePatch`, but in place for the document and its maps: a copy of 5,000 entries takes as long as a frame.
function applyPatch(document_, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete document_[key];
    else if (!isMap(value) || !isMap(document_[key])) document_[key] = mergePatch(document_[key], value);
    else {
      const map = document_[key];
      for (const [name, inner] of Object.entries(value)) {
        if (inner === null) delete map[name];
        else map[name] = mergePatch(map[name], inner);
      }
    }
  }
  return document_;
}

export class Live {
  constructor(path = "/ws/live/") {
    this.path = path;
    this.topics = new Map();
    this.statusListeners = new Set();
    this.attempt = 0;
    this.status = "connecting";
    this.paused = false;
    this.lost = false;
    this.receivedAt = Date.now();
    this.askedAt = null;
    setInterval(() => this.listen(), 1000);
    window.addEventListener("online", () => this.connect());
  }

  // `listener(document, patch)`: patch is null for a snapshot. `known`: {revision, document} of the page, or null.
  subscribe(topic, listener, known = null) {
    const { revision, document: document_ } = known ?? { revision: null, document: null };
    this.topics.set(topic, { listener, revision, document: document_, held: 0, whole: false, begun: false });
    if (this.socket) this.ask([topic]);
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

  // Number of changes received while paused.
  get held() {
    return [...this.topics.values()].reduce((sum, topic) => sum + topic.held, 0);
  }

  // While paused, documents stay current, but listeners are called only on resume.
  pause(paused) {
    this.paused = paused;
    if (!paused) {
      for (const topic of this.topics.values()) {
        if (topic.held) topic.listener(topic.document, null);
        topic.held = 0;
      }
    }
    this.updateStatus();
  }

  updateStatus() {
    if (this.paused) this.setStatus("paused");
    else if (this.socket?.readyState !== WebSocket.OPEN) this.setStatus(this.lost ? "stale" : "connecting");
    else if ([...this.topics.values()].every((topic) => topic.begun)) this.setStatus("live");
    else this.setStatus(this.lost ? "replaying" : "connecting");
  }

  connect() {
    if (this.socket && this.socket.readyState <= WebSocket.OPEN) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    this.socket = socket;
    socket.addEventListener("open", () => {
      this.ask([...this.topics.keys()]);
      this.updateStatus();
    });
    socket.addEventListener("message", (event) => this.receive(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => this.closed(socket, event.code));
  }

  send(command) {
    if (this.socket?.readyState === WebSocket.OPEN && command.topics.length) this.socket.send(JSON.stringify(command));
  }

  ask(topics) {
    const known = topics.filter((name) => this.topics.get(name).revision !== null);
    const since = Object.fromEntries(known.map((name) => [name, this.topics.get(name).revision]));
    this.send({ action: "subscribe", topics, since, merge: true });
  }

  receive(message) {
    this.receivedAt = Date.now();
    this.askedAt = null;
    this.attempt = 0;
    const topic = this.topics.get(message.topic);
    if (!topic) return;
    if (message.type === "delta") this.change(topic, message);
    else topic.begun = true;
    if (message.type === "snapshot") {
      topic.revision = message.revision;
      topic.document = message.data;
      this.deliver(topic, null);
    }
    this.updateStatus();
  }

  change(topic, message) {
    if (topic.revision === null || message.revision <= topic.revision) return;
    if ((message.since ?? message.revision - 1) > topic.revision) {
      topic.revision = null;
      topic.begun = false;
      this.send({ action: "refetch", topics: [message.topic] });
      return;
    }
    topic.revision = message.revision;
    topic.document = applyPatch(topic.document ?? {}, message.data);
    this.deliver(topic, message.data);
  }

  deliver(topic, patch) {
    if (this.paused) topic.held += 1;
    else topic.listener(topic.document, patch);
  }

  // A suspended laptop or a lost route does not close the socket. After a silence, request a topic again, and disconnect
  // if nothing arrives.
  listen() {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    const now = Date.now();
    if (this.askedAt !== null) {
      if (now - this.askedAt > ANSWER_SECONDS * 1000) this.closed(this.socket, 1006);
    } else if (now - this.receivedAt > QUIET_SECONDS * 1000) {
      this.askedAt = now;
      this.ask([...this.topics.keys()].slice(-1));
    }
  }

  closed(socket, code) {
    if (socket !== this.socket) return;
    this.socket = null;
    this.askedAt = null;
    this.lost = true;
    socket.close();
    for (const topic of this.topics.values()) topic.begun = false;
    if (FINAL_CODES.has(code)) {
      this.setStatus("refused");
      return;
    }
    this.updateStatus();
    const pause = Math.min(LONGEST_PAUSE_SECONDS, 0.5 * 2 ** this.attempt) * (0.5 + Math.random());
    this.attempt += 1;
    setTimeout(() => this.connect(), pause * 1000);
  }
}

let shared = null;

// One connection for all topics of a page.
export function liveOfPage() {
  shared ??= new Live();
  return shared;
}

const STATUS_CLASS = { connecting: "", live: "good", stale: "wait", replaying: "info", refused: "bad", paused: "info" };

// Shows the status of the connection with the words in the data attributes of the element: the age of the data if it is
// stale, and the number of pending changes while paused.
export function showStatus(live, element) {
  const words = element.dataset;
  const show = () => {
    const { status, held } = live;
    const age = Math.round((Date.now() - live.receivedAt) / 1000);
    const more = status === "stale" && age > 0 ? ` ${age} s` : status === "paused" && held ? ` · ${held}` : "";
    const text = `${words[status]}${more}`;
    if (element.textContent !== text) element.textContent = text;
  };
  live.onStatus((status) => {
    element.className = `chip ${STATUS_CLASS[status]}`;
    show();
  });
  setInterval(show, 1000);
  document.addEventListener("keydown", (event) => {
    if (event.key === "." && !event.target.closest("input, textarea, select, dialog")) live.pause(!live.paused);
  });
}
