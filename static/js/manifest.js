// Converts the fields of the what-if form to a Kubernetes object, and the object to YAML and commands.

const PLAIN = /^[A-Za-z][A-Za-z0-9./-]*$/;
const NOT_STRINGS = new Set(["true", "false", "yes", "no", "on", "off", "null", "y", "n"]);

// Parses "a=b, c=d" into a mapping; a key without "=" has an empty value.
function pairs(text) {
  const found = {};
  for (const piece of text.split(",").map((one) => one.trim()).filter(Boolean)) {
    const at = piece.indexOf("=");
    if (at < 0) found[piece] = "";
    else found[piece.slice(0, at).trim()] = piece.slice(at + 1).trim();
  }
  return found;
}

// Parses "dedicated=batch:NoSchedule, gpu" into tolerations; omitted parts match all values.
function tolerationsOf(text) {
  return text.split(",").map((one) => one.trim()).filter(Boolean).map((piece) => {
    const [rest, effect] = piece.split(":");
    const [key, value] = rest.split("=");
    return {
      key, operator: value === undefined ? "Exists" : "Equal",
      ...(value === undefined ? {} : { value }), ...(effect ? { effect } : {}),
    };
  });
}

// Returns a Pod, or a Job with one pod per replica. Empty fields are omitted.
export function manifestOf(fields) {
  const requests = {};
  if (fields.cpu) requests.cpu = fields.cpu;
  if (fields.memory) requests.memory = fields.memory;
  const limits = fields.cards > 0 ? { "nvidia.com/gpu": String(fields.cards) } : {};
  if (fields.network) limits["hetsched.io/network-mbps"] = String(fields.network);
  if (fields.disk) limits["hetsched.io/disk-mbps"] = String(fields.disk);
  const annotations = {};
  const note = (key, value) => {
    if (value) annotations[key] = String(value);
  };
  note("hetsched.io/isa", fields.isa);
  note("hetsched.io/emulated-isa", fields.emulated);
  note("hetsched.io/gpu-milli", fields.milli);
  note("oks/gpu-memory", fields.gpumem);
  note("hetsched.io/gpu-model", fields.model);
  note("topology.crane.io/topology-awareness", fields.aware);
  note("topology.crane.io/cpu-policy", fields.cpupolicy);
  const limited = Object.keys(limits).length > 0;
  const resources = { requests: { ...requests, ...limits }, ...(limited ? { limits } : {}) };
  const spec = {
    schedulerName: "hetsched",
    restartPolicy: "Never",
    ...(fields.priority ? { priority: Number(fields.priority) } : {}),
    ...(fields.selector ? { nodeSelector: pairs(fields.selector) } : {}),
    ...(fields.tolerations ? { tolerations: tolerationsOf(fields.tolerations) } : {}),
    containers: [{ name: "main", image: "example/image", resources }],
  };
  const metadata = { name: fields.name || "what-if", ...(fields.namespace ? { namespace: fields.namespace } : {}) };
  const noted = {
    ...(fields.labels ? { labels: pairs(fields.labels) } : {}),
    ...(Object.keys(annotations).length ? { annotations } : {}),
  };
  const replicas = Number(fields.replicas) || 1;
  if (replicas === 1) return { apiVersion: "v1", kind: "Pod", metadata: { ...metadata, ...noted }, spec };
  return {
    apiVersion: "batch/v1",
    kind: "Job",
    metadata,
    spec: { parallelism: replicas, completions: replicas, template: { metadata: noted, spec } },
  };
}

// Writes YAML in block style; strings that YAML could parse as another type are quoted.
function yamlOf(value, indent = "") {
  if (Array.isArray(value)) {
    if (!value.length) return " []";
    return value.map((item) => `\n${indent}- ${yamlOf(item, `${indent}  `).trimStart()}`).join("");
  }
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (!entries.length) return " {}";
    return entries.map(([key, item]) => `\n${indent}${scalar(key)}:${nested(item, indent)}`).join("");
  }
  return ` ${typeof value === "string" ? scalar(value) : JSON.stringify(value)}`;
}

const nested = (item, indent) => yamlOf(item, Array.isArray(item) ? indent : `${indent}  `);
const scalar = (text) => (PLAIN.test(text) && !NOT_STRINGS.has(text.toLowerCase()) ? text : JSON.stringify(text));

export const yamlText = (object) => `${yamlOf(object).trimStart()}\n`;

// URL of a what-if for this object; null if it is too long for a URL.
const LONGEST_ADDRESS = 6000;
export function whatIfAddress(object, cluster) {
  const pasted = encodeURIComponent(yamlText(object));
  const where = cluster ? `?${new URLSearchParams({ cluster })}` : "";
  return pasted.length > LONGEST_ADDRESS ? null : `/what-if/${where}#yaml=${pasted}`;
}

// Changes one field in the text of a manifest; null if the position in the text is not certain.
export function changedText(text, { field, from, to }) {
  if (!from || !to) return null;
  const key = field.replace(/^resources\.(requests|limits)\./, "");
  const literal = (value) => value.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const stated = new RegExp(`(["']?${literal(key)}["']?\\s*:\\s*)(["']?)${literal(from)}\\2(?=\\s*[,}\\n]|\\s*$)`, "gm");
  if (!stated.test(text)) return null;
  return text.replace(stated, (_, head) => `${head}${JSON.stringify(to)}`);
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export const curlOf = (body) =>
  [
    `curl -sS ${quoted(`${location.origin}/api/v1/what-if/`)}`,
    `-H "Authorization: Bearer $HETSCHED_TOKEN"`,
    `-H 'Content-Type: application/json'`,
    `-d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n  ");

// The command that gives the same result offline, on an export of the cluster.
export function commandOf(yaml, body) {
  const options = [
    body.policy ? `--policy ${quoted(body.policy)}` : "",
    body.noPreempt ? "--no-preempt" : "",
    ...(body.drain ?? []).map((name) => `--drain ${quoted(name)}`),
    ...Object.entries(body.copyNodes ?? {}).map(([name, count]) => `--copy-node ${quoted(`${name}=${count}`)}`),
    body.addNodes ? "--add-nodes nodes.yaml" : "",
  ].filter(Boolean);
  const nodes = body.addNodes ? [`cat > nodes.yaml <<'END'\n${body.addNodes.replace(/\n$/, "")}\nEND`] : [];
  return [
    `hetsched cluster export ${quoted(body.cluster)} > cluster.yaml`,
    ...nodes,
    `hetsched whatif ${["-f - --cluster cluster.yaml", ...options].join(" ")} <<'END'`,
    `${yaml.replace(/\n$/, "")}`,
    "END",
  ].join("\n");
}
