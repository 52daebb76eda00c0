// Which way a packet takes, hop by hop, and which hop eats it.
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { get, Hop, Trace } from "./api";
import { chainLink, Failure, instanceLink } from "./parts";

const numbers: Record<string, number> = { tcp: 6, udp: 17, icmp: 1 };

export function WhyPage() {
  const asked = useSearch({ strict: false }) as Record<string, string>;
  const [form, setForm] = useState({ src: "", dst: "", protocol: "tcp", port: "", sport: "" });
  const go = useNavigate();
  useEffect(() => { setForm({ src: "", dst: "", protocol: "tcp", port: "", sport: "", ...clean(asked) }); }, [JSON.stringify(asked)]);
  const full = !!asked.src && !!asked.dst;
  const q = useQuery({
    queryKey: ["trace", asked], enabled: full, refetchInterval: 1000, retry: false,
    queryFn: async (): Promise<Trace> => get("/v1/trace?" + new URLSearchParams({
      src: asked.src, dst: asked.dst, protocol: String(numbers[asked.protocol] ?? asked.protocol ?? 6),
      srcPort: String(asked.sport || 0), dstPort: String(asked.port || 0) })),
  });
  const field = (k: keyof typeof form, title: string, hint: string) => (
    <label>{title} <input value={form[k]} placeholder={hint} onChange={(e) => setForm({ ...form, [k]: e.target.value })} /></label>
  );
  return (
    <div className="page">
      <h1>Why does a packet get through, or not?</h1>
      <form className="fields" onSubmit={(e) => { e.preventDefault(); go({ to: "/why", search: form } as never); }}>
        {field("src", "From", "10.1.0.11")}{field("dst", "To", "10.9.0.2")}
        <label>Protocol <select value={form.protocol} onChange={(e) => setForm({ ...form, protocol: e.target.value })}>
          {Object.keys(numbers).map((n) => <option key={n}>{n}</option>)}</select></label>
        {field("port", "Port", "80")}{field("sport", "From port", "any")}
        <button className="main">Show its way</button>
      </form>
      <Failure of={q.error} />
      {q.data && (
        <>
          <p role="status">{q.data.live ? "A flow of it is live: what entries say." : "No flow of it is live: what rules say of a new one."}
            {!!q.data.chains?.length && <> It crosses {q.data.chains.map((c) => <span key={c}> {chainLink(c)}</span>)}.</>}</p>
          {q.data.warnings?.map((w) => <p className="bad" key={w.text}>{w.text}</p>)}
          <div className="columns">
            <Hops title="There" of={q.data.forward ?? []} />
            <Hops title="And back" of={q.data.reverse ?? []} />
          </div>
        </>
      )}
    </div>
  );
}

const clean = (o: Record<string, unknown>) => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, String(v)]));

const words: Record<string, string> = { edge: "comes in at", exit: "leaves at", tunnel: "tunnel", kernel: "ordinary forwarding", drop: "ends here", element: "" };

/** ends reports whether a live flow comes to an element and nothing of it is seen to go on. */
function ends(hops: Hop[], i: number) {
  const h = hops[i];
  return i === hops.length - 1 && h.kind === "element" && h.mode !== "mirror" && h.live;
}

/** eats reports whether a hop drops packets: it says so, or the flow ends there. */
const eats = (hops: Hop[], i: number) => hops[i].kind === "drop" || ends(hops, i) ||
  Object.entries(hops[i].counters?.dropped ?? {}).some(([why, n]) => n > 0 && why !== "mirror");

function Hops({ title, of }: { title: string; of: Hop[] }) {
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      <ol className="hops">
        {of.map((h, i) => (
          <li key={i} className={h.kind + (eats(of, i) ? " eats" : "")}>
            {h.kind === "element" && h.name ? instanceLink(h.name) : <b>{words[h.kind] ?? h.kind} {h.kind === "tunnel" ? h.name : h.node}</b>}
            {h.kind === "element" && <> element {h.element + 1} on {h.node}{h.mode === "mirror" && ", gets a copy"}</>}
            {h.state && h.state !== "ready" && <span className="bad"> {h.state}</span>}
            {h.message && <div>{h.message}</div>}
            {h.candidates && !h.name && <div>one of {h.candidates.join(", ")}</div>}
            <div className="small">
              {h.flow && <>this flow: {h.flow.packets} packets </>}
              {ends(of, i) && <b className="bad">nothing of this flow goes on from here </b>}
              {h.counters && <>in {h.counters.in.packets}, out {h.counters.out.packets} </>}
              {Object.entries(h.counters?.dropped ?? {}).filter(([why]) => why !== "mirror").map(([why, n]) => <b className="bad" key={why}>dropped {n} ({why}) </b>)}
            </div>
          </li>
        ))}
      </ol>
      {of.length === 0 && <p>Nothing is known.</p>}
    </section>
  );
}
