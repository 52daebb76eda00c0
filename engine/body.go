package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/onpath/onpath/engine/blob"
)

// Bounds of body/1: of an engine, of one client's address, of one answer.
const (
	maxKept       = 256
	maxKeptOf     = 32
	maxQueued     = 64 << 10 // bytes of an answer that its client has not taken
	beginTime     = 30 * time.Second
	slowest       = 20 * time.Second // for a client to take a piece, or to send one
	maxStatusLine = 599
)

// reply is a request that its module keeps.
type reply struct {
	h      *host
	id     int32
	ctx    context.Context // the request's
	stop   context.CancelFunc
	unhook func() bool // it ends with its module
	r      *http.Request
	early  io.Reader // the body, also what was read of it
	pieces
	wake chan struct{}

	mu     sync.Mutex
	status int
	header http.Header
	queue  []part
	queued int
	ended  bool
	asks   bool // the module was told to wait for room
	reads  bool // some of the body is being read
}

// part is some of an answer's body: bytes, or some of a blob.
type part struct {
	data       []byte
	blob       *blob.Blob
	release    func()
	from, size int64
}

func (p *reply) cancel() { p.stop() }

func (p *reply) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// kept counts requests that are kept, of all and by client.
type kept struct {
	mu  sync.Mutex
	n   int
	per map[string]int
}

func (k *kept) take(client string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n >= maxKept || k.per[client] >= maxKeptOf {
		return false
	}
	if k.per == nil {
		k.per = map[string]int{}
	}
	k.n++
	k.per[client]++
	return true
}

func (k *kept) give(client string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.n--
	if k.per[client]--; k.per[client] == 0 {
		delete(k.per, client)
	}
}

func clientOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// keep makes a stream of the request at hand.
func (h *host) keep(_ api.Memory, s []uint64) {
	a := h.answer
	switch {
	case a == nil || a.status != 0 || a.asked == nil:
		s[0] = result(absent)
		return
	case a.kept != nil:
		s[0] = result(a.kept.id)
		return
	case h.m.event == nil || !h.e.kept.take(clientOf(a.asked)):
		s[0] = result(refused)
		return
	}
	p := &reply{h: h, id: h.streams.number(), r: a.asked, early: a.upload, pieces: newPieces(), wake: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(a.asked.Context())
	p.unhook = context.AfterFunc(h.streams.ctx, p.stop)
	h.streams.open[p.id] = p
	a.kept = p
	s[0] = result(p.id)
}

// requestHeader gives a line of the header of the request at hand.
func (h *host) requestHeader(mem api.Memory, s []uint64) {
	name, ok := window(mem, s[0], s[1], maxName)
	if !ok || h.answer == nil || h.answer.asked == nil || h.answer.asked.Header.Get(string(name)) == "" {
		s[0] = result(absent)
		return
	}
	s[0] = give(mem, []byte(h.answer.asked.Header.Get(string(name))), s[2], s[3])
}

func (h *host) reply(number uint64) *reply {
	p, _ := h.streams.open[int32(u(number))].(*reply)
	return p
}

func (h *host) beginAnswer(mem api.Memory, s []uint64) {
	b, ok := window(mem, s[2], s[3], maxHeader)
	header, err := headerLines(b)
	status := int(u(s[1]))
	p := h.reply(s[0])
	switch {
	case p == nil:
		s[0] = result(absent)
	case !ok || err != nil || status < 200 || status > maxStatusLine:
		s[0] = result(tooLarge)
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		if s[0] = result(refused); p.status == 0 {
			p.status, p.header = status, header
			p.kick()
			s[0] = 0
		}
	}
}

var lengthLine = regexp.MustCompile(`(?im)^content-length: *([0-9]{1,18})\r?$`)

// headerLines is headerOf, with the length of the body.
func headerLines(b []byte) (http.Header, error) {
	h, err := headerOf(b)
	if err != nil {
		return nil, err
	}
	if n := lengthLine.FindSubmatch(b); n != nil { // which headerOf withholds
		h.Set("Content-Length", string(n[1]))
	}
	return h, nil
}

// put adds a part to the body, if the answer has begun and goes on.
func (p *reply) put(one part) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == 0 || p.ended {
		return absent
	}
	if n := len(one.data); n > 0 {
		if p.queued+n > maxQueued {
			p.asks = true
			return refused
		}
		p.queued += n
	}
	p.queue = append(p.queue, one)
	p.kick()
	return 0
}

func (h *host) writeAnswer(mem api.Memory, s []uint64) {
	b, ok := window(mem, s[1], s[2], maxQueued)
	p := h.reply(s[0])
	switch {
	case !ok:
		s[0] = result(tooLarge)
	case p == nil:
		s[0] = result(absent)
	case len(b) == 0:
		s[0] = 0
	default:
		s[0] = result(p.put(part{data: slices.Clone(b)}))
	}
}

// maxParts is how many blobs an answer may be made of at once.
const maxParts = 64

func (h *host) writeBlob(mem api.Memory, s []uint64) {
	b, no := h.findBlob(mem, s[1], s[2])
	p := h.reply(s[0])
	if p == nil {
		no = absent
	}
	if no != 0 {
		s[0] = result(no)
		return
	}
	p.mu.Lock()
	many := len(p.queue) >= maxParts
	p.mu.Unlock()
	if many {
		s[0] = result(refused)
		return
	}
	release := b.Hold()
	no = p.put(part{blob: b, release: release, from: int64(s[3] & (1<<62 - 1)), size: int64(s[4] & (1<<62 - 1))})
	if no != 0 {
		release()
	}
	s[0] = result(no)
}

