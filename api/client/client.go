// Package client is the Go client of onpath's API. The CLI, the node agent and
// tests use it and nothing else to talk to a server: over the server's unix
// socket, or over TLS with a certificate that a join token was redeemed for.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
)

// dialTimeout is for connecting to a server.
const dialTimeout = 5 * time.Second

// Client talks to one server. It is safe for concurrent use.
type Client struct {
	name   string // of the server, for people
	dial   func(ctx context.Context) (net.Conn, error)
	http   *http.Client
	holder *auth.Holder // nil on a unix socket
	remedy string       // where nothing answers
	local  bool         // by a unix socket
	renews atomic.Bool  // the certificate is renewed with a request, if it is time: nobody calls KeepFresh

	quietFor, aliveWithin time.Duration // see patience
}

// Unix is a client of the server behind a unix socket.
func Unix(path string) *Client {
	c := &Client{name: path, local: true, quietFor: quietFor, aliveWithin: aliveWithin,
		remedy: "start one with `onpath up`, or name one with --server"}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
	}
	c.http = &http.Client{Transport: c.transport()}
	return c
}

// Remote is a client of the server that h has joined.
func Remote(h *auth.Holder) *Client { return remote(h.Address(), h.TLS, h) }

// pinned is a client of the server of an authority, for who has no certificate.
func pinned(t auth.JoinToken) *Client {
	return remote(t.Address, func() *tls.Config { return auth.PinnedTLS(t.Pin) }, nil)
}

func remote(address string, config func() *tls.Config, h *auth.Holder) *Client {
	c := &Client{name: address, holder: h, quietFor: quietFor, aliveWithin: aliveWithin,
		remedy: "check that it runs with --listen, and that nothing between blocks it"}
	c.dial = func(ctx context.Context) (net.Conn, error) {
		d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}, Config: config()}
		return d.DialContext(ctx, "tcp", address)
	}
	c.http = &http.Client{Transport: c.transport()}
	return c
}

// Bearer is a client that shows a bearer token (onpath token create --api). It believes the
// server whose authority the token names.
func Bearer(word string) (*Client, error) {
	t, err := auth.ParseToken(word)
	if err != nil {
		return nil, err
	}
	c := pinned(t)
	c.http.Transport = bearer{c.http.Transport, strings.TrimSpace(word)}
	return c, nil
}

// bearer shows a token with each request.
type bearer struct {
	http.RoundTripper
	word string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.word)
	return b.RoundTripper.RoundTrip(r)
}

// transport sends every request to the server, whatever host its URL names.
func (c *Client) transport() *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) }
	return &http.Transport{DialContext: dial, DialTLSContext: dial, MaxIdleConnsPerHost: 8, IdleConnTimeout: 60 * time.Second}
}

// Server is where the server is, for people.
func (c *Client) Server() string { return c.name }

// Local reports whether the server is reached by a socket of this machine's.
func (c *Client) Local() bool { return c.local }

// Dial opens a connection on which the server knows who we are; node sessions
// use it (session.Options.Connect).
func (c *Client) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil {
		return conn, nil
	}
	var known *onpath.Error
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &known):
		return nil, known
	case errors.Is(err, fs.ErrPermission):
		e := onpath.Errorf(onpath.CodeForbidden, "you may not use %s", c.name)
		e.Cause = err
		e.Remedy = "run as root, or join with a token"
		return nil, e
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "no onpath server answers at %s: %w", c.name, reason(err))
	e.Remedy = c.remedy
	return nil, e
}

// reason shortens the net package's words.
func reason(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, io.EOF) {
		return errors.New("it ended without an answer")
	}
	return err
}

// HTTP sends requests to the server whatever host their URL names: a node's
// runtime pulls images of onpath.ImageHost with it.
func (c *Client) HTTP() *http.Client { return c.http }

// URL is the base of URLs for HTTP.
func (c *Client) URL() string { return "http://" + onpath.ImageHost }

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Default finds the server that is meant where the user names one or none:
// a unix socket's path, or a directory with a certificate (see Join); "" is the
// certificate in home if there is one, else socket.
func Default(server, home, socket string) (*Client, error) {
	dir := home
	switch info, err := os.Stat(server); {
	case server == "" && !auth.Joined(home):
		return Unix(socket), nil
	case server == "":
	case err == nil && info.IsDir():
		dir = server
	default:
		return Unix(strings.TrimPrefix(server, "unix:")), nil
	}
	h, err := auth.OpenHolder(dir)
	if err != nil {
		return nil, err
	}
	c := Remote(h)
	c.renews.Store(true)
	return c, nil
}

// do sends a request with a JSON body (nil: none) and reads a JSON answer into
// out (nil: none).
func (c *Client) do(ctx context.Context, method, path string, q url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	answer, err := c.send(ctx, method, path, q, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the answer of %s broke off: %w", c.name, broken{err})
	}
	return nil
}

// send gives the answer if it is good, and its error if not.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := c.URL() + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.ask(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < 300 {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, problem(answer)
}

// failed is the error of a request that got no answer.
func (c *Client) failed(ctx context.Context, method string, err error) error {
	var known *onpath.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &known):
		return known
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "the connection to %s broke: %w", c.name, broken{reason(err)})
	e.Remedy = "try again; look at the server's log if it stays so"
	if method != http.MethodGet {
		e.Remedy = "what was asked for may have been done all the same: look with onpath get; asking again does no harm; look at the " +
			"server's log if it stays so"
	}
	return e
}

// broken is why a connection broke after the request may have been heard.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

func problem(answer *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	var p wire.Problem
	if json.Unmarshal(data, &p) == nil && len(p.Errors) > 0 && p.Errors[0].Code != "" {
		if len(p.Errors) == 1 {
			return p.Errors[0]
		}
		return p.Errors
	}
	return onpath.Errorf(onpath.CodeInternal, "the server answered %s: %s", answer.Status, bytes.TrimSpace(data))
}

// Version is what the server is.
func (c *Client) Version(ctx context.Context) (wire.Version, error) {
	var out wire.Version
	return out, c.do(ctx, http.MethodGet, "/version", nil, nil, &out)
}

// Ready returns nil once the server can do its work, and else why not.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, http.MethodGet, "/readyz", nil, nil, nil)
}
