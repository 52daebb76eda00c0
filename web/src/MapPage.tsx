// The whole network at one look: cloudlets, their nodes and instances, chains, and what is wrong.
import dagre from "@dagrejs/dagre";
import { useNavigate } from "@tanstack/react-router";
import { Background, Controls, Edge, Node, ReactFlow, ReactFlowInstance } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useEffect, useMemo, useRef, useState } from "react";
import { deploymentOf, Item, nameOf, Traffic, troubles } from "./api";
import { useList, useTraffic } from "./live";
import { bits, chainLink, drops, Dropped, Link } from "./parts";

const many = 40; // nodes: above, cloudlets stand for theirs
const width = 210;
const fit = { maxZoom: 1.1, padding: 0.1 };

export function MapPage() {
  const chains = useList("chains");
  const { items: nodes } = useList("nodes");
  const { items: instances } = useList("instances");
  const { items: hosts } = useList("hosts");
  const traffic = useTraffic();
  const now = traffic[traffic.length - 1];
  const [chosen, setChosen] = useState("");
  const [open, setOpen] = useState("");
  const go = useNavigate();
  const shown = useMemo(() => draw(nodes, instances, chains.items, hosts, chosen, open), [nodes, instances, chains.items, hosts, chosen, open]);
  const labelled = useMemo(() => label(shown, now), [shown, now]);
  const flow = useRef<ReactFlowInstance>(null);
  useEffect(() => { flow.current?.fitView(fit); }, [shown.nodes.length]);
  const byDeployment = useMemo(() => {
    const all = new Map<string, Item[]>();
    for (const i of instances) all.set(i.metadata.tenant + "/" + i.spec.deployment, [...(all.get(i.metadata.tenant + "/" + i.spec.deployment) ?? []), i]);
    return all;
  }, [instances]);
  const wrong = [...chains.items, ...nodes].flatMap((o) => troubles(o).map((why) => ({ o, why })));
  const follow = (n?: Node) => {
    if (n?.data.to) go({ to: n.data.to, search: n.data.search } as never);
    else if (n?.data.opens) setOpen(open === n.data.opens ? "" : n.data.opens as string);
  };
  const sorted = [...chains.items].sort((a, b) => Number(!!a.status?.active) - Number(!!b.status?.active)); // what is not in force comes first
  const empty = !chains.loading && nodes.length === 0;
  return (
    <div className="map">
      <aside>
        <h1>Network</h1>
        <p>{count(nodes.length, "node")}, {count(instances.length, "instance")}, {count(chains.items.length, "chain")}</p>
        {wrong.length > 0 && (
          <section className="wrong" aria-label="What is wrong">
            <h2>What is wrong</h2>
            <ul>{wrong.slice(0, 20).map(({ o, why }, i) => <li key={i}><b>{o.kind} {nameOf(o)}</b>: {why}</li>)}</ul>
          </section>
        )}
        <h2>Chains</h2>
        <ul className="chains">
          {sorted.map((c) => {
            const full = nameOf(c);
            return (
              <li key={full} className={chosen === full ? "chosen" : ""}>
                <button aria-pressed={chosen === full} onClick={() => setChosen(chosen === full ? "" : full)} title="Show it on the map">◉</button>
                {chainLink(full)} <span className={c.status?.active ? "good" : "wait"}>{c.status?.active ? "active" : "not active"}</span>
                <div className="small">{bits(now?.chains[full]?.bits)} <Dropped of={sum(c, byDeployment, now)} /></div>
              </li>
            );
          })}
        </ul>
        {chains.items.length === 0 && <p>No chain yet: <Link to="/build">build one</Link>, or attach a function to a machine: click it on the map.</p>}
      </aside>
      <div className="canvas" role="region" aria-label="Map of nodes and instances"
        onKeyDown={(e) => { if (e.key === "Enter") follow(shown.nodes.find((n) => n.id === (e.target as Element).getAttribute("data-id"))); }}>
        {empty ? <p className="page">No node has joined yet: <code>onpath up</code> on a machine, or <code>onpath node</code>.</p> : (
          <ReactFlow onInit={(f) => { flow.current = f; }} nodes={labelled} edges={shown.edges} fitView fitViewOptions={fit} nodesConnectable={false} minZoom={0.1} proOptions={{ hideAttribution: true }}
            onNodeClick={(_, n) => follow(n)}>
            <Background /><Controls showInteractive={false} />
          </ReactFlow>
        )}
      </div>
    </div>
  );
}

const count = (n: number, what: string) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** sum is what instances of a chain drop. */
function sum(chain: Item, instances: Map<string, Item[]>, now?: Traffic) {
  const dropped: Record<string, number> = {};
  for (const i of (chain.spec.through ?? []).flatMap((e: any) => instances.get(chain.metadata.tenant + "/" + deploymentOf(chain, e)) ?? [])) {
    for (const [why, n] of drops(now?.instances[nameOf(i)])) dropped[why] = (dropped[why] ?? 0) + n;
  }
  return { packets: 0, bits: 0, dropped };
}

interface Drawing { nodes: Node[]; edges: Edge[] }

