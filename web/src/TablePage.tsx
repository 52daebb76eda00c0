// Objects of a kind, as a plain table.
import { useParams, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { nameOf } from "./api";
import { columns, plainColumns } from "./columns";
import { useList } from "./live";
import { Failure } from "./parts";

/** tables are the kinds that have one, and what their pages say. */
export const tables: Record<string, [title: string, about?: React.ReactNode]> = {
  chains: ["Chains"], instances: ["Instances"], nodes: ["Nodes"], functions: ["Functions"],
  services: ["Services", "Deployments that answer at addresses of their own, one in each cloudlet."],
  reservations: ["Reservations", "Capacity for a time and a place, and what was paid for it."],
  accelerators: ["Accelerators"], leases: ["Leases", "Modules that a message installed on the way to a user, until they end."],
  tenants: ["Tenants", "What they have in their accounts, and the last ten entries."],
  prefixclaims: ["Prefix claims", "Addresses that tenants say are theirs, and who vouches for it."],
  secrets: ["Secrets", "Names and keys; what is in them is shown by nobody."],
  webhooks: ["Webhooks", <>Where notifications are posted; <code>onpath webhook NAME --secret</code> prints what a receiver checks signatures with.</>],
  events: ["Events"], faults: ["Faults", <>What was broken on purpose: <code>onpath fault</code>.</>],
};

export function TablePage() {
  const { kinds } = useParams({ strict: false }) as { kinds: string };
  const faults = kinds === "faults"; // they are told by events
  const { items, error, loading } = useList(faults ? "events" : kinds);
  const { q } = useSearch({ strict: false }) as { q?: string };
  const [filter, setFilter] = useState(String(q ?? ""));
  const shown = columns[faults ? "events" : kinds] ?? plainColumns;
  const events = kinds === "events" || faults;
  const sorted = events ? items.filter((o) => !faults || /fault/i.test(o.spec.reason)).sort((a, b) => (a.spec.time < b.spec.time ? 1 : -1)) : items;
  const list = sorted.filter((o) => JSON.stringify(o).toLowerCase().includes(filter.toLowerCase()));
  const [title, about] = tables[kinds] ?? [kinds];
  const most = 500;
  return (
    <div className="page">
      <h1>{title}</h1>
      {about && <p>{about}</p>}
      <label>Only those with <input type="search" value={filter} onChange={(e) => setFilter(e.target.value)} /></label>
      <Failure of={error} />
      {!loading && !error && list.length === 0 ? <p>None.</p> : (
        <div className="wide">
          <table>
            <thead><tr>{shown.map(([t], i) => <th key={i}>{t}</th>)}</tr></thead>
            <tbody>{list.slice(0, most).map((o) => <tr key={nameOf(o)} className={o.spec?.warning ? "bad" : ""}>{shown.map(([, cell], i) => <td key={i}>{cell(o)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      )}
      {list.length > most && <p>{list.length - most} more are not shown: search for what you look for.</p>}
    </div>
  );
}
