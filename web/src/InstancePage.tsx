// One instance: its state, what it carries, prints and tells; a capture; to another node.
import { useParams } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { deploymentOf, lines, nameOf, save, send } from "./api";
import { useList, useNotifications, useTraffic } from "./live";
import { NotificationList } from "./NotificationsPage";
import { Plot } from "./Plot";
import { chainLink, Dropped, Failure, Link, local, packets, State, useAction } from "./parts";

export function InstancePage() {
  const { tenant, name } = useParams({ strict: false }) as { tenant: string; name: string };
  const { items, loading } = useList("instances");
  const { items: nodes } = useList("nodes");
  const { items: events } = useList("events");
  const { items: chains } = useList("chains");
  const { items: deployments } = useList("deployments");
  const traffic = useTraffic();
  const told = useNotifications(name);
  const [to, setTo] = useState("");
  const { run, busy, failure } = useAction();
  const full = `${tenant}/${name}`;
  const i = items.find((x) => nameOf(x) === full);
  if (!i) return <p className="page">{loading ? "Loading…" : `There is no instance ${full} any more: another one has taken its place, or its chain is gone.`}</p>;
  const now = traffic[traffic.length - 1]?.instances[full];
  const chain = chains.find((c) => c.metadata.tenant === tenant && (c.spec.through ?? []).some((e: any) => deploymentOf(c, e) === i.spec.deployment));
  const reserved = deployments.some((d) => nameOf(d) === `${tenant}/${i.spec.deployment}` && d.spec.reservation) || // others the planner places
    chains.some((c) => c.metadata.tenant === tenant && (c.spec.through ?? []).some((e: any) => e.reservation && deploymentOf(c, e) === i.spec.deployment));
  return (
    <div className="page">
      <h1>Instance {full} <State of={i.status?.state} /></h1>
      <p>Of {chain ? <>{i.spec.deployment} in chain {chainLink(nameOf(chain))}</> : <Link to="/list/$kinds" params={{ kinds: "deployments" }} search={{ q: i.spec.deployment }}>{i.spec.deployment}</Link>}
        {" "}on node <Link to="/list/$kinds" params={{ kinds: "nodes" }} search={{ q: i.spec.node }}>{i.spec.node}</Link>; restarts: {i.status?.restarts ?? 0}. {i.status?.message}</p>
      <Plot title="What it is given" of={traffic.map((t) => [t.time, t.instances[full]?.bits ?? 0])} />
      <p>{packets(now?.packets)} <Dropped of={now} /></p>
      <div className="actions">
        <Capture of={full} name={name} />
        <a className="button" href={`/terminal.html?instance=${full}`} target="_blank" rel="noreferrer">Terminal</a>
        {reserved && <>
          <label>Move to <select value={to} onChange={(e) => setTo(e.target.value)}><option value="">the least loaded node</option>
            {nodes.filter((n) => n.metadata.name !== i.spec.node).map((n) => <option key={n.metadata.name}>{n.metadata.name}</option>)}</select></label>
          <button disabled={busy} onClick={() => run(() => send("POST", `/v1/instances/${full}/move`, { to }))}>Move</button>
        </>}
      </div>
      <Failure of={failure} />
      <h2>Notifications</h2>
      <NotificationList of={told} />
      <h2>What it prints</h2>
      <Log of={full} />
      <h2>What happened to it</h2>
      <ul>{events.filter((e) => (e.spec.about as string)?.endsWith(full)).sort((a, b) => (a.spec.time < b.spec.time ? 1 : -1)).slice(0, 20).map((e) => (
        <li key={e.metadata.name} className={e.spec.warning ? "bad" : ""}>{local(e.spec.time)} {e.spec.reason}{e.spec.message && ": " + e.spec.message}</li>))}</ul>
    </div>
  );
}

/** Capture records packets until there are enough, or somebody has. */
function Capture({ of, name }: { of: string; name: string }) {
  const { run, busy, failure } = useAction();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const begin = () => {
    stop.current = new AbortController();
    run(() => save(`/v1/capture?instance=${encodeURIComponent(of)}&count=1000`, `${name}.pcapng`, stop.current.signal));
  };
  return (
    <>
      <button onClick={busy ? () => stop.current.abort() : begin}>{busy ? "Enough: save the packets so far" : "Capture 1,000 packets"}</button>
      <Failure of={failure} />
    </>
  );
}

function Log({ of }: { of: string }) {
  const [log, setLog] = useState<string[]>([]);
  const end = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    setLog([]);
    lines<string>(`/v1/instances/${of}/logs?tail=200&follow=true`, stop.signal, (l) => setLog((old) => [...old.slice(-999), l]), (t) => t)
      .catch((e) => { if (!stop.signal.aborted) setLog((old) => [...old, String(e)]); });
    return () => stop.abort();
  }, [of]);
  useEffect(() => { end.current?.scrollTo(0, end.current.scrollHeight); }, [log]);
  return <pre ref={end} className="log" tabIndex={0} aria-label="Output">{log.length ? log.join("\n") : "(nothing yet)"}</pre>;
}