/** draw places what is shown; it does so anew only when objects have changed. */
function draw(nodes: Item[], instances: Item[], chains: Item[], hosts: Item[], chosen: string, open: string): Drawing {
  const g = new dagre.graphlib.Graph({ compound: false }).setGraph({ rankdir: "LR", nodesep: 16, ranksep: 70 });
  const flow: Node[] = [];
  const edges: Edge[] = [];
  const put = (id: string, data: Record<string, unknown>, className: string, height = 52) => {
    g.setNode(id, { width, height });
    flow.push({ id, data, className, position: { x: 0, y: 0 }, draggable: true, focusable: true, ariaLabel: String(data.title) });
  };
  const join = (from: string, to: string, bold = false) => {
    if (!g.hasNode(from) || !g.hasNode(to)) return;
    g.setEdge(from, to, {});
    edges.push({ id: `${from}>${to}`, source: from, target: to, animated: bold, className: bold ? "bold" : "", focusable: false });
  };
  const cloudlets = [...new Set(nodes.map((n) => n.spec.cloudlet as string))].sort();
  const collapsed = nodes.length > many;
  const dead = (i: Item) => i.status?.state === "failed" || i.status?.state === "unready";
  for (const c of cloudlets) {
    const own = nodes.filter((n) => n.spec.cloudlet === c);
    const names = new Set(own.map((n) => n.metadata.name));
    const run = instances.filter((i) => names.has(i.spec.node));
    const away = own.filter((n) => n.status?.ready === false).length, failed = run.filter(dead).length;
    put("c/" + c, !collapsed ? { title: c, kind: "cloudlet" } : { title: c, kind: open === c ? "close" : "open", opens: c, all: [...names],
      text: `${count(own.length, "node")}, ${count(run.length, "instance")}`,
      wrong: [away && `${count(away, "node")} not ready`, failed && `${count(failed, "instance")} not serving`].filter(Boolean).join(", ") },
      "cloudlet" + (away || failed ? " broken" : ""), collapsed ? 92 : 52);
  }
  const machine = (n: Item) => (n.spec.uplinks ?? []).length > 0 && n.spec.uplinks.every((u: any) => u.attach === "host");
  const nodeData = (n: Item) => ({ title: n.metadata.name, kind: machine(n) ? "machine" : n.spec.uplinks?.length ? "gateway" : "node", node: n.metadata.name });
  const nodeClass = (n: Item) => "node" + (n.status?.ready === false ? " broken" : "");
  const of = chains.find((c) => nameOf(c) === chosen);
  const deployments = of ? (of.spec.through ?? []).map((e: any) => deploymentOf(of, e)) : [];
  const machines = [of?.spec.from?.hosts, of?.spec.to?.hosts].map((h) => h && hosts.find((x) => x.metadata.name === h && x.metadata.tenant === of?.metadata.tenant)?.spec.node).filter(Boolean);
  const within = new Set(instances.filter((i) => deployments.includes(i.spec.deployment)).map((i) => nodes.find((n) => n.metadata.name === i.spec.node)?.spec.cloudlet));
  /** enters reports whether packets enter the chosen chain at a node: its machines, else gateways. */
  const enters = (n: Item) => !!of && (machines.length ? machines.includes(n.metadata.name) : !machine(n) && n.spec.uplinks?.length > 0 && within.has(n.spec.cloudlet));
  for (const n of collapsed ? [] : nodes) {
    put("n/" + n.metadata.name, { ...nodeData(n), to: machine(n) ? `/host/${n.metadata.name}` : "/list/nodes" }, nodeClass(n) + (enters(n) ? " enters" : ""));
    join("c/" + n.spec.cloudlet, "n/" + n.metadata.name, enters(n));
  }
  for (const i of instances) {
    if (collapsed && !deployments.includes(i.spec.deployment)) continue;
    const state = i.status?.state as string;
    const id = "i/" + nameOf(i);
    put(id, { title: i.metadata.name, kind: state, instance: nameOf(i), to: `/instance/${nameOf(i)}` },
      "instance " + (state === "ready" ? "" : dead(i) ? "broken" : "waits"), 52 + 20 * Math.floor((i.metadata.name + state).length / 25));
    const node = nodes.find((n) => n.metadata.name === i.spec.node);
    join(collapsed ? "c/" + node?.spec.cloudlet : "n/" + i.spec.node, id, deployments.includes(i.spec.deployment));
  }
  dagre.layout(g);
  for (const n of flow) {
    const at = g.node(n.id);
    n.position = { x: at.x - at.width / 2, y: at.y - at.height / 2 };
  }
  // The nodes of a cloudlet that is open, as a grid beside the cloudlets.
  const right = Math.max(0, ...flow.map((n) => n.position.x)) + width + 60;
  nodes.filter((n) => collapsed && n.spec.cloudlet === open).forEach((n, k) => flow.push({
    id: "n/" + n.metadata.name, className: nodeClass(n), ariaLabel: n.metadata.name, focusable: true,
    data: { ...nodeData(n), text: count(instances.filter((i) => i.spec.node === n.metadata.name).length, "instance"), to: "/list/instances", search: { q: n.metadata.name } },
    position: { x: right + (k % 5) * (width + 16), y: Math.floor(k / 5) * 90 },
  }));
  return { nodes: flow, edges };
}

function label(d: Drawing, now?: Traffic): Node[] {
  return d.nodes.map((n) => {
    const all = (n.data.all as string[] | undefined)?.map((name) => now?.nodes[name]?.bits ?? 0);
    const c = all ? { packets: 0, bits: all.reduce((a, b) => a + b, 0) } : n.data.instance ? now?.instances[n.data.instance as string]
      : n.data.node ? now?.nodes[n.data.node as string] : undefined;
    return { ...n, sourcePosition: "right" as never, targetPosition: "left" as never, style: { width },
      data: { ...n.data, label: <div><b>{n.data.title as string}</b><span className="kind">{n.data.kind as string}</span>
        {!!n.data.text && <div className="small">{n.data.text as string}</div>}{!!n.data.wrong && <div className="bad">{n.data.wrong as string}</div>}
        <div className="small">{c ? bits(c.bits) : " "} <Dropped of={c} /></div></div> } };
  });
}
