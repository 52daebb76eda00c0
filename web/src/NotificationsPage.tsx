// What functions told their owners; one that names a flow leads to its way.
import { Notification } from "./api";
import { useNotifications } from "./live";
import { instanceLink, Link, local } from "./parts";

export function NotificationsPage() {
  const all = useNotifications();
  return (
    <div className="page">
      <h1>Notifications</h1>
      <p>What functions tell their owners: <code>POST $ONPATH_NOTIFY/notify</code> inside of a container.</p>
      <NotificationList of={all} />
    </div>
  );
}

/** flowOf is the flow that a notification names by its fields, as the IDS does. */
function flowOf(n: Notification) {
  const f = n.fields ?? {};
  if (!f.src_ip || !f.dest_ip) return undefined;
  return { src: f.src_ip, dst: f.dest_ip, protocol: (f.proto ?? "tcp").toLowerCase(), sport: f.src_port ?? "", port: f.dest_port ?? "" };
}

export function NotificationList({ of }: { of: Notification[] }) {
  if (of.length === 0) return <p>None yet.</p>;
  return (
    <ul className="notifications">
      {of.map((n) => {
        const flow = flowOf(n);
        return (
          <li key={n.id} className={n.level}>
            <div><span className="level">{n.level}</span> <b>{n.title}</b> <time>{local(n.time)}</time></div>
            {n.text && <p>{n.text}</p>}
            <div className="small">{instanceLink(`${n.tenant}/${n.instance}`)} on {n.node}
              {Object.entries(n.fields ?? {}).map(([k, v]) => <span key={k} className="field"> {k}: <b>{v}</b></span>)}</div>
            {flow && <Link to="/why" search={flow} className="button">Show the flow</Link>}
          </li>
        );
      })}
    </ul>
  );
}
