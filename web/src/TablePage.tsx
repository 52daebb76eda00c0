// Objects of a kind, as a plain table.
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { conditionOf, Item, nameOf, troubles } from "./api";
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
    ["Memory used", (o) => `${o.status?.used?.memory ?? 0} of ${o.status?.capacity?.memory ?? "?"}`],
    ["Is wrong", (o) => troubles(o).join("; ")], ["", (o) => <Drain of={o} />]],
  events: [["Time", (o) => new Date(o.spec.time).toLocaleString()], ["About", (o) => o.spec.about], ["What", (o) => o.spec.reason], ["", (o) => o.spec.message]],
  functions: [["Name", nameOf], ["Kind", (o) => ["container", "wasm", "ebpf"].find((k) => o.spec[k]) ?? "?"], ["State of flows", (o) => o.spec.state],
    ["Packets", (o) => o.spec.packets], ["Image", (o) => o.spec.container?.image]],
};
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

function Drain({ of }: { of: Item }) {
  const { run, busy, failure } = useAction();
  const drains = !!of.spec.drain;
  return <><button disabled={busy} onClick={() => run(() => change(of, { ...of.spec, drain: !drains || undefined, schedulable: drains ? undefined : false }))}>
    {drains ? "Let it have instances" : "Drain"}</button><Failure of={failure} /></>;
}
