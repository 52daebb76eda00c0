package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/wire"
)

// stream is a body that is read as it comes. Its end may be a failure, which
// the trailer words.
type stream struct {
	c      *Client
	ctx    context.Context
	answer *http.Response
}

func (c *Client) open(ctx context.Context, path string, q url.Values) (*stream, error) {
	answer, err := c.send(ctx, http.MethodGet, path, q, nil)
	if err != nil {
		return nil, err
	}
	return &stream{c, ctx, answer}, nil
}

func (s *stream) Read(b []byte) (int, error) { return s.answer.Body.Read(b) }

func (s *stream) Close() error { return s.answer.Body.Close() }

// ended gives the reason for err, which a read of the stream returned; nil for
// a good end.
func (s *stream) ended(err error) error {
	if failed := s.answer.Trailer.Get(wire.Trailer); failed != "" {
		var e onpath.Error
		if json.Unmarshal([]byte(failed), &e) == nil {
			return &e
		}
	}
	switch {
	case s.ctx.Err() != nil:
		return s.ctx.Err()
	case err == nil || errors.Is(err, io.EOF):
		return nil
	}
	return s.c.failed(s.ctx, http.MethodGet, err)
}

// copy writes the whole stream to w.
func (c *Client) copy(ctx context.Context, path string, q url.Values, w io.Writer) error {
	s, err := c.open(ctx, path, q)
	if err != nil {
		return err
	}
	defer s.Close()
	out := &writer{w: w}
	_, err = io.Copy(out, s)
	if out.err != nil {
		return out.err
	}
	return s.ended(err)
}

// writer tells a failed write from a failed read.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.err = err
	return n, err
}

func instancePath(tenant, name, what string) string {
	return path(onpath.Key{Kind: onpath.KindInstance, Tenant: tenant, Name: name}) + "/" + what
}

// LogsOptions say what of an instance's output is meant.
type LogsOptions struct {
	Tail     int  // last lines; negative: all
	Follow   bool // what comes as well, until ctx ends
	Previous bool // of the run before the present one
}

// Logs copies an instance's output to w.
func (c *Client) Logs(ctx context.Context, tenant, name string, o LogsOptions, w io.Writer) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}, "previous": {strconv.FormatBool(o.Previous)}}
	return c.copy(ctx, instancePath(tenant, name, "logs"), q, w)
}

// CaptureAt says where to capture: at an instance, or at a gateway's uplinks.
type CaptureAt struct {
	Instance string // tenant/name
	Back     bool   // the second side of a bridged instance
	Node     string
	Count    int // packets; 0: until ctx ends
	Length   int // bytes kept of each; 0: all
	Tuple    *onpath.Tuple
}

// Capture writes packets to w as pcapng. Also where it breaks off, w ends with a
// whole block.
func (c *Client) Capture(ctx context.Context, at CaptureAt, w io.Writer) error {
	q := tuple(at.Tuple)
	set(q, "instance", at.Instance)
	set(q, "node", at.Node)
	if at.Back {
		q.Set("back", "true")
	}
	setInt(q, "count", at.Count)
	setInt(q, "length", at.Length)
	out := &blocks{w: w}
	if err := c.copy(ctx, "/v1/capture", q, out); err != nil {
		return err
	}
	return out.end()
}

// FlowsOf says which flow entries are meant; zero fields mean all.
type FlowsOf struct {
	Node     string
	Instance string // tenant/name
	Path     onpath.PathID
	Tuple    *onpath.Tuple
}

// Flows calls yield for each flow entry until it returns false.
func (c *Client) Flows(ctx context.Context, of FlowsOf, yield func(wire.Flow) bool) error {
	q := tuple(of.Tuple)
	set(q, "node", of.Node)
	set(q, "instance", of.Instance)
	setInt(q, "path", int(of.Path))
	s, err := c.open(ctx, "/v1/flows", q)
	if err != nil {
		return err
	}
	defer s.Close()
	d := json.NewDecoder(bufio.NewReader(s))
	for {
		var f wire.Flow
		if err := d.Decode(&f); err != nil {
			return s.ended(err)
		}
		if !yield(f) {
			return nil
		}
	}
}

// Exec runs a command in an instance and returns its exit code.
func (c *Client) Exec(ctx context.Context, tenant, name string, command []string, tty bool, e session.ExecIO) (int, error) {
	p := c.patient(ctx)
	defer p.end()
	conn, err := c.Dial(p.ctx)
	if err != nil {
		return 0, p.reason(err)
	}
	q := url.Values{"command": command, "tty": {strconv.FormatBool(tty)}, "stdin": {strconv.FormatBool(e.Stdin != nil)}}
	conn, err = session.Upgrade(p.ctx, conn, http.MethodGet, instancePath(tenant, name, "exec")+"?"+q.Encode(), session.ExecProtocol)
	if err != nil {
		return 0, p.reason(err)
	}
	defer conn.Close()
	code, err := session.RunExec(p.ctx, heardConn{conn, p}, e)
	if err != nil {
		return 0, p.reason(err)
	}
	return code, nil
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setInt(q url.Values, name string, value int) {
	if value != 0 {
		q.Set(name, strconv.Itoa(value))
	}
}

func tuple(t *onpath.Tuple) url.Values {
	q := url.Values{}
	if t == nil {
		return q
	}
	setInt(q, "protocol", int(t.Protocol))
	setInt(q, "srcPort", int(t.SrcPort))
	setInt(q, "dstPort", int(t.DstPort))
	if t.Src.IsValid() {
		q.Set("src", t.Src.String())
	}
	if t.Dst.IsValid() {
		q.Set("dst", t.Dst.String())
	}
	return q
}
