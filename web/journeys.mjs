// What people do, in a real browser against a network that runs (onpath demo attach --console):
// node journeys.mjs ADDRESS [NAMES]. Clicks and keys are counted, a click into each field that is
// filled as well, what is typed there apart; effects are seen in traffic between the machines of
// the lab. With KEYBOARD=1 all is done by the keyboard
// alone: Tab until the focus is there, then Enter, Space, arrows or text.
import { execFileSync } from "node:child_process";
import { chromium } from "playwright-core";
const onpath = process.env.ONPATH ?? new URL("../bin/onpath", import.meta.url).pathname;
const only = new RegExp(process.argv[3] ?? ".");
const inHost = (host, ...args) => {
  try {
    return execFileSync(onpath, ["lab", "exec", "--lab", process.env.LAB ?? "attach", host, "--", onpath, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  } catch (e) { return e.stdout || "{}"; }
};
/** open reports whether a port takes a connection of the client's. */
const open = (port) => JSON.parse(inHost("client", "demo", "probe", port, "--timeout", "700ms")).open === true;
const fetchFrom = (base) => inHost("client", "demo", "load", JSON.stringify({ base, kind: "object", objects: 1, bytes: 1, requests: 1, parallel: 1, timeout: 5e9 }));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
page.on("dialog", (d) => d.accept());
await page.goto(process.argv[2]);
await page.waitForSelector("nav");
const base = new URL(page.url()).origin;
let steps = 0, failed = 0;
const keyboard = process.env.KEYBOARD === "1";
/** reach presses Tab until the focus is at what is looked for. */
async function reach(locator) {
  await locator.waitFor({ timeout: 8000 });
  for (let i = 0; i < 400; i++) {
    if (await locator.evaluate((e) => e === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error("Tab does not reach " + locator);
}
const click = async (locator) => {
  steps++;
  if (!keyboard) return locator.click({ timeout: 8000 });
  await reach(locator);
  await page.keyboard.press(await locator.getAttribute("type") === "checkbox" ? "Space" : "Enter");
};
const choose = async (locator, value) => {
  steps += 2;
  if (!keyboard) return locator.selectOption(value);
  await reach(locator);
  for (let i = 0; i < 50 && await locator.inputValue() !== value; i++) await page.keyboard.press("ArrowDown");
};
const type = async (locator, text) => {
  steps++;
  if (!keyboard) return locator.fill(text);
  await reach(locator);
  await page.keyboard.press("Control+A");
  await page.keyboard.type(text);
};
const key = await page.evaluate(() => localStorage.getItem("key"));
const get = async (path) => (await page.request.get(base + path, { headers: { "X-Onpath-Console": key } })).json();
const until = async (what, test, ms = 40000) => {
  for (const end = Date.now() + ms; Date.now() < end; await page.waitForTimeout(200)) if (await test()) return;
  throw new Error("in vain: " + what);
};
async function journey(name, most, run) {
  if (!only.test(name)) return;
  steps = 0;
  await page.goto(base + "/");
  await page.waitForTimeout(1500);
  try {
    await run();
    const ok = steps <= most;
    if (!ok) failed++;
    console.log(`${ok ? "ok  " : "LONG"} ${name}: ${steps} of ${most}`);
  } catch (e) { failed++; console.log(`FAIL ${name}: ${String(e).split("\n")[0]}`); }
}
const chain = async (name) => (await get("/v1/chains")).items.find((c) => c.metadata.name === name);
const alerts = async () => (await (await page.request.get(base + "/v1/notifications", { headers: { "X-Onpath-Console": key } })).text()).split("\n").length;
const link = (name) => page.getByRole("link", { name, exact: true });
const button = (name) => page.getByRole("button", { name, exact: true });

await journey("attach a firewall to a host", 6, async () => {
  await click(page.locator(".react-flow__node", { hasText: "vm2" }).first());
  await click(button("Attach"));
  await until("the firewall closes port 23 and leaves 80", async () => (await chain("attached-vm2"))?.status?.active && !open("10.20.0.12:23") && open("10.20.0.12:80"));
});
await journey("detach it again", 6, async () => {
  await click(page.locator(".react-flow__node", { hasText: "vm2" }).first());
  await click(button("Detach"));
  await until("port 23 is open again", async () => !(await chain("attached-vm2")) && open("10.20.0.12:23"));
});
await journey("build a chain of three functions", 15, async () => {
  await click(link("Build a chain"));
  await type(page.getByLabel("Name"), "three");
  await choose(page.locator(".fields label", { hasText: /^To/ }).locator("select"), "prefixes");
  await type(page.getByLabel("To addresses"), "10.20.0.12");
  for (const f of ["firewall", "ids", "shaper"]) if (await button("+ " + f).count()) await click(button("+ " + f));
  await click(page.locator(".elements li", { hasText: "ids" }).getByRole("checkbox"));
  await until("the server has checked it", async () => page.getByText("create Chain three", { exact: false }).count().then(Boolean).catch(() => false) || !(await button("Apply").isDisabled()));
  await click(button("Apply"));
  await until("port 23 is closed", async () => (await chain("three"))?.status?.active && !open("10.20.0.12:23") && open("10.20.0.12:80"));
});
await journey("take back an unconfirmed change", 4, async () => {
  await click(page.locator(".waiting", { hasText: "three" }).getByRole("button", { name: "Take it back now" }).first());
  await until("port 23 is open again", async () => !(await chain("three")) && open("10.20.0.12:23"));
});
await journey("mirror a chain to an IDS", 10, async () => {
  const { kind, metadata: { name, tenant }, spec } = await chain("attached-vm1"); // it begins without an IDS
  const without = { apiVersion: "onpath/v1alpha1", kind, metadata: { name, tenant }, spec: { ...spec, through: spec.through.filter((e) => e.function !== "ids") } };
  const done = await page.request.post(base + "/v1/apply", { headers: { "X-Onpath-Console": key }, data: { objects: [without] } });
  if (!done.ok()) throw new Error(await done.text());
  await until("the chain has no IDS", async () => (await chain("attached-vm1")).spec.through.length === 1);
  await page.waitForTimeout(800);
  await click(link("default/attached-vm1"));
  await click(link("Change"));
  await page.waitForTimeout(800);
  await click(button("+ ids"));
  await click(page.locator(".elements li", { hasText: "ids" }).getByRole("checkbox"));
  await until("the server has checked it", async () => !(await button("Apply").isDisabled()));
  await click(button("Apply"));
  await until("it is so", async () => (await chain("attached-vm1")).spec.through.some((e) => e.function === "ids" && e.mode === "mirror"));
  await click(page.locator(".waiting", { hasText: "attached-vm1" }).getByRole("button", { name: "Keep it" }).last());
  const before = await alerts();
  await until("a request alerts the IDS", async () => { fetchFrom("http://10.20.0.11/admin"); return (await alerts()) > before; });
});
await journey("read an IDS alert and its flow", 6, async () => {
  await click(link("Notifications"));
  await click(link("Show the flow").first());
  await until("its way is shown", async () => (await page.locator(".hops li").count()) > 2, 10000);
});
await journey("find the hop that drops a port", 6, async () => {
  await click(link("Why?"));
  await type(page.getByLabel("From", { exact: true }), "192.0.2.10");
  await type(page.getByLabel("To", { exact: true }), "10.20.0.11");
  await type(page.getByLabel("Port", { exact: true }), "23");
  await click(button("Show its way"));
  await until("the hop is marked", async () => { open("10.20.0.11:23"); return (await page.locator(".hops li.eats", { hasText: "firewall" }).count()) > 0; }, 15000);
});
await journey("see an instance die and heal", 3, async () => {
  await click(page.locator(".react-flow__node.instance", { hasText: "firewall" }).first());
  await until("its state is shown", async () => (await page.locator("h1 .state").innerText()) === "ready", 8000);
  const name = (await page.locator("h1").innerText()).split(" ")[1];
  try {
    execFileSync(onpath, [...(process.env.SERVER ? ["--server", process.env.SERVER] : []), "exec", name, "--", "sh", "-c", "kill -9 -1; kill 1"], { stdio: "ignore" });
  } catch { /* the command dies with the instance */ }
  await until("it is seen to die and to serve again", async () => /restarts: [1-9]/.test(await page.locator("main").innerText()) && (await page.locator("h1 .state").innerText()) === "ready" && !open("10.20.0.11:23"));
});
await journey("type into a terminal", 4, async () => {
  const instance = (await get("/v1/instances")).items.find((i) => i.spec.deployment === "attached-vm1-firewall");
  await page.goto(`${base}/instance/default/${instance.metadata.name}`);
  const [terminal] = await Promise.all([page.context().waitForEvent("page"), click(link("Terminal"))]);
  await terminal.waitForSelector(".xterm-rows");
  await until("a prompt is there", async () => /[#$]/.test(await terminal.locator(".xterm-rows").innerText()), 15000);
  await terminal.keyboard.type("echo $((6*7))-here\n");
  await until("the shell answers", async () => (await terminal.locator(".xterm-rows").innerText()).includes("42-here"), 15000);
  await terminal.close();
});
console.log(failed ? `${failed} failed` : "all journeys went well");
await browser.close();
process.exit(failed ? 1 : 0);
