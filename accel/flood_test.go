package accel

import (
	"log/slog"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// held is how many legs a relay has begun for SYNs whose connection nobody took yet, and how
// many it remembers in all.
func (r *Relay) held() (unclaimed, legs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unclaimed, len(r.legs)
}

// TestFlood: SYNs from everywhere begin no more legs than a relay may open, take no more
// memory, and a client's connection goes on beside them.
func TestFlood(t *testing.T) {
	w := build(t, "")
	w.serve(send)
	w.relay("r2", nil, nil)
	r := w.relay("r1", &fixed{Next: []netip.AddrPort{testNodes["r2"]}}, func(c *Config) { c.Log = slog.New(slog.DiscardHandler) })
	w.fetch(1000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, flooded := make(chan struct{}), make(chan int, 1)
	most := 0
	var sent atomic.Int64
	go func() {
		n := 0
		for ; ; sent.Store(int64(n)) {
			select {
			case <-stop:
				flooded <- n
				return
			default:
			}
			r.SYN(SYN{Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(n >> 16), byte(n >> 8), byte(n)}), uint16(n)), Origin: testOrigin})
			if n++; n%1000 == 0 {
				unclaimed, _ := r.held()
				most = max(most, unclaimed)
			}
		}
	}()
	for i := 0; i < 10 || sent.Load() < 10_000; i++ {
		w.fetch(100_000)
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	n := <-flooded
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d SYNs began at most %d legs at a time; the heap grew by %d kB", n, most, grown>>10)
	if n < 10_000 || most == 0 || most > defaultOpening || grown > 64<<20 {
		t.Errorf("%d SYNs, %d legs, %d bytes", n, most, grown)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		unclaimed, legs := r.held()
		if unclaimed == 0 && legs == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the flood %d legs of %d wait for nobody", unclaimed, legs)
		}
	}
}
