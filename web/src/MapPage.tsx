// The whole network at one look: cloudlets, their nodes and instances, chains, and what is wrong.
import dagre from "@dagrejs/dagre";
import { useNavigate } from "@tanstack/react-router";
import { Background, Controls, Edge, Node, ReactFlow } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useMemo, useState } from "react";
import { deploymentOf, Item, nameOf, Traffic, troubles } from "./api";
import { useList, useTraffic } from "./live";
import { bits, chainLink, drops, Dropped, Link } from "./parts";

const many = 40; // nodes: above, cloudlets stand for theirs
const width = 210;

export function MapPage() {
  const chains = useList("chains");
  const { items: nodes } = useList("nodes");
  const { items: instances } = useList("instances");
  const traffic = useTraffic();
  const now = traffic[traffic.length - 1];
  const [chosen, setChosen] = useState("");
  const go = useNavigate();
  const shown = useMemo(() => draw(nodes, instances, chains.items, chosen), [nodes, instances, chains.items, chosen]);
  const labelled = useMemo(() => label(shown, now), [shown, now]);
  const wrong = [...chains.items, ...nodes].flatMap((o) => troubles(o).map((why) => ({ o, why })));
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
          {chains.items.map((c) => {
            const full = nameOf(c);
            return (
              <li key={full} className={chosen === full ? "chosen" : ""}>
                <button aria-pressed={chosen === full} onClick={() => setChosen(chosen === full ? "" : full)} title="Show it on the map">◉</button>
                {chainLink(full)} <span className={c.status?.active ? "good" : "wait"}>{c.status?.active ? "active" : "not active"}</span>
                <div className="small">{bits(now?.chains[full]?.bits)} <Dropped of={sum(c, instances, now)} /></div>
              </li>
            );
          })}
        </ul>
        {chains.items.length === 0 && <p>No chain yet: <Link to="/build">build one</Link>, or attach a function to a machine: click it on the map.</p>}
      </aside>
      <div className="canvas" role="region" aria-label="Map of nodes and instances">
        {empty ? <p className="page">No node has joined yet: <code>onpath up</code> on a machine, or <code>onpath node</code>.</p> : (
          <ReactFlow key={shown.nodes.length} nodes={labelled} edges={shown.edges} fitView fitViewOptions={{ maxZoom: 1.1, padding: 0.1 }} nodesConnectable={false} minZoom={0.1} proOptions={{ hideAttribution: true }}
            onNodeClick={(_, n) => {
              const to = n.data.to as string | undefined;
              if (to) go({ to } as never);
            }}>
            <Background /><Controls showInteractive={false} />
          </ReactFlow>
        )}
      </div>
    </div>
  );
}

const count = (n: number, what: string) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** sum is what instances of a chain drop. */
function sum(chain: Item, instances: Item[], now?: Traffic) {
  const dropped: Record<string, number> = {};
  for (const i of instances) {
    if (!(chain.spec.through ?? []).some((e: any) => deploymentOf(chain, e) === i.spec.deployment)) continue;
    for (const [why, n] of drops(now?.instances[nameOf(i)])) dropped[why] = (dropped[why] ?? 0) + n;
  }
  return { packets: 0, bits: 0, dropped };
}

interface Drawing { nodes: Node[]; edges: Edge[] }

/** draw places what is shown; it does so anew only when objects have changed. */
function draw(nodes: Item[], instances: Item[], chains: Item[], chosen: string): Drawing {
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
  for (const c of cloudlets) put("c/" + c, { title: c, kind: "cloudlet" }, "cloudlet");
  const collapsed = nodes.length > many;
  for (const n of nodes) {
    if (collapsed) continue;
    const host = (n.spec.uplinks ?? []).length > 0 && n.spec.uplinks.every((u: any) => u.attach === "host");
    put("n/" + n.metadata.name, { title: n.metadata.name, kind: host ? "machine" : n.spec.uplinks?.length ? "gateway" : "node",
      wrong: n.status?.ready === false, to: host ? `/host/${n.metadata.name}` : "/list/nodes", node: n.metadata.name }, "node" + (n.status?.ready === false ? " broken" : ""));
    join("c/" + n.spec.cloudlet, "n/" + n.metadata.name);
  }
  const of = chains.find((c) => nameOf(c) === chosen);
  const deployments = of ? (of.spec.through ?? []).map((e: any) => deploymentOf(of, e)) : [];
  for (const i of instances) {
    if (collapsed && !deployments.includes(i.spec.deployment)) continue;
    const state = i.status?.state as string;
    const id = "i/" + nameOf(i);
    put(id, { title: i.metadata.name, kind: state, instance: nameOf(i), to: `/instance/${nameOf(i)}` },
      "instance " + (state === "ready" ? "" : state === "failed" || state === "unready" ? "broken" : "waits"));
    const node = nodes.find((n) => n.metadata.name === i.spec.node);
    join(collapsed ? "c/" + node?.spec.cloudlet : "n/" + i.spec.node, id, deployments.includes(i.spec.deployment));
  }
  dagre.layout(g);
  for (const n of flow) {
    const at = g.node(n.id);
    n.position = { x: at.x - at.width / 2, y: at.y - at.height / 2 };
  }
  return { nodes: flow, edges };
}

function label(d: Drawing, now?: Traffic): Node[] {
  return d.nodes.map((n) => {
    const c = n.data.instance ? now?.instances[n.data.instance as string] : n.data.node ? now?.nodes[n.data.node as string] : undefined;
    return { ...n, sourcePosition: "right" as never, targetPosition: "left" as never, style: { width },
      data: { ...n.data, label: <div><b>{n.data.title as string}</b><span className="kind">{n.data.kind as string}</span>
        <div className="small">{c ? bits(c.bits) : " "} <Dropped of={c} /></div></div> } };
  });
}
