// From the fields of the what-if form to a Kubernetes object, and from there to YAML and to commands.

const PLAIN = /^[A-Za-z][A-Za-z0-9./-]*$/;
const NOT_STRINGS = new Set(["true", "false", "yes", "no", "on", "off", "null", "y", "n"]);

// One pod, or a Job of as many as there are replicas. Empty fields ask for nothing.
export function manifestOf(fields) {
  const requests = {};
  if (fields.cpu) requests.cpu = fields.cpu;
  if (fields.memory) requests.memory = fields.memory;
  const limits = fields.cards > 0 ? { "nvidia.com/gpu": String(fields.cards) } : {};
  const annotations = {};
  const note = (key, value) => {
    if (value) annotations[key] = String(value);
  };
  note("hetsched.io/isa", fields.isa);
  note("hetsched.io/emulated-isa", fields.emulated);
  note("hetsched.io/gpu-milli", fields.milli);
  note("oks/gpu-memory", fields.gpumem);
  note("hetsched.io/gpu-model", fields.model);
  const resources = { requests: { ...requests, ...limits }, ...(fields.cards > 0 ? { limits } : {}) };
  const spec = {
    schedulerName: "hetsched",
    restartPolicy: "Never",
    containers: [{ name: "main", image: "example/image", resources }],
  };
  const metadata = { name: fields.name || "what-if" };
  const noted = Object.keys(annotations).length ? { annotations } : {};
  const replicas = Number(fields.replicas) || 1;
  if (replicas === 1) return { apiVersion: "v1", kind: "Pod", metadata: { ...metadata, ...noted }, spec };
  return {
    apiVersion: "batch/v1",
    kind: "Job",
    metadata,
    spec: { parallelism: replicas, completions: replicas, template: { metadata: noted, spec } },
  };
}

// Block style; a string is quoted unless no reader could take it for anything else.
export function yamlOf(value, indent = "") {
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

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export const curlOf = (body) =>
  [
    `curl -sS ${quoted(`${location.origin}/api/v1/what-if/`)}`,
    `-H "Authorization: Bearer $HETSCHED_TOKEN"`,
    `-H 'Content-Type: application/json'`,
    `-d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n  ");

// The offline command on an exported copy of the cluster gives the same answer.
export function commandOf(yaml, cluster, policy) {
  const chosen = policy ? ` --policy ${quoted(policy)}` : "";
  return [
    `hetsched cluster export ${quoted(cluster)} > cluster.yaml`,
    `hetsched whatif -f - --cluster cluster.yaml${chosen} <<'END'`,
    `${yaml.replace(/\n$/, "")}`,
    "END",
  ].join("\n");
}
