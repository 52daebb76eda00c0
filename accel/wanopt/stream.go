package wanopt

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/restic/chunker"
)

// The frames of a connection between the two ends, in one compressed stream for each
// direction.
const (
	frameData = 1 // length, bytes: a chunk that is new
	frameName = 2 // id: a chunk that the other end has
	frameNeed = 3 // id: it has not
	frameHave = 4 // id, length, bytes: what was needed
	frameEnd  = 5 // no more bytes in this direction
	frameDone = 6 // all of the other direction was delivered: nothing of it will be needed
)

// Chunks have these bytes at least and at most, and about 8 KiB in the mean.
const (
	leastChunk = 2 << 10
	mostChunk  = 64 << 10
	meanBits   = 13
)

// polynomial is the same at both ends of all pairs: what is cut alike has one name.
const polynomial = chunker.Pol(0x3DA3358B4DC173)

// rest is how long nothing may come before what has come goes on.
const rest = 2 * time.Millisecond

// link is a connection to the partner.
type link struct {
	store *store
	in    *zstd.Decoder
	read  *bufio.Reader

	mu  sync.Mutex // of what follows
	out *zstd.Encoder

	// Who reads does not wait to write: both ends would wait for each other's reading.
	queued chan struct{} // there is some
	over   chan struct{}
	amu    sync.Mutex
	queue  [][][]byte
}

