// What stands around every page: where one can go, what waits for a confirmation, what is wrong.
import { Outlet } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { Pending, send } from "./api";
import { useUnconfirmed, useWatch } from "./live";
import { Failure, Link, useAction } from "./parts";
import { tables } from "./TablePage";

export function Frame() {
  const lost = useWatch();
  const waiting = useUnconfirmed();
  const [said, setSaid] = useState("");
  const here = { className: "here" };
  useEffect(() => {
    if (!said) return;
    const t = setTimeout(() => setSaid(""), 10_000);
    return () => clearTimeout(t);
  }, [said]);
  return (
    <>
      <a className="skip" href="#content">Skip to the page</a>
      <header>
        <nav aria-label="Pages">
          <Link to="/" className="logo" title="The map">onpath</Link>
          <Link to="/" activeProps={here}>Map</Link>
          <Link to="/build" activeProps={here}>Build a chain</Link>
          <Link to="/why" activeProps={here}>Why?</Link>
          <Link to="/notifications" activeProps={here}>Notifications</Link>
          <span className="gap" />
          {Object.entries(tables).map(([kinds, [title]]) => <Link key={kinds} to="/list/$kinds" params={{ kinds }} activeProps={here}>{title}</Link>)}
        </nav>
      </header>
      <div className="top">
        {waiting.map((p) => <Waiting key={p.id} of={p} say={setSaid} />)}
        {said && <p className="waiting good" role="status">{said}</p>}
        {lost && <p className="lost" role="status">No connection: {lost}. What is shown is old.</p>}
      </div>
      <main id="content" className={lost && "old"}><Outlet /></main>
    </>
  );
}

function Waiting({ of, say }: { of: Pending; say: (what: string) => void }) {
  const [now, setNow] = useState(Date.now());
  const { run, busy, failure } = useAction();
  useEffect(() => {
    const t = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(t);
  }, []);
  const left = Math.max(0, Math.ceil((Date.parse(of.deadline) - now) / 1000));
  const what = of.changes?.map((c) => `${c.action} ${c.kind} ${c.name}`).join(", ");
  const answer = async (method: string, done: string) => { if (await run(() => send(method, `/v1/confirm/${of.id}`))) say(`${done}: ${what}`); };
  return (
    <div className="waiting" role="status">
      <b>{left} s</b> until this change is taken back: {what}
      <button disabled={busy} className="main" onClick={() => answer("POST", "Kept")}>Keep it</button>
      <button disabled={busy} onClick={() => answer("DELETE", "Taken back")}>Take it back now</button>
      <Failure of={failure} />
    </div>
  );
}
