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
  const here = { className: "here" };
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
      {waiting.map((p) => <Waiting key={p.id} of={p} />)}
      {lost && <p className="lost" role="status">The server is not reached: {lost}. What is shown may be old.</p>}
      <main id="content"><Outlet /></main>
    </>
  );
}

function Waiting({ of }: { of: Pending }) {
  const [now, setNow] = useState(Date.now());
  const { run, busy, failure } = useAction();
  useEffect(() => {
    const t = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(t);
  }, []);
  const left = Math.max(0, Math.ceil((Date.parse(of.deadline) - now) / 1000));
  return (
    <div className="waiting" role="status">
      <b>{left} s</b> until this change is taken back: {of.changes?.map((c) => `${c.action} ${c.kind} ${c.name}`).join(", ")}
      <button disabled={busy} className="main" onClick={() => run(() => send("POST", `/v1/confirm/${of.id}`))}>Keep it</button>
      <button disabled={busy} onClick={() => run(() => send("DELETE", `/v1/confirm/${of.id}`))}>Take it back now</button>
      <Failure of={failure} />
    </div>
  );
}
