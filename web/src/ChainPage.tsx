// One chain: what it selects, its elements and their instances, what they carry and drop.
import { useNavigate, useParams } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { conditionOf, deploymentOf, Element, elementName, get, Item, nameOf, send, Traffic } from "./api";
import { useList, useTraffic } from "./live";
import { Plot } from "./Plot";
import { bits, change, Conditions, Dropped, Failure, instanceLink, Link, packets, State, useAction } from "./parts";

export const endText = (e: any): string =>
  typeof e === "string" ? e : e?.any ? "any" : e?.hosts ? `hosts ${e.hosts}` : e?.deployment ? `deployment ${e.deployment}` : (e?.prefixes ?? []).join(", ") || "any";

export const selectText = (list?: any[]) =>
  !list?.length ? "all" : list.map((s) => [s.protocol ?? "any", s.sourcePorts && `from port ${s.sourcePorts.join(", ")}`,
    s.destinationPorts && `to port ${s.destinationPorts.join(", ")}`].filter(Boolean).join(" ")).join("; ");

export function ChainPage() {
  const { tenant, name } = useParams({ strict: false }) as { tenant: string; name: string };
  const { items, loading } = useList("chains");
  const { items: instances } = useList("instances");
  const { items: hosts } = useList("hosts");
  const { items: nodes } = useList("nodes");
  const chain = items.find((c) => c.metadata.tenant === tenant && c.metadata.name === name);
  const traffic = useTraffic();
  const { run, busy, failure } = useAction();
  const go = useNavigate();
  const verdict = useQuery({ queryKey: ["verify", tenant, name, chain?.metadata.version], enabled: !!chain,
    queryFn: () => get(`/v1/verify?chain=${encodeURIComponent(`${tenant}/${name}`)}`) });
  if (!chain) return <p className="page">{loading ? "Loading…" : `There is no chain ${tenant}/${name} any more.`}</p>;
  const full = nameOf(chain);
  const now = traffic[traffic.length - 1];
  const off = !!chain.spec.disabled;
  const element = (k: number, e: Element) => (
    <button disabled={busy} aria-label={`${e.disabled ? "Enable" : "Disable"} ${elementName(e)}`}
      onClick={() => window.confirm(e.disabled ? `Enable ${elementName(e)}? New flows of chain ${full} cross it at once.` : `Disable ${elementName(e)}? New flows of chain ${full} pass it by at once; those that cross it go on.`) &&
        run(() => change(chain, { ...chain.spec, through: chain.spec.through.map((x: Element, i: number) => (i === k ? { ...e, disabled: !e.disabled || undefined } : x)) }))}>
      {e.disabled ? "Enable" : "Disable"}</button>
  );
  const remove = async () => {
    if (!window.confirm(`Delete chain ${full}? Flows in progress end in peace.`)) return;
    if (await run(() => send("DELETE", `/v1/chains/${full}`))) go({ to: "/" } as never);
  };
  return (
    <div className="page">
      <h1>Chain {full} <State of={off ? "disabled" : chain.status?.active ? "active" : "not active"} /></h1>
      <div className="actions">
        <Link to="/build/$tenant/$name" params={{ tenant, name }} className="button">Change</Link>
        <button disabled={busy} onClick={() => window.confirm(`${off ? "Enable" : "Disable"} chain ${full}? Its traffic ${off ? "crosses" : "passes by"} ${(chain.spec.through ?? []).map(elementName).join(", ")} at once.`) && run(() => change(chain, { ...chain.spec, disabled: !off || undefined }))}>{off ? "Enable" : "Disable"}</button>
        <Link to="/why" search={packetOf(chain, hosts, nodes)} className="button">Why does a packet…?</Link>
        <button disabled={busy} className="danger" onClick={remove}>Delete</button>
      </div>
      <Failure of={failure} />
      <p className="way">
        <b>{endText(chain.spec.from)}</b> {selectText(chain.spec.select) !== "all" && <>({selectText(chain.spec.select)}) </>}
        {(chain.spec.through ?? []).map((e: Element, i: number) => <span key={i}> → {elementName(e)}{e.mode === "mirror" && " (copy)"}</span>)}
        {" → "}<b>{endText(chain.spec.to)}</b>
      </p>
      <p>{conditionOf(chain, "Active")?.message}</p>
      <Plot title="What enters the chain" of={traffic.map((t) => [t.time, t.chains[full]?.bits ?? 0])} />
      <table>
        <thead><tr><th>Element</th><th>Takes</th><th>Instance</th><th>Node</th><th>State</th><th className="n">Is given</th><th>Drops</th></tr></thead>
        <tbody>{(chain.spec.through ?? []).flatMap((e: Element, k: number) => rows(chain, e, k, instances, now, element))}</tbody>
      </table>
      {chain.spec.scaling && <Story of={chain.status?.scaling} within={chain.spec.scaling.elements} />}
      <h2>Proof</h2>
      <Proof of={verdict.data} />
      <h2>Conditions</h2>
      <Conditions of={chain} />
    </div>
  );
}

