// The live connection: topics in, always-current documents out.
//
// The server sends a snapshot per topic, then merge patches with revisions that rise; several changes may come as one
// patch, which says as `since` what it begins after. Who knows a document already, from its page or from before the
// connection was lost, goes on where that ends ("replaying" until all of it is there). A gap is answered by asking for
// the snapshot again; a lost connection comes back with growing, jittered pauses; a silent one is asked, and given up
// when it does not answer. Listeners get the whole document and the patch, so a page redraws just what changed. The
// document and the maps in it stay the same objects; what is in the maps is replaced.

const QUIET_SECONDS = 25;
const ANSWER_SECONDS = 8;
const LONGEST_PAUSE_SECONDS = 15;
// Logged out, or not allowed (any more): trying again changes nothing.
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

// As `mergePatch`, in place for the document and its maps: copying five thousand entries for one change takes a frame.
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

  // `listener(document, patch)`: patch is null when the whole document is new. `known` is a {revision, document} that the
  // page came with.
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

  // How many changes came while the view was held still.
  get held() {
    return [...this.topics.values()].reduce((sum, topic) => sum + topic.held, 0);
  }

  // Holding still keeps the documents current; letting go shows them as they are by then.
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

  // A sleeping laptop or a dropped route closes nothing: ask for the last topic again, and hang up when nothing comes.
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

// One connection for all that a page follows.
export function liveOfPage() {
  shared ??= new Live();
  return shared;
}

const STATUS_CLASS = { connecting: "", live: "good", stale: "wait", replaying: "info", refused: "bad", paused: "info" };

// Shows the connection's state in an element whose data attributes hold the words: how old what is shown is once it is
// stale, and how many changes wait while it is held still.
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
