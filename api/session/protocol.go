// Package session is the one connection between a server and a node. The node
// opens it, so nodes behind NAT work; everything the two say to each other goes
// through it.
//
// On the wire it is an HTTP/1.1 request to Path with Upgrade: Protocol, over
// the server's unix socket or over TLS, and after the answer 101 a yamux
// session with the node as its client. Its streams:
//
//   - up, opened by the node first: messages {hello}, then {report} and {event};
//     the server answers the hello with {welcome} or {error}.
//   - down, opened by the server before any call: messages {plan},
//     {cancel: call} and, as the last one, {end} with why the session ends.
//   - one per call, opened by the server: a message {call, op, request}, then
//     what the operation says, raw; the node's answer comes in chunks and ends
//     with a status (response.go).
//
// A message is a length (4 bytes, big endian) and that much JSON.
package session

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// Path and Protocol of the upgrade request that opens a session.
const (
	Path     = "/v1/session"
	Protocol = "onpath-session/1"
)

// A side that hears nothing for pingEvery asks, and gives the other side
// pingTimeout to answer: a dead one is found within about 3 s.
const (
	pingEvery        = time.Second
	pingTimeout      = 2 * time.Second
	handshakeTimeout = 10 * time.Second
)

// maxMessage is the largest message; a plan for 10,000 instances is a few MiB.
const maxMessage = 64 << 20

// upMessage is what a node says on the up stream; one field is set, and Time,
// what the node's clock says as it sends it. With a hello, Agent tells the process
// from all others, and Expands says that it reads compact plans.
type upMessage struct {
	Time    time.Time          `json:"time,omitzero"`
	Agent   string             `json:"agent,omitempty"`
	Expands bool               `json:"expands,omitempty"`
	Hello   *onpath.NodeHello  `json:"hello,omitempty"`
	Report  *onpath.NodeReport `json:"report,omitempty"`
	Event   *onpath.NodeEvent  `json:"event,omitempty"`
}

// welcome is the server's answer to a hello.
type welcome struct {
	Error *onpath.Error `json:"error,omitempty"`
}

// downMessage is what a server says on the down stream; one field is set.
type downMessage struct {
	Plan   *onpath.NodePlan `json:"plan,omitempty"`
	Cancel uint64           `json:"cancel,omitempty"`
	End    *onpath.Error    `json:"end,omitempty"`
}

// callMessage begins a call's stream.
type callMessage struct {
	Call    uint64          `json:"call"`
	Op      onpath.NodeOp   `json:"op"`
	Request json.RawMessage `json:"request,omitempty"`
}

// errTooLarge is of a message of which nothing was sent.
var errTooLarge = errors.New("the message is too large")

func send(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(body) > maxMessage {
		return fmt.Errorf("%w: it has %d bytes, and at most %d are possible", errTooLarge, len(body), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func receive(r io.Reader, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return fmt.Errorf("a message of %d bytes; at most %d are possible", n, maxMessage)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, message); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}

func muxConfig(log *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval, c.ConnectionWriteTimeout = pingEvery, pingTimeout
	c.StreamOpenTimeout = handshakeTimeout
	c.StreamCloseTimeout = 10 * time.Second
	c.LogOutput, c.Logger = nil, slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return c
}

// Upgrade asks the server at the other end of conn to switch to protocol, and
// returns the connection to speak it on. A refusal is returned as the server
// words it. On error conn is closed.
func Upgrade(ctx context.Context, conn net.Conn, method, path, protocol string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	up, err := upgrade(conn, method, path, protocol)
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return up, conn.SetDeadline(time.Time{})
}

func upgrade(conn net.Conn, method, path, protocol string) (net.Conn, error) {
	r, err := http.NewRequest(method, "http://onpath"+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", protocol)
	if err := r.Write(conn); err != nil {
		return nil, fmt.Errorf("ask for %s: %w", protocol, err)
	}
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, r)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", protocol, err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return &bufferedConn{conn, in}, nil
	}
	defer answer.Body.Close()
	return nil, refusal(answer, protocol)
}

// refusal reads an error as the API words it.
func refusal(answer *http.Response, protocol string) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	var problem struct {
		Errors onpath.Errors `json:"errors"`
	}
	if json.Unmarshal(body, &problem) == nil && len(problem.Errors) > 0 {
		return problem.Errors
	}
	return onpath.Errorf(onpath.CodeUnsupported, "the server does not speak %s: %s", protocol, answer.Status)
}

// Accept switches a request's connection to protocol; from then on the caller
// owns it.
func Accept(w http.ResponseWriter, protocol string) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("switch to %s: %w", protocol, err)
	}
	_ = conn.SetDeadline(time.Time{})
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("switch to %s: %w", protocol, err)
	}
	return &bufferedConn{conn, rw.Reader}, nil
}

// bufferedConn first gives what was read ahead.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }
