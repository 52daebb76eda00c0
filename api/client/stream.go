package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/onpath/onpath"
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
