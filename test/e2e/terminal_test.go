package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

const idleYAML = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: idle}
spec:
  container: {image: host, attach: routed, addresses: none, command: [sleep, infinity]}
  state: none
  packets: keep
  resources: {cpu: 100m, memory: 64Mi}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: idle}
spec: {from: {hosts: client}, to: {hosts: origin}, through: [{function: idle, drain: 1s}]}
`

// shell is a terminal with a shell in an instance.
type shell struct {
	t      *testing.T
	ctx    context.Context
	what   string
	typed  func([]byte) error
	resize func(rows, columns uint16) error
	said   chan []byte
	all    []byte
}

// ask types a line and gives what was answered between two marks.
func (s *shell) ask(line string) string {
	s.t.Helper()
	s.all = nil
	if err := s.typed([]byte("echo 'be''gin'; " + line + "; echo 'en''d'\n")); err != nil {
		s.t.Fatalf("%s: %v", s.what, err)
	}
	return s.answer()
}

func (s *shell) answer() string {
	s.t.Helper()
	for {
		_, rest, begun := bytes.Cut(s.all, []byte("begin\r\n"))
		if answer, _, ended := bytes.Cut(rest, []byte("end\r\n")); begun && ended {
			return strings.TrimSpace(string(answer))
		}
		select {
		case b, open := <-s.said:
			if s.all = append(s.all, b...); open {
				continue
			}
		case <-s.ctx.Done():
		}
		s.t.Fatalf("%s: the shell is gone, or silent, after %q", s.what, s.all)
	}
}

// TestTerminals: a command at a terminal sees the terminal's size, at once and whenever it
// changes, and gets all that is pasted, by onpath exec and on the console's page.
func TestTerminals(t *testing.T) {
	ctx := need(t, 90*time.Second)
	apply(ctx, t, idleYAML)
	active(ctx, t, "idle")
	instance, err := testbed.InstanceOf(ctx, "idle-idle")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*shell{byExec(ctx, t, instance), byConsole(ctx, t, instance)} {
		if got := s.ask("stty size"); got != "33 99" {
			t.Errorf("%s: a terminal of 33 by 99 is %s for a command", s.what, got)
		}
		for _, to := range []uint16{20, 50} {
			if err := s.resize(to, 3*to); err != nil {
				t.Fatal(err)
			}
			got, want := "", fmt.Sprintf("%d %d", to, 3*to)
			for until := time.Now().Add(time.Minute); got != want && time.Now().Before(until); {
				got = s.ask("stty size")
			}
			if got != want {
				t.Errorf("%s: resized to %s, it is %s for a command", s.what, want, got)
			}
		}
		paste := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), 2000)
		s.ask("stty -echo")
		s.all = nil
		if err := s.typed(fmt.Appendf(nil, "echo begin; head -c %d | sha256sum; echo end\n", len(paste))); err != nil {
			t.Fatal(err)
		}
		if err := s.typed(paste); err != nil {
			t.Fatal(err)
		}
		if got := s.answer(); got != fmt.Sprintf("%x  -", sha256.Sum256(paste)) {
			t.Errorf("%s: of a paste of %d bytes something else arrived: %s", s.what, len(paste), got)
		}
	}
}

// byExec is onpath exec -it at a terminal of our own.
func byExec(ctx context.Context, t *testing.T, instance string) *shell {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	resize := func(rows, columns uint16) error {
		return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err := resize(33, 99); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, testbed.Bin(), "--server", testbed.Socket(), "exec", "-it", instance, "--", "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	typed := func(b []byte) error { _, err := master.Write(b); return err }
	return &shell{t: t, ctx: ctx, what: "onpath exec -it", typed: typed, resize: resize, said: said(func() ([]byte, error) {
		b := make([]byte, 4096)
		n, err := master.Read(b)
		return b[:n], err
	})}
}

// said reads until that fails.
func said(read func() ([]byte, error)) chan []byte {
	c := make(chan []byte, 1000)
	go func() {
		defer close(c)
		for {
			b, err := read()
			c <- b
			if err != nil {
				return
			}
		}
	}()
	return c
}

var consoleKey = regexp.MustCompile(`url=/#(\w+)`)

// byConsole is the console's page, as a browser speaks with it.
func byConsole(ctx context.Context, t *testing.T, instance string) *shell {
	t.Helper()
	address, err := testbed.Console(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testbed.Kill("console", syscall.SIGTERM) })
	r, err := http.Get(consoleAt.FindString(address))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	key := consoleKey.FindStringSubmatch(r.Header.Get("Refresh"))
	if len(r.Cookies()) != 1 || key == nil {
		t.Fatalf("the console let nobody in: %v", r.Header)
	}
	at := r.Request.URL.Host
	h := http.Header{"Cookie": {r.Cookies()[0].Name + "=" + r.Cookies()[0].Value}, "Origin": {"http://" + at}}
	c, _, err := websocket.Dial(ctx, "ws://"+at+"/terminal/default/"+instance, //nolint:bodyclose // it is the connection
		&websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{"onpath-terminal", key[1]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	resize := func(rows, columns uint16) error {
		return c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"rows":%d,"columns":%d}`, rows, columns))
	}
	if err := resize(33, 99); err != nil {
		t.Fatal(err)
	}
	typed := func(b []byte) error { return c.Write(ctx, websocket.MessageBinary, b) }
	return &shell{t: t, ctx: ctx, what: "the console's page", typed: typed, resize: resize, said: said(func() ([]byte, error) {
		_, b, err := c.Read(ctx)
		return b, err
	})}
}
