package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
)

// A server that is silent for quietFor while something is expected of it is asked
// whether it is there, and has aliveWithin to answer. So long requests (a proof of
// a large network, a watch in which nothing changes) may take what they take, and
// a server that takes connections and answers nothing is found out.
const (
	quietFor    = 10 * time.Second
	aliveWithin = 10 * time.Second
)

// keepAlive finds connections whose other end is gone without a word (a machine
// that lost power, a firewall that forgot) within about 25 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// patience watches over one request: its context ends when the server turns out
// not to answer at all.
type patience struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	heard  atomic.Int64 // nanoseconds since begin
	begin  time.Time
}

func (c *Client) patient(ctx context.Context) *patience {
	p := &patience{c: c, begin: time.Now()}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	go p.watch()
	return p
}

// ask sends a request, and gives up when the server does not answer at all.
func (c *Client) ask(r *http.Request) (*http.Response, error) {
	p := c.patient(r.Context())
	answer, err := c.http.Do(r.WithContext(p.ctx))
	if err != nil {
		defer p.end()
		return nil, c.failed(r.Context(), r.Method, p.reason(err))
	}
	answer.Body = heardBody{answer.Body, p}
	freshen(r.Context(), c)
	return answer, nil
}

// end lets go of the request.
func (p *patience) end() { p.cancel(nil) }

// hear notes that something came.
func (p *patience) hear() { p.heard.Store(int64(time.Since(p.begin))) }

// quiet is how long nothing has come.
func (p *patience) quiet() time.Duration {
	return time.Since(p.begin) - time.Duration(p.heard.Load())
}

func (p *patience) watch() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(p.c.quietFor - min(p.quiet(), p.c.quietFor) + time.Millisecond):
		}
		if p.quiet() < p.c.quietFor {
			continue
		}
		if !p.c.alive(p.ctx) && p.quiet() >= p.c.quietFor {
			e := onpath.Errorf(onpath.CodeUnavailable, "%s takes connections and answers nothing, not even that it is there (for %s)",
				p.c.name, p.quiet().Round(time.Second/10))
			e.Remedy = "look at the server's log, and start it anew if it stays so; traffic does not need it"
			p.cancel(e)
			return
		}
		p.hear()
	}
}

// alive asks the server whether it is there, on a connection of its own. What
// cannot be asked (no connection to be had) is not the same as no answer: who
// waits then hears of it from its own connection.
func (c *Client) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.aliveWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/healthz", nil)
	if err != nil {
		return true
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return !errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	answer.Body.Close()
	return true
}

// heardBody tells patience of what is read, and ends it with the answer.
type heardBody struct {
	io.ReadCloser
	p *patience
}

func (b heardBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if n > 0 {
		b.p.hear()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.p.reason(err)
	}
	return n, err
}

func (b heardBody) Close() error {
	defer b.p.end()
	return b.ReadCloser.Close()
}

// heardConn tells patience of what is read from a connection that was upgraded.
type heardConn struct {
	net.Conn
	p *patience
}

func (c heardConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if n > 0 {
		c.p.hear()
	}
	return n, err
}

// reason puts why the request was given up in err's place.
func (p *patience) reason(err error) error {
	var gaveUp *onpath.Error
	if errors.As(context.Cause(p.ctx), &gaveUp) {
		return gaveUp
	}
	return err
}
