// A chain as a row of elements beside its YAML; either changes the other. The server's dry run
// checks it as one types; it is applied with a time to confirm.
import { useNavigate, useParams } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import { parse, stringify } from "yaml";
import { Applied, apply, Element, elementName, Entry, get, Item, nameOf, Parameter, Refused } from "./api";
import { useList } from "./live";
import { Differences, Failure, plain, useAction } from "./parts";

const kind = { apiVersion: "onpath/v1alpha1", kind: "Chain" };
const fresh = () => ({ ...kind, metadata: { name: "my-chain" }, spec: { from: "any", to: "any", through: [] as Element[] } });

export function BuilderPage() {
  const { tenant, name } = useParams({ strict: false }) as { tenant?: string; name?: string };
  const chains = useList("chains");
  const { items: functions } = useList("functions");
  const { items: hosts } = useList("hosts");
  const [text, setText] = useState(() => stringify(fresh()));
  const [tried, setTried] = useState<Applied>();
  const [refused, setRefused] = useState<unknown>();
  const [ranked, setRanked] = useState(false); // the priority is asked for once it matters
  const [seconds, setSeconds] = useState(60);
  const [done, setDone] = useState("");
  const filled = useRef(false);
  const { run, busy, failure } = useAction();
  const go = useNavigate();
  const old = chains.items.find((c) => c.metadata.name === name && c.metadata.tenant === tenant);

  useEffect(() => {
    if (!old || filled.current) return;
    filled.current = true;
    setText(stringify({ ...kind, metadata: plain(old.metadata), spec: old.spec }));
  }, [old]);

  const [chain, broken] = useMemo((): [any, string] => {
    try {
      const value = parse(text);
      return value && typeof value === "object" ? [value, ""] : [undefined, "this is no object"];
    } catch (e) { return [undefined, String(e)]; }
  }, [text]);

  const through: Element[] = Array.isArray(chain?.spec?.through) ? chain.spec.through.map((e: Element | null) => e ?? {}) : []; // half typed, too

  useEffect(() => { // as one types, a moment after
    setTried(undefined);
    setRefused(undefined);
    if (!chain || !through.length) return;
    let stale = false;
    const t = setTimeout(async () => {
      try {
        const r = await apply([chain], { dryRun: true });
        if (!stale) setTried(r);
      } catch (e) {
        if (stale) return;
        setRefused(e);
        if (e instanceof Refused && e.problems.some((p) => p.field === "spec.priority")) setRanked(true);
      }
    }, 400);
    return () => { stale = true; clearTimeout(t); };
  }, [text, old?.metadata.version]);

  const edit = (spec: object) => setText(stringify({ ...chain, spec: { ...chain.spec, ...spec } }));
  const functionOf = (e: Element) => functions.find((f) => e.function !== undefined && [nameOf(f), (chain?.metadata?.tenant ?? "default") === f.metadata.tenant && f.metadata.name].includes(e.function));
  const setElement = (i: number, e: Element | undefined) =>
    edit({ through: e ? through.map((x, k) => (k === i ? e : x)) : through.filter((_, k) => k !== i) });
  const move = (i: number, to: number) => {
    if (to < 0 || to >= through.length) return;
    const list = [...through];
    list.splice(to, 0, ...list.splice(i, 1));
    edit({ through: list });
  };
  const submit = () => run(async () => {
    const r = await apply([chain], seconds > 0 ? { confirm: `${seconds}s` } : {});
    const target = `${chain.metadata.tenant ?? "default"}/${chain.metadata.name}`;
    setTried(undefined);
    setDone(r.confirm ? "It is in force. Look whether all works, then keep it: above." : "It is in force.");
    if (!name) go({ to: "/chain/" + target } as never);
  });

  return (
    <div className="page builder">
      <h1>{name ? `Change chain ${tenant}/${name}` : "Build a chain"}</h1>
      <div className="columns">
        <section aria-label="The chain in parts">
          {chain && <>
            <div className="fields">
              {!name && <label>Name <input value={chain.metadata?.name ?? ""} onChange={(e) => setText(stringify({ ...chain, metadata: { ...chain.metadata, name: e.target.value } }))} /></label>}
              <End title="From" value={chain.spec?.from} hosts={hosts} set={(from) => edit({ from })} />
              <End title="To" value={chain.spec?.to} hosts={hosts} set={(to) => edit({ to })} />
              {(ranked || chain.spec?.priority !== undefined) && <label title="Of two chains that select the same traffic the one with the higher priority gets it">Priority
                <input type="number" value={chain.spec?.priority ?? ""} placeholder="0" style={{ width: "6em" }} onChange={(e) => { setRanked(true); edit({ priority: e.target.value === "" ? undefined : Number(e.target.value) }); }} /></label>}
            </div>
            <ol className="elements">
              {through.map((e, i) => (
                <li key={i} draggable onDragStart={(ev) => ev.dataTransfer.setData("text/element", String(i))}
                  onDragOver={(ev) => ev.preventDefault()}
                  onDrop={(ev) => {
                    ev.preventDefault();
                    const from = ev.dataTransfer.getData("text/element");
                    if (from !== "") move(Number(from), i);
                  }}>
                  <b>{elementName(e)}</b>
                  <label><input type="checkbox" checked={e.mode === "mirror"} onChange={(ev) => setElement(i, { ...e, mode: ev.target.checked ? "mirror" : undefined })} /> copy only</label>
                  <button aria-label={`Move ${elementName(e)} up`} disabled={i === 0} onClick={() => move(i, i - 1)}>↑</button>
                  <button aria-label={`Move ${elementName(e)} down`} disabled={i === through.length - 1} onClick={() => move(i, i + 1)}>↓</button>
                  <button aria-label={`Take ${elementName(e)} out`} onClick={() => setElement(i, undefined)}>✕</button>
                  <Settings of={e} function={functionOf(e)} set={(env) => setElement(i, { ...e, env })} />
                </li>
              ))}
            </ol>
            {through.length === 0 && <p>Traffic passes these functions in order. Add the first one:</p>}
            <div className="palette" role="group" aria-label="Functions to add">
              {functions.map((f) => {
                const ref = f.metadata.tenant === (chain.metadata?.tenant ?? "default") ? f.metadata.name : nameOf(f);
                return <button key={nameOf(f)} onClick={() => edit({ through: [...through, { function: ref }] })}>+ {ref}</button>;
              })}
            </div>
            <FromCatalogue there={functions.map((f) => f.metadata.name)} />
          </>}
        </section>
        <section aria-label="The chain as YAML">
          <label htmlFor="yaml">As YAML</label>
          <textarea id="yaml" spellCheck={false} value={text} rows={Math.max(16, text.split("\n").length + 1)} onChange={(e) => setText(e.target.value)} />
        </section>
      </div>
      <section aria-label="What would change" aria-live="polite" className="check">
        <h2>What would change</h2>
        {broken && <p className="bad">{broken}</p>}
        <Failure of={refused} />
        {tried && <Differences of={tried} />}
        {!broken && !tried && !refused && <p>{through.length ? "Checking…" : "Add a function, and it is said here."}</p>}
      </section>
      <div className="actions">
        <button className="main" disabled={busy || !tried} onClick={submit}>Apply</button>
        <label>and take it back after <input type="number" min={0} max={86400} value={seconds} onChange={(e) => setSeconds(Number(e.target.value))} /> s
          unless it is kept (0: at once for good)</label>
      </div>
      <Failure of={failure} />
      {done && <p role="status" className="good">{done}</p>}
    </div>
  );
}

