// Which way a packet takes, hop by hop, and which hop eats it.
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { get, Hop, Trace } from "./api";
import { slower } from "./live";
import { chainLink, Failure, instanceLink } from "./parts";

const numbers: Record<string, number> = { tcp: 6, udp: 17, icmp: 1 };

export function WhyPage() {
  const asked = useSearch({ strict: false }) as Record<string, string>;
  const [form, setForm] = useState({ src: "", dst: "", protocol: "tcp", port: "", sport: "" });
  const go = useNavigate();
  useEffect(() => { setForm({ src: "", dst: "", protocol: "tcp", port: "", sport: "", ...clean(asked) }); }, [JSON.stringify(asked)]);
  const full = !!asked.src && !!asked.dst;
  const q = useQuery({
    queryKey: ["trace", asked], enabled: full, refetchInterval: slower(1000), retry: false,
    queryFn: async (): Promise<Trace> => get("/v1/trace?" + new URLSearchParams({
      src: asked.src, dst: asked.dst, protocol: String(numbers[asked.protocol] ?? asked.protocol ?? 6),
      srcPort: String(asked.sport || 0), dstPort: String(asked.port || 0) })),
  });
  const grows = useGrowth(q.data, JSON.stringify(asked));
  const field = (k: keyof typeof form, title: string, hint: string) => (
    <label>{title} <input value={form[k]} placeholder={hint} onChange={(e) => setForm({ ...form, [k]: e.target.value })} /></label>
  );
  return (
    <div className="page">
      <h1>Why does a packet get through, or not?</h1>
      <form className="fields" onSubmit={(e) => { e.preventDefault(); go({ to: "/why", search: form } as never); }}>
        {field("src", "From", "an IP address")}{field("dst", "To", "an IP address")}
        <label>Protocol <select value={form.protocol} onChange={(e) => setForm({ ...form, protocol: e.target.value })}>
          {Object.keys(numbers).map((n) => <option key={n}>{n}</option>)}</select></label>
        {field("port", "Port", "80")}{field("sport", "From port", "any")}
        <button className="main">Show its way</button>
      </form>
      <Failure of={q.error} />
      {q.data && (
        <>
          <p role="status">{headline(q.data)}
            {!!q.data.chains?.length && <> {q.data.chains.length > 1 ? "Its chains:" : "Its chain:"}{q.data.chains.map((c) => <span key={c}> {chainLink(c)}</span>)}.</>}</p>
          {q.data.warnings?.map((w) => <p className="bad" key={w.text}>{w.text}</p>)}
          <div className="columns">
            <Hops title="There" of={q.data.forward ?? []} grows={grows} />
            <Hops title="And back" of={q.data.reverse ?? []} grows={grows} />
          </div>
        </>
      )}
    </div>
  );
}

/** headline says in a sentence or two what became of the flow. */
function headline(t: Trace) {
  const hops = t.forward ?? [];
  if (!t.live) return t.chains?.length ? "There is no such flow now. A new one would go this way, by the rules." : "There is no such flow now, and no chain selects a new one.";
  const at = hops.findIndex((h) => h.unsure || h.ends || h.kind === "drop");
  if (at < 0) return "This flow is live. The way below is what the nodes see of it.";
  const place = hops[at].name || hops[at].node;
  if (hops[at].unsure) return `This flow is live. How it goes on behind ${place} cannot be told: what follows there is the plan.`;
  return `This flow ends at ${place}: nothing of it is seen behind.`;
}

const clean = (o: Record<string, unknown>) => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, String(v)]));

const words: Record<string, string> = { edge: "comes in at the edge of", exit: "leaves at the edge of", tunnel: "tunnel", kernel: "ordinary forwarding", drop: "ends here", element: "" };

/** lost are the drops that a hop counts, of all flows; what leaves there was dropped nowhere. */
const lost = (h: Hop) => (h.kind === "exit" ? [] : Object.entries(h.counters?.dropped ?? {}).filter(([why, n]) => n > 0 && why !== "mirror"));
const dropKey = (h: Hop, why: string) => `${h.node} ${h.vport} ${why}`;

/** useGrowth tells which drops have grown within the last seconds. */
function useGrowth(of: Trace | undefined, asked: string) {
  const seen = useRef({ asked, drops: new Map<string, { n: number; grew: number }>() });
  if (seen.current.asked !== asked) seen.current = { asked, drops: new Map() };
  const drops = seen.current.drops, now = Date.now();
  for (const h of [...(of?.forward ?? []), ...(of?.reverse ?? [])]) {
    for (const [why, n] of lost(h)) {
      const k = dropKey(h, why), old = drops.get(k);
      if (!old || n !== old.n) drops.set(k, { n, grew: old && n > old.n ? now : 0 });
    }
  }
  return (h: Hop, why: string) => now - (drops.get(dropKey(h, why))?.grew ?? 0) < 5000;
}

type Grows = (h: Hop, why: string) => boolean;

/** eats reports whether a hop drops packets: it says so, the flow ends there, or drops grow and
 * nothing of the flow is seen behind it. */
const eats = (hops: Hop[], i: number, grows: Grows) => hops[i].kind === "drop" || hops[i].ends ||
  (!hops.slice(i + 1).some((h) => h.live) && lost(hops[i]).some(([why]) => grows(hops[i], why)));

/** carried is what all flows brought to a hop and took from it: a data path counts what comes
 * from an instance as in, and what it hands it as out. */
function carried(h: Hop) {
  if (!h.counters) return "";
  const { in: { packets: i }, out: { packets: o } } = h.counters;
  return h.kind === "element" ? `is given ${o}, sends ${i}` : h.kind === "exit" ? `leave ${o}` : `come in ${i}`;
}

function Hops({ title, of, grows }: { title: string; of: Hop[]; grows: Grows }) {
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      {of.length > 0 && <div className="hop small"><span /><span>packets of this flow</span><span>of all flows, since counting began</span></div>}
      <ol className="hops">
        {of.map((h, i) => (
          <li key={i} className={h.kind + (eats(of, i, grows) ? " eats" : "")}>
            <div className="hop">
              <div>
                {h.kind === "element" && h.name ? instanceLink(h.name) : <b>{words[h.kind] ?? h.kind} {h.kind === "tunnel" ? h.name : h.node}</b>}
                {h.kind === "element" && <> element {h.element + 1} on {h.node}{h.mode === "mirror" && ", gets a copy"}</>}
                {h.state && h.state !== "ready" && <span className="bad"> {h.state}</span>}
              </div>
              <span className="small">{h.flow ? h.flow.packets : "–"}</span>
              <span className="small">{carried(h) || "–"}
                {lost(h).map(([why, n]) => <div key={why}>{grows(h, why) ? <b className="bad">drops now: {why}, {n} by now</b> : <>dropped before: {n} ({why})</>}</div>)}
              </span>
            </div>
            {h.message && <div>{h.message}</div>}
            {h.candidates && !h.name && <div>one of {h.candidates.join(", ")}</div>}
            {h.ends && <b className="bad">nothing of this flow goes on from here</b>}
          </li>
        ))}
      </ol>
      {of.length === 0 && <p>Nothing is known.</p>}
    </section>
  );
}
