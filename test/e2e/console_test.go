package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const wallYAML = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: wall}
spec:
  container:
    image: host
    attach: routed
    addresses: none
    capabilities: [NET_ADMIN]
    command: [sh, -c, nft -f /etc/wall.nft && exec sleep infinity]
    files:
      /etc/wall.nft:
        content: |
          table inet wall { chain forward { type filter hook forward priority filter; tcp dport %d drop; }; }
  state: none
  packets: keep
  resources: {cpu: 1m, memory: 16Mi}
  health: {exec: [nft, list, table, inet, wall], every: 1s}
`

const walledYAML = `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: walled}
spec: {from: {hosts: client}, to: {hosts: origin}, through: [{function: wall, drain: 1s}]}
`

// TestConsoleJourneys: in a browser, somebody finds the hop that drops a port, and takes back
// the change that waits for its confirmation; traffic shows both. web/journeys.mjs has more.
func TestConsoleJourneys(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no Chromium is installed")
	}
	p := openPage(ctx, t)
	s := serveTCP(t, echo)
	port := strconv.Itoa(s.port)
	open := func() bool {
		c, err := dialTCP(t, "10.9.0.2", s.port, 500*time.Millisecond)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	apply(ctx, t, fmt.Sprintf(wallYAML, s.port))
	file := filepath.Join(t.TempDir(), "walled.yaml")
	if err := os.WriteFile(file, []byte(walledYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = testbed.Onpath(context.Background(), "delete", "chain", "walled") }) // if it is still there
	if _, err := testbed.Onpath(ctx, "apply", "-f", file, "--confirm", "90s"); err != nil {
		t.Fatal(err)
	}
	active(ctx, t, "walled")
	if open() {
		t.Fatal("the port is open")
	}
	p.click("Why?")
	p.fill("From", clientAddress("10.9.0.2").String())
	p.fill("To", "10.9.0.2")
	p.fill("Port", port)
	p.click("Show its way")
	p.until("the function is marked", `[...document.querySelectorAll(".hops li.eats")].some(e => e.innerText.includes("walled-wall"))`, func() bool { return !open() })
	if p.clicks > 6 {
		t.Errorf("finding the hop took %d clicks", p.clicks)
	}
	p.clicks = 0
	p.click("Take it back now")
	p.until("the port is open again", `!document.body.innerText.includes("until this change is taken back")`, open)
	if p.clicks > 4 {
		t.Errorf("taking it back took %d clicks", p.clicks)
	}
}

// page is the console in a browser, driven by its debugging protocol.
type page struct {
	t       *testing.T
	ctx     context.Context
	conn    *websocket.Conn
	session string
	sent    int
	clicks  int
}

var (
	consoleAt = regexp.MustCompile(`http://127[^ \x00\n]+`)
	devtools  = regexp.MustCompile(`ws://\S+`)
)

func openPage(ctx context.Context, t *testing.T) *page {
	t.Helper()
	said, err := testbed.Console(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testbed.Kill("console", syscall.SIGTERM) })
	cmd := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
		"--window-size=1440,1000", "--user-data-dir="+t.TempDir(), "about:blank")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	at := ""
	for at == "" && lines.Scan() {
		at = devtools.FindString(lines.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	p := &page{t: t, ctx: ctx}
	if p.conn, _, err = websocket.Dial(ctx, at, nil); err != nil { //nolint:bodyclose // it is the connection
		_ = cmd.Process.Kill()
		t.Fatalf("chromium at %q: %v", at, err)
	}
	p.conn.SetReadLimit(16 << 20)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = p.conn.Write(ctx, websocket.MessageText, []byte(`{"id":0,"method":"Browser.close"}`))
		_ = cmd.Wait()
	})
	var target struct{ TargetID, SessionID string }
	p.call("Target.createTarget", map[string]any{"url": consoleAt.FindString(said)}, &target)
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	p.session = target.SessionID
	return p
}

// call is one request of the protocol; events are left aside.
func (p *page) call(method string, params map[string]any, answer any) {
	p.t.Helper()
	p.sent++
	b, _ := json.Marshal(map[string]any{"id": p.sent, "method": method, "params": params, "sessionId": p.session})
	if p.session == "" {
		b, _ = json.Marshal(map[string]any{"id": p.sent, "method": method, "params": params})
	}
	if err := p.conn.Write(p.ctx, websocket.MessageText, b); err != nil {
		p.t.Fatal(method, err)
	}
	for {
		_, got, err := p.conn.Read(p.ctx)
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err == nil {
			err = json.Unmarshal(got, &m)
		}
		if err != nil {
			p.t.Fatal(method, err)
		}
		switch {
		case m.ID != p.sent:
		case m.Error != nil:
			p.t.Fatal(method, m.Error.Message)
		default:
			if answer != nil {
				_ = json.Unmarshal(m.Result, answer)
			}
			return
		}
	}
}

// value of an expression in the page, as JSON.
func (p *page) value(expression string, v any) {
	p.t.Helper()
	var r struct{ Result struct{ Value string } }
	p.call("Runtime.evaluate", map[string]any{"expression": "JSON.stringify(" + expression + ")"}, &r)
	_ = json.Unmarshal([]byte(r.Result.Value), v)
}

// until waits for an expression of the page, and for what traffic shows.
func (p *page) until(what, expression string, shown func() bool) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		seen := false
		ok := shown()
		if p.value(expression, &seen); seen && ok {
			return
		}
		if time.Now().After(end) {
			var text string
			p.value("document.body.innerText", &text)
			p.t.Fatalf("in vain: %s; traffic shows it: %t; the page says\n%s", what, ok, text)
		}
	}
}

// at finds the middle of an element, once it is there.
func (p *page) at(what, element string) (x, y float64) {
	p.t.Helper()
	var box struct{ X, Y, Width, Height float64 }
	p.until(what+" is there", "!!("+element+")", func() bool { return true })
	p.value("("+element+").getBoundingClientRect()", &box)
	return box.X + box.Width/2, box.Y + box.Height/2
}

func (p *page) press(x, y float64) {
	p.t.Helper()
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}, nil)
	}
}

// click presses the link or button that says text.
func (p *page) click(text string) {
	p.t.Helper()
	p.clicks++
	p.press(p.at(text, fmt.Sprintf(`[...document.querySelectorAll("a, button")].find(e => e.innerText.trim() === %q)`, text)))
}

// fill types into the field with a label.
func (p *page) fill(label, text string) {
	p.t.Helper()
	p.press(p.at(label, fmt.Sprintf(`[...document.querySelectorAll("label")].find(e => e.innerText.trim() === %q)?.querySelector("input")`, label)))
	p.call("Input.insertText", map[string]any{"text": text}, nil)
}
