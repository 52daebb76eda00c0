// What the tables show of each kind; the same as the command line's (onpath get).
import { useQuery } from "@tanstack/react-query";
import { conditionOf, get, Item, nameOf, troubles } from "./api";
import { endText, selectText } from "./ChainPage";
import { chainLink, change, Failure, instanceLink, Link, local, State, useAction } from "./parts";

export type Column = [title: string, cell: (o: Item) => React.ReactNode];

const name: Column = ["Name", nameOf];
const wrong: Column = ["Is wrong", (o) => troubles(o).join("; ")];
/** localTimes are instants within a text as the browser's user writes them. */
const localTimes = (text?: string) => text?.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, time);
const time = (t?: string) => (t ? local(t) : "");
const join = (list?: unknown[]) => (list ?? []).join(", ");

export const columns: Record<string, Column[]> = {
  chains: [["Name", (o) => chainLink(nameOf(o))], ["State", (o) => <State of={o.status?.active ? "active" : "not active"} />],
    ["From", (o) => endText(o.spec.from)], ["Through", (o) => (o.spec.through ?? []).map((e: any) => (e.function ?? e.deployment) + (e.mode === "mirror" ? " (copy)" : "")).join(" → ")],
    ["To", (o) => endText(o.spec.to)], ["Scaling", (o) => o.status?.scaling && [o.status.scaling.phase, o.status.scaling.message].filter(Boolean).join(": ")]],
  instances: [["Name", (o) => instanceLink(nameOf(o))], ["State", (o) => <State of={o.status?.state} />], ["Node", (o) => o.spec.node],
    ["Of", (o) => o.spec.deployment], ["Restarts", (o) => o.status?.restarts ?? 0], ["Message", (o) => o.status?.message]],
  nodes: [["Name", (o) => (o.spec.uplinks ?? []).some((u: any) => u.attach === "host") ? <Link to="/host/$name" params={{ name: o.metadata.name }}>{o.metadata.name}</Link> : o.metadata.name],
    ["State", (o) => <State of={o.status?.ready ? "ready" : "not ready"} />], ["Cloudlet", (o) => o.spec.cloudlet],
    ["Uplinks", (o) => (o.spec.uplinks ?? []).map((u: any) => `${u.device} (${u.attach})`).join(", ")],
    ["CPU used", (o) => `${o.status?.used?.cpu ?? 0} of ${o.status?.capacity?.cpu ?? "?"}`],
    ["Memory used", (o) => `${size(o.status?.used?.memory ?? "0")} of ${size(o.status?.capacity?.memory)}`],
    wrong, ["Does", (o) => <Drain of={o} />]],
  events: [["Time", (o) => time(o.spec.time)], ["About", (o) => o.spec.about], ["Node", (o) => o.spec.node], ["What", (o) => o.spec.reason], ["Message", (o) => o.spec.message]],
  webhooks: [name, ["URL", (o) => o.spec.url], ["Level", (o) => `${o.spec.level ?? "info"} and above`], ["How it fares", (o) => <Fares of={o} />]],
  functions: [name, ["Kind", (o) => ["container", "wasm", "ebpf", "relay"].find((k) => o.spec[k]) ?? "?"], ["State of flows", (o) => o.spec.state],
    ["Packets", (o) => o.spec.packets], ["Image", (o) => o.spec.container && <code className="small">{o.spec.container.image}</code>]],
  services: [name, ["DNS name", (o) => o.spec.name], ["Deployment", (o) => o.spec.deployment], ["Answers", (o) => selectText(o.spec.select)],
    ["Where", (o) => (o.status?.cloudlets ?? []).map((p: any) => (
      <div key={p.cloudlet}>{p.cloudlet}: {join(p.addresses) || "no address"}, {p.ready} ready <State of={p.serves ? "serves" : "does not serve"} /></div>))], wrong],
  secrets: [name, ["Keys", (o) => join(Object.keys({ ...o.spec.data, ...o.spec.sealed }).sort())]], // never a value, sealed or not
  prefixclaims: [name, ["Prefix", (o) => o.spec.prefix], ["Proof", (o) => o.spec.proof], ["State", (o) => <State of={o.status?.state} />],
    ["Until", (o) => time(o.status?.until)], ["Because", (o) => o.status?.evidence]],
  reservations: [name, ["State", (o) => <><State of={o.status?.state} /> {o.status?.reason}</>], ["Cloudlet", (o) => o.status?.cloudlet],
    ["Nodes", (o) => join((o.status?.places ?? []).map((p: any) => (p.leaving ? `${p.leaving} → ${p.node}` : p.node)))],
    ["Promised", (o) => (o.status?.slots ?? []).map((s: any, i: number) => <div key={i}>{resources(s.capacity)} from {time(s.from)} {s.until ? `until ${time(s.until)}` : "on"}</div>)],
    ["Paid", (o) => money(o.status?.paid, o.status?.currency)], ["Given back", (o) => money(o.status?.refunded, o.status?.currency)],
    ["Notes", (o) => join(o.status?.notes)]],
  accelerators: [name, ["State", (o) => <State of={conditionOf(o, "Active")?.status === "true" ? "active" : "not active"} />],
    ["Origins", (o) => join((o.spec.origins ?? []).map((x: any) => `${x.address}:${x.port}`))], ["Between", (o) => join(o.spec.between)],
    ["Paths", (o) => (o.status?.paths ?? []).map((p: any) => <div key={p.ingress + p.origin}>{p.nodes?.join(" → ")} → {p.origin}: {p.time}, direct {p.direct}</div>)], wrong],
  leases: [name, ["State", (o) => <State of={o.status?.state} />], ["Node", (o) => o.spec.node], ["Publisher", (o) => o.spec.publisher + (o.spec.known ? "" : " (no tenant)")],
    ["Module", (o) => o.spec.module], ["Takes", (o) => `${o.spec.protocol ?? "all"}${o.spec.port ? " port " + o.spec.port : ""} to ${join(o.spec.to)}`],
    ["Until", (o) => time(o.spec.until)], ["Message", (o) => o.status?.message]],
  tenants: [["Name", (o) => o.metadata.name], ["Addresses", (o) => join(o.spec.addresses)], ["Account", (o) => <Account of={o.metadata.name} />]],
};

