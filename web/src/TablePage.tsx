// Objects of a kind, as a plain table.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { conditionOf, get, Item, nameOf, troubles } from "./api";
import { endText } from "./ChainPage";
import { useList } from "./live";
import { chainLink, change, Failure, instanceLink, Link, State, useAction } from "./parts";

type Column = [title: string, cell: (o: Item) => React.ReactNode];

const columns: Record<string, Column[]> = {
  chains: [["Name", (o) => chainLink(nameOf(o))], ["State", (o) => <State of={o.status?.active ? "active" : "not active"} />],
    ["From", (o) => endText(o.spec.from)], ["Through", (o) => (o.spec.through ?? []).map((e: any) => e.function ?? e.deployment).join(" → ")],
    ["To", (o) => endText(o.spec.to)]],
  instances: [["Name", (o) => instanceLink(nameOf(o))], ["State", (o) => <State of={o.status?.state} />], ["Node", (o) => o.spec.node],
    ["Of", (o) => o.spec.deployment], ["Restarts", (o) => o.status?.restarts ?? 0], ["Message", (o) => o.status?.message]],
  nodes: [["Name", (o) => (o.spec.uplinks ?? []).some((u: any) => u.attach === "host") ? <Link to="/host/$name" params={{ name: o.metadata.name }}>{o.metadata.name}</Link> : o.metadata.name],
    ["State", (o) => <State of={o.status?.ready ? "ready" : "not ready"} />], ["Cloudlet", (o) => o.spec.cloudlet],
    ["Uplinks", (o) => (o.spec.uplinks ?? []).map((u: any) => `${u.device} (${u.attach})`).join(", ")],
    ["CPU used", (o) => `${o.status?.used?.cpu ?? 0} of ${o.status?.capacity?.cpu ?? "?"}`],
    ["Memory used", (o) => `${size(o.status?.used?.memory ?? "0")} of ${size(o.status?.capacity?.memory)}`],
    ["Is wrong", (o) => troubles(o).join("; ")], ["Does", (o) => <Drain of={o} />]],
  events: [["Time", (o) => new Date(o.spec.time).toLocaleString()], ["About", (o) => o.spec.about], ["What", (o) => o.spec.reason], ["Message", (o) => o.spec.message]],
  webhooks: [["Name", nameOf], ["URL", (o) => o.spec.url], ["Level", (o) => `${o.spec.level ?? "info"} and above`], ["How it fares", (o) => <Fares of={o} />]],
  functions: [["Name", nameOf], ["Kind", (o) => ["container", "wasm", "ebpf", "relay"].find((k) => o.spec[k]) ?? "?"], ["State of flows", (o) => o.spec.state],
    ["Packets", (o) => o.spec.packets], ["Image", (o) => o.spec.container?.image]],
};
const units: Record<string, number> = { Ki: 1, Mi: 1 << 10, Gi: 1 << 20, Ti: 2 ** 30 };

/** size is an amount of memory such as 24684096Ki in the unit that suits it. */
function size(text?: string) {
  const [, n, unit] = /^(\d+)(Ki|Mi|Gi|Ti)?$/.exec(String(text)) ?? [];
  if (!n) return text ?? "?";
  const ki = Number(n) * (unit ? units[unit] : 1 / 1024);
  const best = Object.keys(units).findLast((u) => ki >= units[u]);
  return best ? `${+(ki / units[best]).toFixed(1)} ${best}B` : `${n} B`;
}

const plainColumns: Column[] = [["Name", nameOf], ["Ready", (o) => conditionOf(o, "Ready")?.message || conditionOf(o, "Ready")?.status],
  ["Says", (o) => <code>{JSON.stringify(o.spec)}</code>], ["Status", (o) => <code>{JSON.stringify(o.status ?? {})}</code>]];

export function TablePage() {
  const { kinds } = useParams({ strict: false }) as { kinds: string };
  const { items, error, loading } = useList(kinds);
  const [filter, setFilter] = useState("");
  const shown = columns[kinds] ?? plainColumns;
  const sorted = kinds === "events" ? [...items].sort((a, b) => (a.spec.time < b.spec.time ? 1 : -1)) : items;
  const list = sorted.filter((o) => JSON.stringify(o).toLowerCase().includes(filter.toLowerCase())).slice(0, 500);
  return (
    <div className="page">
      <h1>{kinds[0].toUpperCase() + kinds.slice(1)}</h1>
      {kinds === "webhooks" && <p>Where notifications are posted; <code>onpath webhook NAME --secret</code> prints what a receiver checks signatures with.</p>}
      <label>Only those with <input type="search" value={filter} onChange={(e) => setFilter(e.target.value)} /></label>
      <Failure of={error} />
      {!loading && list.length === 0 ? <p>None.</p> : (
        <div className="wide">
          <table>
            <thead><tr>{shown.map(([t], i) => <th key={i}>{t}</th>)}</tr></thead>
            <tbody>{list.map((o) => <tr key={nameOf(o)} className={o.spec?.warning ? "bad" : ""}>{shown.map(([, cell], i) => <td key={i}>{cell(o)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}

/** Fares says how a webhook fares; its secret, which the answer has as well, is not shown. */
function Fares({ of }: { of: Item }) {
  const q = useQuery({ queryKey: ["webhook", nameOf(of)], queryFn: () => get(`/v1/webhooks/${nameOf(of)}/state`), refetchInterval: 5000, retry: false });
  if (q.error) return <Failure of={q.error} />;
  if (!q.data) return "…";
  const { sent, dropped, failures, message } = q.data;
  return <>{sent} sent, {dropped} given up after a day
    {failures > 0 && <div className="bad">{failures} attempts failed since the last that did not: {message}</div>}</>;
}

function Drain({ of }: { of: Item }) {
  const { run, busy, failure } = useAction();
  const drains = !!of.spec.drain;
  return <><button disabled={busy} onClick={() => run(() => change(of, { ...of.spec, drain: !drains || undefined, schedulable: drains ? undefined : false }))}>
    {drains ? "Let it have instances" : "Drain"}</button><Failure of={failure} /></>;
}
