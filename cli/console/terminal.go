package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/coder/websocket"

	"github.com/onpath/onpath"
)

// terminalProtocol is what pages and console speak by WebSocket, which the server does not:
// binary messages are what is typed and printed, a text message from the page is the size.
const terminalProtocol = "onpath-terminal"

// pasted is how large a message of the page's may be; pages send less at a time.
const pasted = 1 << 20

// Shell runs a shell in an instance until it ends, and gives its exit code.
type Shell func(ctx context.Context, tenant, name string, in io.Reader, out io.Writer, sizes <-chan onpath.WindowSize) (code int, err error)

// terminal connects a page with a shell. Pages cannot set headers of a WebSocket: the key
// comes as a second protocol.
func (c *Console) terminal(w http.ResponseWriter, r *http.Request) {
	tenant, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/terminal/"), "/")
	offered := strings.FieldsFunc(r.Header.Get("Sec-WebSocket-Protocol"), func(x rune) bool { return x == ',' || x == ' ' })
	if !slices.ContainsFunc(offered, func(p string) bool { return same(p, c.key) }) {
		c.noKey(w)
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{terminalProtocol}})
	if err != nil {
		return // it has been answered
	}
	conn.SetReadLimit(pasted)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	in, typed := io.Pipe()
	sizes := make(chan onpath.WindowSize, 1)
	go func() {
		typed.CloseWithError(read(ctx, conn, typed, sizes))
		cancel() // the page is gone: end the shell
	}()
	code, err := c.o.Shell(ctx, tenant, name, in, socket{ctx, conn}, sizes)
	_ = in.Close()
	if err != nil {
		_, _ = fmt.Fprintf(socket{ctx, conn}, "\r\n%v\r\n", err)
	}
	_ = conn.Close(websocket.StatusNormalClosure, fmt.Sprintf("the shell ended with %d", code))
}

// read passes on what the page says.
func read(ctx context.Context, conn *websocket.Conn, typed io.Writer, sizes chan onpath.WindowSize) error {
	for {
		kind, b, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := typed.Write(b); err != nil {
				return err
			}
			continue
		}
		var s onpath.WindowSize
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		select {
		case <-sizes: // only the newest counts
		default:
		}
		sizes <- s
	}
}

// socket writes to a page.
type socket struct {
	ctx  context.Context //nolint:containedctx // of the connection
	conn *websocket.Conn
}

func (s socket) Write(b []byte) (int, error) {
	if err := s.conn.Write(s.ctx, websocket.MessageBinary, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