/** plainColumns are those of a kind that is not named above. */
export const plainColumns: Column[] = [name, ["Ready", (o) => conditionOf(o, "Ready")?.message || conditionOf(o, "Ready")?.status],
  ["Says", (o) => <code>{JSON.stringify(o.spec)}</code>], ["Status", (o) => <code>{JSON.stringify(o.status ?? {})}</code>]];

const units: Record<string, number> = { Ki: 1, Mi: 1 << 10, Gi: 1 << 20, Ti: 2 ** 30 };

/** size is an amount of memory such as 24684096Ki in the unit that suits it. */
function size(text?: string) {
  const [, n, unit] = /^(\d+)(Ki|Mi|Gi|Ti)?$/.exec(String(text)) ?? [];
  if (!n) return text ?? "?";
  const ki = Number(n) * (unit ? units[unit] : 1 / 1024);
  const best = Object.keys(units).findLast((u) => ki >= units[u]);
  return best ? `${+(ki / units[best]).toFixed(1)} ${best}B` : `${n} B`;
}

const resources = (r?: Record<string, string>) => Object.entries(r ?? {}).map(([k, v]) => `${k} ${k === "memory" || k === "disk" ? size(v) : v}`).join(", ");
const money = (amount?: string, currency?: string) => (amount === undefined || amount === "0" ? "" : `${amount} ${currency ?? ""}`);

/** Fares says how a webhook fares; its secret, which the answer has as well, is not shown. */
function Fares({ of }: { of: Item }) {
  const q = useQuery({ queryKey: ["webhook", nameOf(of)], queryFn: () => get(`/v1/webhooks/${nameOf(of)}/state`), refetchInterval: 5000, retry: false });
  if (q.error) return <Failure of={q.error} />;
  if (!q.data) return "…";
  const { sent, dropped, failures, message } = q.data;
  return <>{sent} sent, {dropped} given up after a day
    {failures > 0 && <div className="bad">{failures} attempts failed since the last that did not: {message}</div>}</>;
}

/** Account is what a tenant has, and what became of it last. */
function Account({ of }: { of: string }) {
  const q = useQuery({ queryKey: ["account", of], refetchInterval: 5000, retry: false, queryFn: async () => {
    const account = await get(`/v1/accounts/${of}`);
    return { account, last: (await get(`/v1/accounts/${of}/postings?from=${Math.max(1, account.postings - 9)}`)).postings ?? [] };
  } });
  if (q.error) return <Failure of={q.error} />;
  if (!q.data) return "…";
  const { account, last } = q.data;
  return <><b>{account.balance} {account.currency}</b>
    {[...last].reverse().map((p: any) => <div className="small" key={p.number}>{time(p.at)} {p.kind} {p.amount} {p.reservation} {localTimes(p.cause)}</div>)}</>;
}

function Drain({ of }: { of: Item }) {
  const { run, busy, failure } = useAction();
  const drains = !!of.spec.drain;
  return <><button disabled={busy} onClick={() => run(() => change(of, { ...of.spec, drain: !drains || undefined, schedulable: drains ? undefined : false }))}>
    {drains ? "Let it have instances" : "Drain"}</button><Failure of={failure} /></>;
}
