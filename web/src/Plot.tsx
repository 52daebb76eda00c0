// A rate over the last ten minutes.
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { bits, local } from "./parts";

export function Plot({ title, of }: { title: string; of: [string, number][] }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const data: uPlot.AlignedData = [of.map(([t]) => Date.parse(t) / 1000), of.map(([, v]) => v)];
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--accent").trim();
    const axis = { stroke: ink, grid: { stroke: style.getPropertyValue("--line").trim() } };
    plot.current = new uPlot({
      width: box.current!.clientWidth || 600, height: 140, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_u, _min, max) => [0, Math.max(max * 1.1, 1000)] } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 30, 60, 120], space: 90, values: (_u, list) => list.map((v) => local(v * 1000).slice(11)) }, { ...axis, size: 90, values: (_u, list) => list.map((v) => bits(v)) }],
      series: [{}, { stroke: line, width: 2, fill: line + "22", points: { show: false } }],
    }, data, box.current!);
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: box.current!.clientWidth, height: 140 }));
    fit.observe(box.current!);
    return () => { fit.disconnect(); plot.current?.destroy(); };
  }, []);
  useEffect(() => { plot.current?.setData(data); }, [of.length, of[of.length - 1]?.[0]]);
  const last = of[of.length - 1]?.[1] ?? 0;
  return <figure aria-label={`${title}: ${bits(last)} now`}><figcaption>{title}: <b>{bits(last)}</b></figcaption><div ref={box} /></figure>;
}
