package router

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"
)

// Rolling has a request and its answer make progress: a peer that neither sends
// nor takes anything for d loses its connection. How long all of it lasts does not
// matter. Done is to be called when the handler has ended.
func Rolling(w http.ResponseWriter, r *http.Request, d time.Duration) (_ http.ResponseWriter, _ *http.Request, done func()) {
	c := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody {
		copied := *r
		copied.Body = &rollingBody{ReadCloser: r.Body, conn: c, d: d}
		r = &copied
		// Before an answer net/http reads what the handler leaves.
		_ = c.SetReadDeadline(time.Now().Add(d))
	}
	rw := &rollingWriter{ResponseWriter: w, conn: c, d: d}
	return rw, r, func() {
		if !rw.hijacked { // what is in the buffer is still to be sent
			_ = c.SetWriteDeadline(time.Now().Add(d))
		}
	}
}

type rollingBody struct {
	io.ReadCloser
	conn  *http.ResponseController
	d     time.Duration
	ended bool
}

func (b *rollingBody) Read(p []byte) (int, error) {
	if !b.ended {
		_ = b.conn.SetReadDeadline(time.Now().Add(b.d))
	}
	n, err := b.ReadCloser.Read(p)
	// At its end net/http takes the deadline away, and waits for the caller to leave.
	// After a stall it stays, or net/http would wait for the rest.
	b.ended = b.ended || err != nil
	return n, err
}

type rollingWriter struct {
	http.ResponseWriter
	conn     *http.ResponseController
	d        time.Duration
	hijacked bool
}

// Unwrap is for http.NewResponseController.
func (w *rollingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// pieceSize is how much is given to the kernel under one deadline: a long answer in one
// Write makes progress, too.
const pieceSize = 64 << 10

func (w *rollingWriter) Write(p []byte) (n int, err error) {
	for more := true; more; more = len(p) > 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.d))
		k, err := w.ResponseWriter.Write(p[:min(len(p), pieceSize)])
		if n += k; err != nil {
			return n, err
		}
		p = p[k:]
	}
	return n, nil
}

// Hijack implements http.Hijacker: deadlines are the new owner's.
func (w *rollingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.hijacked = true
	return w.conn.Hijack()
}

// Flush implements http.Flusher, for handlers that look for it.
func (w *rollingWriter) Flush() {
	_ = w.conn.SetWriteDeadline(time.Now().Add(w.d))
	_ = w.conn.Flush()
}
