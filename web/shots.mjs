// Every page in light and dark at some widths: pictures for looking at them, what axe finds, what
// scrolls sideways, what Tab does not reach, what the browser complains of.
// node shots.mjs ADDRESS FOLDER [WIDTHS [PATHS]]
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const [address, folder, widths = "1024,1920", some] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
const context = await browser.newContext({ viewport: { width: 1920, height: 1080 }, bypassCSP: true });
const page = await context.newPage();
const said = [];
page.on("console", (m) => { if (m.type() === "error" || m.type() === "warning") said.push(m.text()); });
page.on("pageerror", (e) => said.push("error: " + e.message));
await page.goto(address);
await page.waitForSelector("nav");
const base = new URL(page.url()).origin;
/** unreached are the controls that Tab passes by. */
const unreached = async () => {
  await page.evaluate(() => {
    const off = (e) => e.disabled || !e.getClientRects().length;
    window.controls = new Set([...document.querySelectorAll("a[href], button, input, select, textarea, .react-flow__node, [tabindex='0']")].filter((e) => !off(e)));
    document.activeElement?.blur();
    document.addEventListener("focusin", (e) => window.controls.delete(e.target));
  });
  const most = await page.evaluate(() => window.controls.size);
  for (let i = 0; i < most + 20 && await page.evaluate(() => window.controls.size); i++) await page.keyboard.press("Tab");
  return page.evaluate(() => [...window.controls].filter((e) => e.isConnected).map((e) => e.outerHTML.slice(0, 120)));
};
const at = async (name, path, width, scheme) => {
  await page.setViewportSize({ width, height: 1000 });
  await page.emulateMedia({ colorScheme: scheme });
  await page.goto(base + path);
  await page.waitForTimeout(900);
  const height = await page.evaluate(() => Math.min(document.documentElement.scrollHeight, 1600));
  await page.screenshot({ path: `${folder}/${name}-${width}-${scheme}.png`, fullPage: true, clip: { x: 0, y: 0, width, height } });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  if (wide) said.push(`${path} scrolls sideways at ${width}`);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  if (scheme === "light") for (const lost of await unreached()) said.push(`${path}: Tab does not reach ${lost}`);
  for (const v of found.violations) said.push(`axe: ${path} ${scheme} ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target).join(" ")}`);
};
const key = await page.evaluate(() => localStorage.getItem("key"));
const items = async (kinds) => (await (await context.request.get(`${base}/v1/${kinds}`, { headers: { "X-Onpath-Console": key } })).json()).items ?? [];
const kinds = ["chains", "instances", "nodes", "functions", "services", "reservations", "accelerators", "leases", "tenants", "prefixclaims", "secrets", "webhooks", "events", "faults"];
const pages = { map: "/", build: "/build", why: "/why", notifications: "/notifications", ...Object.fromEntries(kinds.map((k) => [k, "/list/" + k])) };
const [[instance], [chain]] = [await items("instances"), await items("chains")];
const host = (await items("nodes")).find((n) => n.spec.uplinks?.some((u) => u.attach === "host"));
const of = (o) => `${o.metadata.tenant}/${o.metadata.name}`;
if (instance) pages.instance = "/instance/" + of(instance);
if (chain) Object.assign(pages, { chain: "/chain/" + of(chain), change: "/build/" + of(chain) });
if (host) pages.host = "/host/" + host.metadata.name;
for (const [name, path] of some ? some.split(",").map((p) => [p.replace(/\W+/g, "-"), p]) : Object.entries(pages)) {
  for (const width of widths.split(",").map(Number)) for (const scheme of ["light", "dark"]) await at(name, path, width, scheme);
}
console.log([...new Set(said)].join("\n") || "nothing was said");
await browser.close();
process.exit(said.length ? 1 : 0);
