package engine

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/blob"
)

// Bounds of blob/1.
const (
	maxBlobKey = 256
	maxAbout   = 1 << 10
	maxAdd     = 64 << 10
	maxWriting = 16       // blobs that a module adds to at a time
	writeRate  = 32 << 20 // bytes a second that a module adds
)

// pace is a rate that several goroutines keep to together: who is over it waits until it is not.
type pace struct {
	mu sync.Mutex
	q  quota
}

func newPace(rate float64) *pace { return &pace{q: newQuota(rate)} }

// wait takes n, and then as long as what was taken is too much.
func (p *pace) wait(ctx context.Context, n int) error {
	p.mu.Lock()
	p.q.take(0, now()) // fills it up, and what was not used for a while is over
	p.q.have = min(p.q.have, p.q.rate/10) - float64(n)
	over := time.Duration(-p.q.have / p.q.rate * float64(time.Second))
	p.mu.Unlock()
	if over <= 0 {
		return nil
	}
	t := newTimer(over)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keepBlobs gives the engine its disk: a file that may grow to size bytes. The engine keeps
// the one that it was given first.
func (e *Engine) keepBlobs(f *os.File, size onpath.Size) error {
	if e.disk.Load() != nil {
		return f.Close()
	}
	s, err := blob.Open(f, int64(size))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if !e.disk.CompareAndSwap(nil, s) {
		return f.Close()
	}
	return nil
}

// blobKey is a name as the store has it: each module has names of its own.
func (h *host) blobKey(mem api.Memory, at, n uint64) (string, bool) {
	b, ok := window(mem, at, n, maxBlobKey)
	return h.m.spec.Name + "\x00" + string(b), ok
}

// findBlob gives one, or why there is none.
func (h *host) findBlob(mem api.Memory, at, n uint64) (*blob.Blob, int32) {
	key, ok := h.blobKey(mem, at, n)
	disk := h.e.disk.Load()
	switch {
	case !ok:
		return nil, tooLarge
	case disk == nil:
		return nil, absent
	}
	if b := disk.Find(key); b != nil {
		return b, 0
	}
	return nil, absent
}

// createBlob begins one: name and words stand in the first four parameters.
func (h *host) createBlob(mem api.Memory, s []uint64) (*blob.Writer, int32) {
	key, ok := h.blobKey(mem, s[0], s[1])
	about, ok2 := window(mem, s[2], s[3], maxAbout)
	disk := h.e.disk.Load()
	switch {
	case !ok || !ok2:
		return nil, tooLarge
	case disk == nil:
		return nil, absent
	}
	w, err := disk.Create(key, about)
	if err != nil {
		return nil, refused
	}
	return w, 0
}

func (h *host) blobFind(mem api.Memory, s []uint64) {
	b, no := h.findBlob(mem, s[0], s[1])
	if no != 0 {
		s[0] = result(no)
		return
	}
	size, whole := b.Size()
	if _, ok := window(mem, s[2], 16, 16); !ok {
		s[0] = result(tooLarge)
		return
	}
	mem.WriteUint64Le(u(s[2]), uint64(size))
	mem.WriteUint32Le(u(s[2])+8, 0)
	if whole {
		mem.WriteUint32Le(u(s[2])+8, 1)
	}
	mem.WriteUint32Le(u(s[2])+12, uint32(len(b.About())))
	give(mem, b.About(), s[3], s[4])
	s[0] = 0
}

func (h *host) blobCreate(mem api.Memory, s []uint64) {
	if len(h.writing) >= maxWriting {
		s[0] = result(refused)
		return
	}
	w, no := h.createBlob(mem, s)
	if no == 0 {
		key, _ := h.blobKey(mem, s[0], s[1])
		h.writing[key] = w
	}
	s[0] = result(no)
}

func (h *host) blobAdd(mem api.Memory, s []uint64) {
	key, ok := h.blobKey(mem, s[0], s[1])
	data, ok2 := window(mem, s[2], s[3], maxAdd)
	w := h.writing[key]
	switch {
	case !ok || !ok2:
		s[0] = result(tooLarge)
	case w == nil:
		s[0] = result(absent)
	case !h.writes.take(float64(len(data)), now()):
		s[0] = result(refused)
	default:
		s[0] = 0
		if _, err := w.Write(data); err != nil {
			delete(h.writing, key)
			s[0] = result(refused)
		}
	}
}

func (h *host) blobWhole(mem api.Memory, s []uint64) {
	key, _ := h.blobKey(mem, s[0], s[1])
	w := h.writing[key]
	if w == nil {
		s[0] = result(absent)
		return
	}
	delete(h.writing, key)
	s[0] = 0
	if w.Whole() != nil {
		s[0] = result(refused)
	}
}

// blobRead does not wait for what is still to be written.
func (h *host) blobRead(mem api.Memory, s []uint64) {
	b, no := h.findBlob(mem, s[0], s[1])
	if no != 0 {
		s[0] = result(no)
		return
	}
	to, ok := window(mem, s[3], s[4], maxAdd)
	size, _ := b.Size()
	off := int64(s[2] & (1<<62 - 1))
	switch {
	case !ok:
		s[0] = result(tooLarge)
	case off >= size:
		s[0] = 0
	default:
		n, err := b.ReadAt(h.streams.ctx, to[:min(int64(len(to)), size-off)], off)
		if s[0] = result(int32(n)); err != nil {
			s[0] = result(absent)
		}
	}
}

func (h *host) blobDelete(mem api.Memory, s []uint64) {
	b, no := h.findBlob(mem, s[0], s[1])
	if no == 0 {
		key, _ := h.blobKey(mem, s[0], s[1])
		h.e.disk.Load().Delete(key)
		_ = b
	}
	s[0] = result(no)
}
