// Data that goes on: objects are read anew when the watch says that one changed, traffic and
// notifications come as streams.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState, useSyncExternalStore } from "react";
import { get, Item, lines, list, Notification, Pending, Traffic } from "./api";

export function useList(kinds: string): { items: Item[]; error: Error | null; loading: boolean } {
  const q = useQuery({ queryKey: [kinds], queryFn: ({ signal }) => list(kinds, signal) });
  return { items: q.data ?? [], error: q.error, loading: q.isLoading };
}

export function useUnconfirmed(): Pending[] {
  const q = useQuery({ queryKey: ["unconfirmed"], queryFn: async () => (await get("/v1/confirm")) ?? [], refetchInterval: slower(5000) });
  return Array.isArray(q.data) ? q.data : (q.data?.items ?? []);
}

/** slower is how often something is asked anew: seldom while it is not answered. */
export const slower = (ms: number) => (q: { state: { error: unknown } }) => (q.state.error ? 15_000 : ms);

/** again runs a stream, and runs it again a while after it has ended: the longer, the more often
 * it ended soon. */
function again(run: (signal: AbortSignal) => Promise<unknown>, lost: (why: string) => void): () => void {
  const stop = new AbortController();
  (async () => {
    for (let wait = 1500; !stop.signal.aborted;) {
      const begun = Date.now();
      try { await run(stop.signal); lost("the server ended the stream"); } catch (e) { if (!stop.signal.aborted) lost((e as Error).message); }
      wait = Date.now() - begun > 5000 ? 1500 : Math.min(2 * wait, 15_000);
      await new Promise((r) => setTimeout(r, wait));
    }
  })();
  return () => stop.abort();
}

/** useWatch keeps all lists fresh; it says what is wrong with the connection, or nothing. */
export function useWatch(): string {
  const client = useQueryClient();
  const [lost, setLost] = useState("");
  useEffect(() => {
    const due = new Set<string>();
    let timer = 0;
    const refresh = () => { timer = 0; for (const k of due) client.invalidateQueries({ queryKey: [k] }); due.clear(); };
    const stop = again(async (signal) => {
      await lines<{ key?: { kind: string } }>("/v1/watch", signal, (e) => {
        setLost("");
        if (!e.key) return;
        due.add(plural(e.key.kind));
        timer ||= window.setTimeout(refresh, 200);
      }, JSON.parse, () => { setLost(""); client.invalidateQueries(); });
    }, setLost);
    return () => { stop(); clearTimeout(timer); };
  }, [client]);
  return lost;
}

export const plural = (kind: string) => (kind.toLowerCase() === "hosts" ? "hosts" : kind.toLowerCase() + "s");

const kept = 600;
let samples: Traffic[] = [];
const readers = new Set<() => void>();
let endTraffic: (() => void) | undefined;

function subscribe(changed: () => void) {
  readers.add(changed);
  endTraffic ??= again((signal) => lines<Traffic>("/v1/traffic", signal, (t) => {
    if (samples.length && t.time <= samples[samples.length - 1].time) return;
    samples = [...samples.slice(1 - kept), t];
    for (const r of readers) r();
  }), () => {});
  return () => {
    readers.delete(changed);
    if (readers.size === 0) { endTraffic?.(); endTraffic = undefined; }
  };
}

/** useTraffic is what was carried in the last ten minutes, the latest last. */
export const useTraffic = (): Traffic[] => useSyncExternalStore(subscribe, () => samples);

export function useNotifications(instance = ""): Notification[] {
  const [all, setAll] = useState<Notification[]>([]);
  useEffect(() => {
    setAll([]);
    const seen = new Set<string>();
    return again((signal) => lines<Notification>(`/v1/notifications?follow=true&limit=200&instance=${encodeURIComponent(instance)}`,
      signal, (n) => {
        if (seen.has(n.id)) return;
        seen.add(n.id);
        setAll((old) => [n, ...old].slice(0, 1000));
      }), () => {});
  }, [instance]);
  return all;
}