/** packetOf is a packet that the chain selects, as far as it names addresses: what Why? is asked. */
function packetOf(chain: Item, hosts: Item[], nodes: Item[]) {
  const first = (e: any): string => {
    const h = e?.hosts && hosts.find((x) => x.metadata.tenant === chain.metadata.tenant && x.metadata.name === e.hosts);
    const list = e?.prefixes ?? h?.spec.virtual ?? h?.spec.addresses ?? nodes.find((n) => n.metadata.name === h?.spec.node)?.status?.addresses ?? [];
    return [list].flat().map((a: string) => a.split("/")[0])[0] ?? "";
  };
  const s = chain.spec.select?.[0] ?? {};
  return { src: first(chain.spec.from), dst: first(chain.spec.to), protocol: s.protocol ?? "tcp", port: String(s.destinationPorts?.[0] ?? (s.protocol === "icmp" ? "" : "80")).split("-")[0] };
}

/** Brief is a text with the long numbers of images cut short. */
function Brief({ text }: { text?: string }) {
  return <span title={text}>{text?.replace(/(sha256:[0-9a-f]{8})[0-9a-f]{20,}/g, "$1…")}</span>;
}

function rows(chain: Item, e: Element, k: number, instances: Item[], now: Traffic | undefined, button: (k: number, e: Element) => React.ReactNode) {
  const own = instances.filter((i) => i.metadata.tenant === chain.metadata.tenant && i.spec.deployment === deploymentOf(chain, e));
  const status = chain.status?.elements?.[k];
  const head = (span: number) => <><td rowSpan={span}>{k + 1}. <b>{elementName(e)}</b> {e.mode === "mirror" && "(copy)"} {e.disabled && <State of="disabled" />} {button(k, e)}</td>
    <td rowSpan={span}>{selectText(e.select)}</td></>;
  if (own.length === 0) return [<tr key={k}>{head(1)}<td colSpan={5} className={e.disabled ? "" : "bad"}>no instance{status?.message && ": " + status.message}</td></tr>];
  return own.map((i, n) => {
    const c = now?.instances[nameOf(i)];
    return (
      <tr key={`${k}-${nameOf(i)}`}>
        {n === 0 && head(own.length)}
        <td>{instanceLink(nameOf(i), i.metadata.name)}</td><td>{i.spec.node}</td><td><State of={i.status?.state} /> <Brief text={i.status?.message} /></td>
        <td className="n">{bits(c?.bits)}, {packets(c?.packets)}</td><td><Dropped of={c} /></td>
      </tr>
    );
  });
}

/** Story is what the scaler has done, the latest first. */
function Story({ of, within }: { of: any; within?: Record<string, { min?: number; max?: number }> }) {
  const numbers = Object.entries(of?.wanted ?? {}).map(([name, n]) => `${n} ${name}` + (within?.[name] ? ` (${within[name].min ?? 1} to ${within[name].max ?? "any"})` : ""));
  const trial = Object.entries(of?.trial?.to ?? {}).map(([name, n]) => `${name} ${of.trial.from?.[name]} → ${n}`);
  const decisions = [...(of?.decisions ?? [])].reverse();
  return (
    <>
      <h2>Scaling</h2>
      <p><State of={of?.phase} /> {of?.message}</p>
      <p>{numbers.join(", ")}{trial.length > 0 && <>; on trial: {trial.join(", ")}</>}</p>
      {decisions.length > 0 && <div className="wide"><table>
        <thead><tr><th>Time</th><th>Took</th><th>Decision</th><th className="n">Costs an hour</th></tr></thead>
        <tbody>{decisions.map((d: any) => (
          <tr key={d.time} className={d.kept ? "" : "vain"}><td>{new Date(d.time).toLocaleString()}</td><td>{d.took?.replace(/(\.\d)\d+/, "$1")}</td><td>{d.text}</td><td className="n">{d.cost}</td></tr>))}</tbody>
      </table></div>}
    </>
  );
}

function Proof({ of }: { of: any }) {
  const p = of?.proof?.chains?.[0] ?? of?.chains?.[0];
  if (!p) return <p>Not known yet.</p>;
  return (
    <>
      <p><State of={p.verdict} /> {p.reason}</p>
      {p.counterexample && <p className="bad">{p.counterexample.message}</p>}
    </>
  );
}
