// What the pages ask of the server, and the shapes of its answers (openapi.json).

export interface Metadata { name: string; tenant?: string; version?: number; labels?: Record<string, string> }
export interface Condition { type: string; status: string; reason?: string; message?: string }
export interface Item { kind: string; metadata: Metadata; spec: any; status?: any }
export interface Parameter { name: string; type?: string; default?: string; required?: boolean; least?: string; most?: string; values?: string[]; description?: string }
export interface Entry { name: string; kind: string; for: string; use: string[]; parameters?: Parameter[] }
export interface Selector { protocol?: string; sourcePorts?: string[]; destinationPorts?: string[] }
export interface Element { function?: string; deployment?: string; mode?: string; none?: string; select?: Selector[]; instances?: number; disabled?: boolean; env?: Record<string, string>; files?: object }
export interface Carried { packets: number; bits: number; dropped?: Record<string, number> }
export interface Traffic {
  time: string; chains: Record<string, Carried>; instances: Record<string, Carried>; nodes: Record<string, Carried>;
  away?: Record<string, string>;
}
export interface Notification {
  id: string; time: string; tenant: string; instance: string; node: string; level: string; title: string; text?: string;
  fields?: Record<string, string>;
}
export interface Hop {
  kind: string; node?: string; name?: string; chain?: string; element: number; mode?: string; state?: string; live: boolean; vport?: number;
  ends?: boolean; unsure?: boolean;
  message?: string; flow?: { packets: number }; candidates?: string[];
  counters?: { in: { packets: number }; out: { packets: number }; dropped?: Record<string, number> };
}
export interface Trace { forward?: Hop[]; reverse?: Hop[]; chains?: string[]; live: boolean; warnings?: { text: string }[] }
export interface Problem { code?: string; object?: string; field?: string; message: string; remedy?: string }
export interface Change { kind: string; tenant?: string; name: string; action: string; diff?: { field: string; old?: unknown; new?: unknown }[] }
export interface Pending { id: string; deadline: string; changes?: Change[] }
export interface Applied {
  changes: Change[]; confirm?: Pending;
  preview?: {
    instances?: { action: string; deployment: string; node?: string; name?: string }[];
    rules?: { node: string; added: number; removed: number }[]; notes?: string[];
  };
}

/** Refused is what the server says of a request that it does not carry out. */
export class Refused extends Error {
  constructor(message: string, readonly problems: Problem[]) { super(message); }
}

// The console's key stands in the address once it was opened; the browser keeps it for this
// origin alone.
if (location.hash.length > 20) {
  localStorage.setItem("key", location.hash.slice(1));
  history.replaceState(null, "", "/");
}
const key = () => ({ "X-Onpath-Console": localStorage.getItem("key") ?? "" });

async function answer(response: Response): Promise<any> {
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : undefined;
  let detail = text || response.statusText;
  let problems: Problem[] = [];
  try {
    const body = JSON.parse(text);
    problems = body.errors ?? [];
    detail = body.detail ?? body.title ?? detail;
  } catch { /* the console itself speaks in plain text */ }
  throw new Refused(detail, problems);
}

/** reach asks the console, and says in words that it does not answer. */
async function reach(path: string, init: RequestInit) {
  try { return await fetch(path, init); } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Error("the console has ended; run onpath console again, and open the address that it prints");
  }
}

export const get = async (path: string, signal?: AbortSignal) => answer(await reach(path, { signal, headers: key() }));

export async function send(method: string, path: string, body?: unknown) {
  return answer(await reach(path, {
    method, headers: { "Content-Type": "application/json", ...key() },
    body: body === undefined ? undefined : JSON.stringify(body),
  }));
}

export const list = async (kinds: string, signal?: AbortSignal): Promise<Item[]> => (await get(`/v1/${kinds}`, signal)).items ?? [];

export const apply = (objects: unknown[], more: object = {}): Promise<Applied> => send("POST", "/v1/apply", { objects, ...more });

/** lines calls take for each JSON line of a stream, until it ends or signal says so. */
export async function lines<T>(path: string, signal: AbortSignal, take: (value: T) => void, parse: (text: string) => T = JSON.parse, opened = () => {}) {
  const response = await reach(path, { signal, headers: key() });
  if (!response.ok || !response.body) return answer(response);
  opened();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part) take(parse(part));
  }
}

/** save writes what a path answers, until it ends or signal says so, to a file of the browser's user. */
export async function save(path: string, name: string, signal: AbortSignal) {
  const got: BlobPart[] = [];
  try {
    const response = await fetch(path, { headers: key(), signal });
    if (!response.ok || !response.body) return answer(response);
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) got.push(part.value);
  } catch (e) { if (!signal.aborted) throw e; }
  const at = URL.createObjectURL(new Blob(got));
  Object.assign(document.createElement("a"), { href: at, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(at), 60_000);
}

export const nameOf = (o: Item) => (o.metadata.tenant ? `${o.metadata.tenant}/${o.metadata.name}` : o.metadata.name);
export const elementName = (e: Element) => [e.function, e.deployment].find((n) => typeof n === "string") ?? "?";

/** deploymentOf is the name of the deployment whose instances stand for an element. */
export const deploymentOf = (chain: Item, e: Element) =>
  e.deployment ?? `${chain.metadata.name}-${(e.function ?? "").split("/").pop()}`;

export function conditionOf(o: Item | undefined, type: string): Condition | undefined {
  return (o?.status?.conditions as Condition[] | undefined)?.find((c) => c.type === type);
}

/** troubles are what is wrong with an object, in the server's words: as a rule one cause, which
 * later conditions repeat. */
export function troubles(o: Item): string[] {
  const c = ((o.status?.conditions ?? []) as Condition[]).find((c) => c.status === "false" && c.message && !byDesign.has(c.reason ?? ""));
  return c?.message ? [c.message] : [];
}
const byDesign = new Set(["Disabled", "OrdinaryPath"]);
