// Small parts that several pages show.
import { Link as RouterLink } from "@tanstack/react-router";
import { useState } from "react";
import { Applied, Carried, Item, Refused, send } from "./api";
import { useQueryClient } from "@tanstack/react-query";

// The router's own types want each address spelt out; ours are made of names.
export const Link = RouterLink as unknown as (p: {
  to: string; params?: object; search?: object; className?: string; children?: React.ReactNode; activeProps?: object; title?: string;
}) => React.ReactElement;

export const chainLink = (full: string) => {
  const [tenant, name] = full.split("/");
  return <Link to="/chain/$tenant/$name" params={{ tenant, name }}>{full}</Link>;
};
export const instanceLink = (full: string, text = full) => {
  const [tenant, name] = full.split("/");
  return <Link to="/instance/$tenant/$name" params={{ tenant, name }}>{text}</Link>;
};

/** local is an instant in the browser's zone, such as 2026-11-26 07:06:14. */
export const local = (t: string | number) => new Date(t).toLocaleString("sv-SE");

const scale = (n: number, unit: string) => {
  if (!n) return `0 ${unit}`;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) {
    if (n >= size) return `${(n / size).toFixed(n / size < 10 ? 1 : 0)} ${letter}${unit}`;
  }
  return `${n < 10 ? n.toFixed(1) : n.toFixed(0)} ${unit}`;
};
export const bits = (n?: number) => scale(n ?? 0, "bit/s");
export const packets = (n?: number) => scale(n ?? 0, "packets/s");

const byDesign = new Set(["mirror"]);
export const drops = (c?: Carried) => Object.entries(c?.dropped ?? {}).filter(([why, n]) => n > 0 && !byDesign.has(why));

export function Dropped({ of }: { of?: Carried }) {
  const list = drops(of);
  if (!list.length) return null;
  return <span className="bad">dropped: {list.map(([why, n]) => `${why} ${packets(n)}`).join(", ")}</span>;
}

const good = new Set(["ready", "active", "proved", "serves", "watching"]);
const bad = new Set(["failed", "unready", "refuted", "does not serve", "stopped"]);

export function State({ of }: { of?: string }) {
  return <span className={"state " + (good.has(of ?? "") ? "good" : bad.has(of ?? "") ? "bad" : "wait")}>{of || "unknown"}</span>;
}

export function Conditions({ of }: { of: Item }) {
  return (
    <table>
      <thead><tr><th>Condition</th><th>Is</th><th>Because</th></tr></thead>
      <tbody>
        {(of.status?.conditions ?? []).map((c: any) => (
          <tr key={c.type}><td>{c.type}</td><td className={c.status === "false" ? "bad" : ""}>{c.status}</td>
            <td>{c.message || c.reason}</td></tr>
        ))}
      </tbody>
    </table>
  );
}

export function Failure({ of }: { of: unknown }) {
  if (!of) return null;
  const problems = of instanceof Refused ? of.problems : [];
  return (
    <div className="failure" role="alert">
      {problems.length === 0 && <p>{of instanceof Error ? of.message : String(of)}</p>}
      {problems.map((p, i) => (
        <p key={i}><b>{[p.object, p.field].filter(Boolean).join(": ")}</b> {p.message}{p.remedy && <> — {p.remedy}</>}</p>
      ))}
    </div>
  );
}

export function Differences({ of }: { of: Applied }) {
  const changed = of.changes.filter((c) => c.action !== "unchanged");
  const p = of.preview;
  return (
    <div className="differences">
      {changed.length === 0 && <p>Nothing would change.</p>}
      <ul>
        {changed.map((c) => (
          <li key={c.kind + c.name}><b>{c.action}</b> {c.kind} {c.name}
            {c.diff?.map((d) => <div className="diff" key={d.field}>{d.field}: {JSON.stringify(d.old) ?? "(absent)"} → {JSON.stringify(d.new) ?? "(absent)"}</div>)}
          </li>
        ))}
        {p?.instances?.map((i, k) => <li key={"i" + k}><b>{i.action}</b> {i.name || "an instance of " + i.deployment}{i.node && ` on ${i.node}`}</li>)}
        {p?.rules?.map((r) => <li key={r.node}>rules of {r.node}: <b>+{r.added} −{r.removed}</b></li>)}
        {p?.notes?.map((n) => <li key={n} className="wait">{n}</li>)}
      </ul>
    </div>
  );
}

/** useAction runs something that changes the network, and keeps what was said against it. */
export function useAction() {
  const client = useQueryClient();
  const [failure, setFailure] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const run = async (do_: () => Promise<unknown>) => {
    setBusy(true);
    setFailure(undefined);
    try { await do_(); await client.invalidateQueries(); return true; } catch (e) { setFailure(e); return false; } finally { setBusy(false); }
  };
  return { run, busy, failure };
}

/** change writes an object anew with another spec. */
export const change = (o: Item, spec: object) =>
  send("POST", "/v1/apply", { objects: [{ apiVersion: "onpath/v1alpha1", kind: o.kind, metadata: plain(o.metadata), spec }] });

export const plain = (m: Item["metadata"]) => ({ name: m.name, ...(m.tenant ? { tenant: m.tenant } : {}), ...(m.labels ? { labels: m.labels } : {}) });