/** FromCatalogue says how to get functions that come with onpath, and are not there yet: images are built where the command runs. */
function FromCatalogue({ there }: { there: string[] }) {
  const [entries, setEntries] = useState<Entry[]>([]);
  useEffect(() => { get("/catalogue").then(setEntries, () => {}); }, []);
  const rest = entries.filter((e) => !there.includes(e.name));
  if (!rest.length) return null;
  return (
    <details className="small" open={there.length === 0}>
      <summary>From the catalogue</summary>
      <dl>
        {rest.map((e) => (
          <div key={e.name}>
            <dt><code>{e.kind === "container" && "sudo "}onpath catalogue use {e.name}{e.parameters?.filter((p) => p.required).map((p) => ` --set ${p.name}=…`)}</code></dt>
            <dd>For {e.for}{e.parameters?.length ? ` Set: ${e.parameters.map((p) => p.name).join(", ")}.` : ""}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

/** Settings are what an element's function can be told: its variables, and which files it is given. */
function Settings({ of, function: f, set }: { of: Element; function?: Item; set: (env?: Record<string, string>) => void }) {
  if (!f) return null;
  const spec = f.spec.container ?? f.spec.ebpf ?? f.spec.relay ?? f.spec.wasm?.modules?.[0] ?? f.spec.wasm ?? {};
  const given: Record<string, string> = spec.env ?? spec.config ?? {};
  const parameters: Record<string, Parameter> = Object.fromEntries((f.spec.parameters ?? []).map((p: Parameter) => [p.name, p]));
  const names = [...new Set([...Object.keys(parameters), ...Object.keys(given), ...Object.keys(of.env ?? {})])];
  const tell = (n: string, value: string) => {
    const { [n]: _, ...rest } = of.env ?? {};
    set(value === "" && parameters[n] && !(n in given) ? rest : { ...rest, [n]: value });
  };
  const files = Object.keys({ ...spec.files, ...of.files });
  return (
    <span className="settings small">
      {names.map((n) => {
        const p = parameters[n];
        const value = of.env?.[n] ?? given[n] ?? "";
        const choices = p?.type === "boolean" ? ["true", "false"] : p?.values;
        const unset = p?.required ? "(required)" : p?.default || "(empty)";
        return <label key={n} title={[p?.description, p?.type, p?.least && `at least ${p.least}`, p?.most && `at most ${p.most}`].filter(Boolean).join(" · ")}>{n} {choices
          ? <select value={value} onChange={(e) => tell(n, e.target.value)}><option value="">{unset}</option>{choices.map((c) => <option key={c}>{c}</option>)}</select>
          : <input value={value} placeholder={unset} onChange={(e) => tell(n, e.target.value)} />}</label>;
      })}
      {files.length > 0 && <span>files: {files.join(", ")}</span>}
      {names.length + files.length === 0 && "Nothing is set: it does what it does by itself."}
    </span>
  );
}

function End({ title, value, hosts, set }: { title: string; value: any; hosts: Item[]; set: (v: any) => void }) {
  const typed = value && typeof value === "object" && value.prefixes;
  const chosen = value == null || value === "any" || value.any ? "any" : value.hosts ? "hosts " + value.hosts : "prefixes";
  return (
    <label>{title}
      <select value={chosen} onChange={(e) => {
        const v = e.target.value;
        set(v === "any" ? "any" : v === "prefixes" ? { prefixes: ["192.0.2.1"] } : { hosts: v.slice(6) });
      }}>
        <option value="any">any</option>
        {hosts.map((h) => <option key={nameOf(h)} value={"hosts " + h.metadata.name}>hosts {h.metadata.name}</option>)}
        <option value="prefixes">addresses…</option>
      </select>
      {typed && <input aria-label={title + " addresses"} value={[value.prefixes].flat().join(", ")} onChange={(e) => set({ prefixes: e.target.value.split(/[,\s]+/).filter(Boolean) })} />}
    </label>
  );
}
