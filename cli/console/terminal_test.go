package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/onpath/onpath"
)

// repeat is a shell that says each line again, and the size that it was given first.
func repeat(_ context.Context, tenant, name string, in io.Reader, out io.Writer, sizes <-chan onpath.WindowSize) (int, error) {
	s := <-sizes
	fmt.Fprintf(out, "%s/%s %dx%d\n", tenant, name, s.Columns, s.Rows)
	for l := bufio.NewScanner(in); l.Scan() && l.Text() != "exit"; {
		fmt.Fprintln(out, l.Text())
	}
	return 7, nil
}

// TestTerminal: a page with cookie and key gets a shell; without either, or from another site
// or name, nobody does.
func TestTerminal(t *testing.T) {
	b := newBehind(t)
	b.o.Shell = repeat
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	b.hosts[at] = true
	s := &http.Server{Handler: b}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func(cookie, key, origin, host string) (*websocket.Conn, error) {
		h := http.Header{"Cookie": {b.cookie + "=" + cookie}, "Origin": {origin}}
		c, r, err := websocket.Dial(ctx, "ws://"+at+"/terminal/default/web-1", &websocket.DialOptions{HTTPHeader: h, Host: host,
			Subprotocols: []string{terminalProtocol, key}})
		if r != nil && r.Body != nil {
			_ = r.Body.Close()
		}
		return c, err
	}
	own := "http://" + at
	for _, bad := range [][4]string{
		{"", b.key, own, at}, {b.session, "stolen", own, at}, {b.session, b.key, "http://evil.example", at}, {b.session, b.key, own, "evil.example"},
	} {
		if c, err := dial(bad[0], bad[1], bad[2], bad[3]); err == nil {
			_ = c.CloseNow()
			t.Errorf("cookie %q, key %q, origin %q, host %q: there is a shell", bad[0], bad[1], bad[2], bad[3])
		}
	}
	c, err := dial(b.session, b.key, own, at)
	if err != nil {
		t.Fatal(err)
	}
	say := func(kind websocket.MessageType, text string) {
		if err := c.Write(ctx, kind, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	say(websocket.MessageText, `{"rows":40,"columns":120}`)
	say(websocket.MessageBinary, "hello\nexit\n")
	var got strings.Builder
	for {
		_, m, err := c.Read(ctx)
		if err != nil {
			if !strings.Contains(err.Error(), "the shell ended with 7") {
				t.Error(err)
			}
			break
		}
		got.Write(m)
	}
	if got.String() != "default/web-1 120x40\nhello\n" {
		t.Errorf("the shell said %q", got.String())
	}
}