func (h *host) endAnswer(_ api.Memory, s []uint64) {
	p := h.reply(s[0])
	if p == nil {
		s[0] = result(absent)
		return
	}
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.kick()
	s[0] = 0
}

var errBegin = fmt.Errorf("the module did not answer within %s", beginTime)

// serve sends the answer, as the module writes it; the request's goroutine.
func (p *reply) serve(w http.ResponseWriter) {
	defer p.h.e.kept.give(clientOf(p.r))
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	_ = rc.SetReadDeadline(time.Time{}) // else the client would count as gone
	read := make(chan struct{})
	go func() { defer close(read); p.upload(rc) }()
	began, err := p.send(w, rc)
	p.unhook()
	p.stop()
	p.mu.Lock()
	if p.reads {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // the upload ends
	}
	p.mu.Unlock()
	<-read
	p.letGo()
	end := event{kind: isSent, last: true}
	if err != nil {
		end.kind, end.data = isFailed, []byte(err.Error())
	}
	_ = p.h.tell(p.h.streams.ctx, p.id, end)
	switch {
	case err == nil:
	case !began && errors.Is(err, errBegin):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case !began:
		http.Error(w, "the module gave the request up", http.StatusBadGateway)
	default:
		panic(http.ErrAbortHandler) // the client sees that there is not all
	}
}

func (p *reply) send(w http.ResponseWriter, rc *http.ResponseController) (began bool, err error) {
	patience := newTimer(beginTime)
	defer patience.Stop()
	for {
		p.mu.Lock()
		status, ended := p.status, p.ended
		var one part
		some := status != 0 && len(p.queue) > 0
		if some {
			one, p.queue = p.queue[0], p.queue[1:]
		}
		header := p.header
		p.mu.Unlock()
		if status != 0 && !began {
			began = true
			for name, values := range header {
				w.Header()[name] = values
			}
			_ = rc.SetWriteDeadline(now().Add(slowest))
			w.WriteHeader(status)
		}
		switch {
		case some:
			if err := p.write(w, rc, one); err != nil {
				return began, err
			}
			continue
		case began && ended:
			return began, nil
		case ended:
			return began, errors.New("the module ended the answer before it began")
		case began:
			if err := rc.Flush(); err != nil {
				return began, err
			}
		}
		var late <-chan time.Time
		if !began {
			late = patience.C
		}
		select {
		case <-p.wake:
		case <-late:
			return began, errBegin
		case <-p.ctx.Done():
			return began, context.Cause(p.ctx)
		}
	}
}

// write sends one part. A client that takes nothing for a while is given up.
func (p *reply) write(w io.Writer, rc *http.ResponseController, one part) error {
	if one.blob == nil {
		_ = rc.SetWriteDeadline(now().Add(slowest))
		_, err := w.Write(one.data)
		p.taken(len(one.data))
		return err
	}
	defer one.release()
	b := make([]byte, maxPiece)
	for off := one.from; one.size == 0 || off < one.from+one.size; {
		most := int64(len(b))
		if one.size > 0 {
			most = min(most, one.from+one.size-off)
		}
		n, err := one.blob.ReadAt(p.ctx, b[:most], off)
		if err == io.EOF && one.size == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		_ = rc.SetWriteDeadline(now().Add(slowest))
		if _, err := w.Write(b[:n]); err != nil {
			return err
		}
		off += int64(n)
		if size, whole := one.blob.Size(); !whole && off >= size { // what is there is not held back
			if err := rc.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// taken notes that the client has taken bytes, and tells the module that waits for that.
func (p *reply) taken(n int) {
	p.mu.Lock()
	p.queued -= n
	tell := p.asks && p.queued <= maxQueued/2 && !p.ended
	if tell {
		p.asks = false
	}
	p.mu.Unlock()
	if tell {
		_ = p.h.tell(p.ctx, p.id, event{kind: isWritable})
	}
}

// letGo forgets what was not sent.
func (p *reply) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, one := range p.queue {
		if one.release != nil {
			one.release()
		}
	}
	p.queue = nil
	p.queued = 0
}

// upload gives the module the request's body, a piece whenever it asks for one.
func (p *reply) upload(rc *http.ResponseController) {
	b := make([]byte, 0)
	for {
		select {
		case <-p.next:
		case <-p.ctx.Done():
			return
		}
		if len(b) == 0 {
			b = make([]byte, p.h.piece())
		}
		n, err := p.readBody(rc, b)
		if p.ctx.Err() != nil {
			return
		}
		switch {
		case n > 0:
			err = p.h.tell(p.ctx, p.id, event{kind: isPiece, data: b[:n]})
		case err == io.EOF:
			_ = p.h.tell(p.ctx, p.id, event{kind: isEnd})
			return
		}
		if err != nil && err != io.EOF {
			p.stop()
			return
		}
	}
}

func (p *reply) readBody(rc *http.ResponseController, b []byte) (int, error) {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return 0, p.ctx.Err()
	}
	p.reads = true
	_ = rc.SetReadDeadline(now().Add(slowest))
	p.mu.Unlock()
	n, err := p.early.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reads = false; p.ctx.Err() == nil {
		_ = rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
