package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// What a module is told of a stream (ONPATH_HEAD and so on).
const (
	isHead = iota + 1
	isPiece
	isEnd
	isFailed
	isWritable
	isSent
)

// eventHead is struct onpath_event without its data, in bytes.
const eventHead = 16

// maxPiece is the most of a stream that a module is given at once.
const maxPiece = 16 << 10

// stream goes on past the event in which the module began it: a fetch, or a request that it
// keeps. Its work is done beside the engine's goroutine.
type stream interface {
	// want asks for the next piece of what comes; false: it is asked for, or nothing comes.
	want() bool
	// given notes that the module is about to have the piece that it asked for.
	given()
	cancel()
}

// pieces of a stream come one by one, each after it was asked for: a module that asks twice
// has room for one. The engine's goroutine has asked.
type pieces struct {
	due  bool          // the module waits for one
	next chan struct{} // the stream's work may read on
}

func newPieces() pieces { return pieces{next: make(chan struct{}, 1)} }

func (p *pieces) want() bool {
	if p.due {
		return false
	}
	p.due = true
	p.goOn()
	return true
}

func (p *pieces) given() { p.due = false }

func (p *pieces) goOn() {
	select {
	case p.next <- struct{}{}:
	default:
	}
}

// event is one of a stream.
type event struct {
	kind, status uint32
	data         []byte
	last         bool   // the stream is over
	refused      string // host that the node connects nobody to
}

// streams are a module's. The engine's goroutine has them.
type streams struct {
	ctx  context.Context
	stop context.CancelFunc
	last int32
	open map[int32]stream
}

func newStreams() streams {
	s := streams{open: map[int32]stream{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// number is that of the next stream.
func (s *streams) number() int32 {
	for {
		if s.last++; s.last <= 0 {
			s.last = 1
		}
		if s.open[s.last] == nil {
			return s.last
		}
	}
}

// tell has the module meet an event of a stream, between two batches, and waits until it has.
// An error means that nobody listens any more.
func (h *host) tell(ctx context.Context, id int32, v event) error {
	heard := false
	err := h.e.do(ctx, func() { heard = h.meet(id, v) })
	if err == nil && !heard {
		err = errGone
	}
	return err
}

// missed counts what a module could not have done. The log has it whenever the count doubled.
func (h *host) missed(n *uint64, what, why string) {
	if *n++; *n&(*n-1) == 0 {
		h.e.log.Warn(what, "module", h.m.spec.Name, "times", *n, "err", why)
	}
}

// refusedAgain is the time after which the log says again that the node refuses fetches.
const refusedAgain = time.Minute

// fetchFailed counts a fetch that failed. One that the node refused will not work later either:
// the log says how to mend it.
func (h *host) fetchFailed(v event) {
	if v.refused == "" {
		h.missed(&h.m.numbers.FetchFailed, "a fetch failed", string(v.data))
		return
	}
	h.m.numbers.FetchFailed++
	if t := now(); t.Sub(h.refused) >= refusedAgain {
		h.refused = t
		h.e.log.Warn("the node refuses a fetch", "module", h.m.spec.Name, "host", v.refused, "why", string(v.data))
	}
}

var errGone = fmt.Errorf("the module has given the stream up")

func (h *host) meet(id int32, v event) bool {
	m := h.m
	if h.streams.open[id] == nil || m.out() || h.streams.ctx.Err() != nil {
		return false
	}
	switch _, fetches := h.streams.open[id].(*fetch); {
	case v.kind == isPiece:
		h.streams.open[id].given()
	case v.kind == isFailed && fetches:
		h.fetchFailed(v)
	}
	if v.last {
		delete(h.streams.open, id)
	}
	if m.event == nil {
		return false
	}
	if room := int(m.d.bufferSize) - eventHead; len(v.data) > room {
		v.data = v.data[:room]
	}
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, eventHead+len(v.data)), uint32(id))
	b = binary.LittleEndian.AppendUint32(b, v.kind)
	b = binary.LittleEndian.AppendUint32(b, v.status)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(v.data)))
	m.inst.Memory().Write(m.d.buffer, append(b, v.data...))
	if err := m.timed(0, m.event); err != nil {
		h.e.takeOut(m, err)
	}
	return true
}

// piece is how much of a stream the module has room for at once.
func (h *host) piece() int {
	return max(1, min(maxPiece, int(h.m.d.bufferSize)-eventHead))
}
