// A shell in an instance, on a page of its own: what draws it needs another policy than the rest.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import "./terminal.css";

const instance = new URLSearchParams(location.search).get("instance") ?? "";
document.title = `${instance} · onpath`;
document.getElementById("title")!.textContent = `A shell in ${instance}`;
const screen = new Terminal({ cursorBlink: true, fontSize: 14, screenReaderMode: true });
const fit = new FitAddon();
screen.loadAddon(fit);
screen.open(document.getElementById("terminal")!);
fit.fit();

const socket = new WebSocket(`ws://${location.host}/terminal/${instance.split("/").map(encodeURIComponent).join("/")}`,
  ["onpath-terminal", localStorage.getItem("key") ?? "none"]);
socket.binaryType = "arraybuffer";
const size = () => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ rows: screen.rows, columns: screen.cols })); };
socket.onopen = () => { size(); screen.focus(); };
socket.onmessage = (m) => screen.write(new Uint8Array(m.data as ArrayBuffer));
socket.onclose = (e) => screen.write(`\r\n${e.reason || "the connection is gone"}\r\n`);
const bytes = new TextEncoder();
const piece = 16 * 1024; // of a paste: messages have a largest size
screen.onData((text) => {
  const typed = bytes.encode(text);
  for (let at = 0; at < typed.length && socket.readyState === WebSocket.OPEN; at += piece) socket.send(typed.subarray(at, at + piece));
});
window.addEventListener("resize", () => { fit.fit(); size(); });
