// An attached machine: its functions, and attaching others (onpath attach).
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { apply, conditionOf, Element, elementName, Item, send } from "./api";
import { useList, useTraffic } from "./live";
import { Plot } from "./Plot";
import { chainLink, Conditions, Failure, Link, State, useAction } from "./parts";

const kind = (kind: string) => ({ apiVersion: "onpath/v1alpha1", kind });

/** selectors are the services of a machine, and those that it uses, by a text such as "tcp/80, icmp". */
export function selectors(text: string) {
  return text.split(/[,\s]+/).filter(Boolean).flatMap((part) => {
    const [protocol, port] = part.split("/");
    return port ? [{ protocol, destinationPorts: [port] }, { protocol, sourcePorts: [port] }] : [{ protocol }];
  });
}

export function HostPage() {
  const { name } = useParams({ strict: false }) as { name: string };
  const nodes = useList("nodes");
  const { items: chains } = useList("chains");
  const { items: functions } = useList("functions");
  const [fn, setFn] = useState("");
  const [ports, setPorts] = useState("");
  const [copy, setCopy] = useState(false);
  const { run, busy, failure } = useAction();
  const traffic = useTraffic();
  const node = nodes.items.find((n) => n.metadata.name === name);
  if (!node) return <p className="page">{nodes.loading ? "Loading…" : `There is no node ${name} any more.`}</p>;
  const own = `attached-${name}`;
  const chain = chains.find((c) => c.metadata.name === own);
  const through: Element[] = chain?.spec.through ?? [];
  const write = (list: Element[]) => (list.length === 0
    ? send("POST", "/v1/apply", { delete: ["Chain", "Hosts"].map((k) => ({ kind: k, tenant: chain?.metadata.tenant, name: own })) })
    : apply([{ ...kind("Hosts"), metadata: { name: own }, spec: { node: name } },
      { ...kind("Chain"), metadata: { name: own }, spec: { ...(chain?.spec ?? { from: "any", to: { hosts: own } }), through: list } }]));
  const chosen = fn || functions[0]?.metadata.name || "";
  const attach = () => window.confirm(`Attach ${chosen} to ${name}? At once ${copy ? "it gets copies of" : "it is crossed by"} ${ports.trim() || "all"} traffic of this machine.`) && run(() => write([...through.filter((e) => elementName(e) !== chosen),
    { function: chosen, ...(copy ? { mode: "mirror" } : {}), ...(ports.trim() ? { select: selectors(ports) } : {}) }]));
  return (
    <div className="page">
      <h1>Machine {name} <State of={node.status?.ready ? "ready" : "not ready"} /></h1>
      <p>{(node.status?.addresses ?? []).join(", ")} in cloudlet {node.spec.cloudlet}</p>
      <Plot title="What the machine sends and gets" of={traffic.map((t) => [t.time, t.nodes[name]?.bits ?? 0])} />
      <h2>Functions before it</h2>
      {chain && <p>Chain {chainLink(`${chain.metadata.tenant}/${own}`)}: {chain.status?.active ? "active" : conditionOf(chain, "Active")?.message ?? "not active"}</p>}
      {through.length === 0 && <p>None: its traffic passes no function.</p>}
      <ul className="attached">
        {through.map((e) => (
          <li key={elementName(e)}><b>{elementName(e)}</b> {e.mode === "mirror" ? "gets copies" : "is crossed"}
            <button disabled={busy} onClick={() => window.confirm(`Detach ${elementName(e)} from ${name}? Traffic of this machine passes without it at once.`) && run(() => write(through.filter((x) => x !== e)))}>Detach</button></li>
        ))}
      </ul>
      <h2>Attach a function</h2>
      <div className="fields">
        <label>Function <select value={chosen} onChange={(e) => setFn(e.target.value)}>{functions.map((f: Item) => <option key={f.metadata.name}>{f.metadata.name}</option>)}</select></label>
        <label>Services <input placeholder="all, or tcp/80, udp/53" value={ports} onChange={(e) => setPorts(e.target.value)} /></label>
        <label><input type="checkbox" checked={copy} onChange={(e) => setCopy(e.target.checked)} /> copies only</label>
        <button className="main" disabled={busy || !chosen} onClick={attach}>Attach</button>
      </div>
      <Failure of={failure} />
      <h2>Conditions</h2>
      <Conditions of={node} />
      <p><Link to="/list/$kinds" params={{ kinds: "nodes" }}>All nodes</Link></p>
    </div>
  );
}
