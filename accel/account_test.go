package accel

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestAccountsAddUp: whatever relays come and go, and do, and whenever one looks, what they
// pay is what the process took, and each interval is paid by those that lived in it, by what
// they did.
func TestAccountsAddUp(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		var a accounts
		var now, gone time.Duration
		works := map[string]*work{}
		names := func() (list []string) {
			for id := range works {
				list = append(list, id)
			}
			return list
		}
		for step := range 300 {
			now += time.Duration(rng.Int64N(int64(time.Second)))
			list := names()
			switch {
			case len(list) == 0 || rng.IntN(10) == 0:
				id := fmt.Sprint("relay", step)
				works[id] = &work{}
				a.begin(id, works[id], now)
				if got := a.of[id].cpu; got != 0 {
					t.Fatalf("seed %d: a relay that begins has taken %s", seed, got)
				}
			case rng.IntN(12) == 0:
				gone += a.end(list[0], now)
				delete(works, list[0])
			case rng.IntN(3) == 0:
				before, did, all := map[string]time.Duration{}, map[string]int64{}, int64(0)
				a.settle(now)
				for id, w := range works {
					before[id] = a.of[id].cpu
					did[id] = rng.Int64N(1 << uint(rng.IntN(50)))
					w.add(did[id])
					all += did[id]
				}
				took := time.Duration(rng.Int64N(int64(time.Hour)))
				now += took
				a.settle(now)
				for id := range works {
					want := float64(took) / float64(len(works))
					if all > 0 {
						want = float64(took) * float64(did[id]) / float64(all)
					}
					if got := float64(a.of[id].cpu - before[id]); got < want-float64(len(works))-want/1e9 || got > want+float64(len(works))+want/1e9 {
						t.Fatalf("seed %d: %s did %d of %d and pays %g of %g ns", seed, id, did[id], all, got, float64(took))
					}
				}
			default:
				for _, id := range list {
					works[id].add(rng.Int64N(1 << 40))
				}
			}
		}
		a.settle(now)
		sum := gone
		for id := range works {
			sum += a.of[id].cpu
		}
		if len(works) > 0 && sum != now {
			t.Fatalf("seed %d: the relays pay %s, and the process took %s", seed, sum, now)
		}
	}
}

// TestSmallSegmentsPay: bytes that come one by one are paid for each time that the relay wakes.
func TestSmallSegmentsPay(t *testing.T) {
	const turns = 100
	r, leg := local(t)
	var did work
	r.cfg.work = func(string, netip.AddrPort) *work { return &did }
	c := leg(listening(t, func(c *net.TCPConn) { defer c.Close(); _, _ = io.Copy(c, c) }))
	b := []byte{7}
	for range turns {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
	}
	want := int64(synWork + connectionWork + 2*(turns-1)*turnWork)
	if got := did.done.Load(); got < want {
		t.Errorf("%d single bytes, there and back, are work of %d bytes, must be %d", turns, got, want)
	}
}
