package session

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// The answer to a call is a row of chunks, each a length (4 bytes, big endian,
// never 0) and that many bytes, and then a length of 0 and a message: null, or
// an onpath.Error. So its reader can tell an end from a node that went away,
// and failures late in an answer have words.

// maxChunk keeps one stream's chunk from holding up the others for long.
const maxChunk = 32 << 10

// responseWriter writes the answer; it is what Handler.Serve is given.
type responseWriter struct {
	stream io.ReadWriteCloser
	mu     sync.Mutex
	done   bool
}

func (a *responseWriter) Read(b []byte) (int, error) { return a.stream.Read(b) }

func (a *responseWriter) Write(b []byte) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return 0, io.ErrClosedPipe
	}
	for len(b) > 0 {
		chunk := b[:min(len(b), maxChunk)]
		frame := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(chunk)), uint32(len(chunk))), chunk...)
		if _, err := a.stream.Write(frame); err != nil {
			return n, err
		}
		n += len(chunk)
		b = b[len(chunk):]
	}
	return n, nil
}

// Close ends the answer well.
func (a *responseWriter) Close() error { return a.end(nil) }

// end ends the answer, with err's words if there is one; only the first counts.
func (a *responseWriter) end(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil
	}
	a.done = true
	defer a.stream.Close()
	if _, err := a.stream.Write(make([]byte, 4)); err != nil {
		return err
	}
	return send(a.stream, worded(err))
}

// worded makes an *onpath.Error of any error; nil stays nil.
func worded(err error) *onpath.Error {
	var e *onpath.Error
	if err == nil || errors.As(err, &e) {
		return e
	}
	return onpath.Errorf(onpath.CodeInternal, "%w", err)
}

// responseReader reads the answer; it is what Hub.Call returns.
type responseReader struct {
	stream   *yamux.Stream
	node     string
	op       onpath.NodeOp
	closed   func()
	stopping func() bool // whether it is the server that goes away

	left int   // bytes of the present chunk
	err  error // once it has ended
	once sync.Once
}

// Read gives the answer's bytes, io.EOF at its end, and an *onpath.Error where
// the node could not do what was asked or went away.
func (a *responseReader) Read(b []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	if len(b) == 0 {
		return 0, nil
	}
	if a.left == 0 {
		if a.left, a.err = a.next(); a.err != nil {
			return 0, a.err
		}
	}
	n, err := a.stream.Read(b[:min(len(b), a.left)])
	a.left -= n
	if n == 0 && err != nil {
		a.err = a.gone(err)
		return 0, a.err
	}
	return n, nil
}

func (a *responseReader) next() (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(a.stream, head[:]); err != nil {
		return 0, a.gone(err)
	}
	if n := binary.BigEndian.Uint32(head[:]); n > 0 {
		return int(n), nil
	}
	var status json.RawMessage
	if err := receive(a.stream, &status); err != nil {
		return 0, a.gone(err)
	}
	var e *onpath.Error
	if err := json.Unmarshal(status, &e); err != nil {
		return 0, fmt.Errorf("node %s: %s: %w", a.node, a.op, err)
	}
	if e != nil {
		return 0, e
	}
	return 0, io.EOF
}

// gone words a stream that broke off. What came of it is no answer, so the error
// must never pass for the io.EOF that yamux gives.
func (a *responseReader) gone(err error) error {
	if a.stopping() {
		e := onpath.Errorf(onpath.CodeUnavailable, "the server stopped during %s on node %s", a.op, a.node)
		e.Remedy = "try again when it is back"
		return e
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("its session ended")
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "node %s went away during %s: %w", a.node, a.op, err)
	e.Remedy = "try again when it is back"
	return e
}

func (a *responseReader) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		chunk := b[:min(len(b), maxChunk)]
		m, err := a.stream.Write(chunk)
		if n += m; err != nil {
			return n, a.gone(err)
		}
		b = b[len(chunk):]
	}
	return n, nil
}

// Close ends the call; what the node still does for it is cancelled.
func (a *responseReader) Close() error {
	a.once.Do(a.closed)
	return hangUp(a.stream)
}

// hangUp closes a stream for reading too, which yamux's Close alone does not.
func hangUp(s *yamux.Stream) error {
	_ = s.SetReadDeadline(time.Now())
	return s.Close()
}