func newLink(c net.Conn, s *store) (*link, error) {
	out, err := zstd.NewWriter(c, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, err
	}
	in, err := zstd.NewReader(c, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(1<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return &link{store: s, out: out, in: in, read: bufio.NewReader(in), queued: make(chan struct{}, 1), over: make(chan struct{})}, nil
}

func (l *link) close() {
	close(l.over)
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.out.Close()
	l.in.Close()
}

// write sends parts of a frame, and with flush all that is under way.
func (l *link) write(flush bool, parts ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range parts {
		if _, err := l.out.Write(p); err != nil {
			return err
		}
	}
	if flush {
		return l.out.Flush()
	}
	return nil
}

// enqueue has the parts of a frame sent beside the reading.
func (l *link) enqueue(parts ...[]byte) {
	l.amu.Lock()
	l.queue = append(l.queue, parts)
	l.amu.Unlock()
	select {
	case l.queued <- struct{}{}:
	default:
	}
}

// sendQueue sends what is queued until the link is over.
func (l *link) sendQueue() error {
	for {
		select {
		case <-l.queued:
		case <-l.over:
			return nil
		}
		l.amu.Lock()
		list := l.queue
		l.queue = nil
		l.amu.Unlock()
		for _, parts := range list {
			if err := l.write(true, parts...); err != nil {
				return err
			}
		}
	}
}

// source reads a connection for the chunker: when nothing came for a while, or it is over,
// the chunk under way ends.
type source struct {
	c     net.Conn
	begun bool // something came since the last end
	over  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.over != nil {
		return 0, io.EOF
	}
	deadline := time.Time{}
	if s.begun {
		deadline = within(rest)
	}
	if err := s.c.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := s.c.Read(p)
	switch {
	case n > 0:
		s.begun = true
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, io.EOF
	case err == nil:
		return 0, nil
	}
	s.over = err
	return 0, io.EOF
}

// send cuts what comes from a connection into chunks and sends them, until it ends.
func (l *link) send(c net.Conn) error {
	src := &source{c: c}
	cut := chunker.NewWithBoundaries(src, polynomial, leastChunk, mostChunk)
	cut.SetAverageBits(meanBits)
	buf := make([]byte, mostChunk)
	for {
		chunk, err := cut.Next(buf)
		if err == nil {
			if err := l.sendChunk(chunk.Data); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		switch {
		case src.over == nil:
			if err := l.write(true); err != nil {
				return err
			}
		case errors.Is(src.over, io.EOF):
			return l.write(true, []byte{frameEnd})
		default:
			return src.over
		}
		src.begun = false
		cut.ResetWithBoundaries(src, polynomial, leastChunk, mostChunk)
		cut.SetAverageBits(meanBits)
	}
}

func (l *link) sendChunk(b []byte) error {
	name := idOf(b)
	if l.store.put(name, b) {
		return l.write(false, []byte{frameName}, name[:])
	}
	return l.write(false, binary.BigEndian.AppendUint32([]byte{frameData}, uint32(len(b))), b)
}

// receipt is what has come of one direction. What is behind a chunk that has to be asked for
// waits.
type receipt struct {
	l       *link
	to      net.Conn
	waiting []id          // chunks in order, from the first that is lacking on
	late    map[id][]byte // those that are there
	ended   bool
}

// receive gives a connection what the partner sends, and the partner what it needs, until
// both directions are delivered.
func (l *link) receive(c net.Conn) error {
	r := &receipt{l: l, to: c, late: map[id][]byte{}}
	for mine, its := false, false; !mine || !its; {
		kind, err := l.read.ReadByte()
		if err != nil {
			return noEnd(err)
		}
		if kind == frameDone {
			its = true
			continue
		}
		if err := r.take(kind); err != nil {
			return err
		}
		if !mine && r.ended && len(r.waiting) == 0 {
			mine = true
			if half, ok := c.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			if err := l.write(true, []byte{frameDone}); err != nil {
				return err
			}
		}
	}
	return nil
}

// take takes up one frame.
func (r *receipt) take(kind byte) error {
	var name id
	if kind == frameName || kind == frameNeed || kind == frameHave {
		if _, err := io.ReadFull(r.l.read, name[:]); err != nil {
			return noEnd(err)
		}
	}
	switch kind {
	case frameData, frameHave:
		b, err := r.l.bytes()
		if err != nil {
			return err
		}
		is := idOf(b)
		r.l.store.put(is, b)
		if kind == frameData {
			return r.deliver(is, b)
		}
		if is != name {
			return fmt.Errorf("the partner sends chunk %x for %x", is, name)
		}
		r.late[name] = b
		return r.catchUp()
	case frameName:
		if b := r.l.store.get(name); b != nil {
			return r.deliver(name, b)
		}
		r.waiting = append(r.waiting, name)
		r.l.enqueue([]byte{frameNeed}, name[:])
		return nil
	case frameNeed:
		b := r.l.store.get(name)
		if b == nil {
			return errLost
		}
		r.l.enqueue([]byte{frameHave}, name[:], binary.BigEndian.AppendUint32(nil, uint32(len(b))), b)
		return nil
	case frameEnd:
		r.ended = true
		return nil
	}
	return fmt.Errorf("the partner sends a frame of kind %d", kind)
}

// errLost is a name of which neither end has the content any more.
var errLost = errors.New("the partner asks for a chunk that is not kept any more")

// deliver gives the connection a chunk, unless one before it is lacking.
func (r *receipt) deliver(name id, b []byte) error {
	if len(r.waiting) == 0 {
		_, err := r.to.Write(b)
		return err
	}
	r.waiting, r.late[name] = append(r.waiting, name), b
	return nil
}

// catchUp delivers what waited for a chunk that is there now.
func (r *receipt) catchUp() error {
	for len(r.waiting) > 0 && r.late[r.waiting[0]] != nil {
		if _, err := r.to.Write(r.late[r.waiting[0]]); err != nil {
			return err
		}
		r.waiting = r.waiting[1:]
	}
	if len(r.waiting) == 0 {
		clear(r.late)
	}
	return nil
}

func (l *link) bytes() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(l.read, head[:]); err != nil {
		return nil, noEnd(err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > mostChunk {
		return nil, fmt.Errorf("the partner sends a chunk of %d bytes; at most %d", n, mostChunk)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(l.read, b)
	return b, noEnd(err)
}

// noEnd has a stream that breaks off without its last frame be an error.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
