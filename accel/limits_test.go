package accel

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestFewAreServedLast: a relay serves whom the kernel has answered, whoever holds how much,
// beyond what its node may need to hear that it is full. Of the last places, where nothing
// else keeps anybody away, prefixes that hold much leave some to others.
func TestFewAreServedLast(t *testing.T) {
	c := newCounters(Limits{Connections: 3000})
	flood := func(third byte, n int) (held int) {
		for i := range n {
			if _, err := c.take("acme", netip.AddrFrom4([4]byte{192, 0, third, byte(i)})); err == nil {
				held++
			}
		}
		return held
	}
	if n := flood(1, 2850); n != 2850 {
		t.Errorf("of 2850 clients of one prefix and tenant %d are served, of 3000 places", n)
	}
	if full, _ := c.fullFor("other"); full != onpath.RelayFullConnections {
		t.Errorf("with 2850 of 3000 it is full for %q", full)
	}
	if n := flood(1, 100); n != 0 {
		t.Errorf("of the last places they take %d more", n)
	}
	served := 0
	for i := range 200 { // of a tenant and a prefix of its own each
		if _, err := c.take(fmt.Sprint(i), netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})); err == nil {
			served++
		}
	}
	if served != 150 {
		t.Errorf("of 200 others beside them %d are served, and 150 places were left", served)
	}
}

// TestFull: a relay says that it is full before it refuses anybody, and that it is not when a
// tenth of its places is free again; between, it says nothing new.
func TestFull(t *testing.T) {
	for _, x := range []struct {
		why      onpath.RelayFullness
		client   func(i int) netip.Addr
		tenant   func(i int) string
		at, open int // connections
	}{
		{onpath.RelayFullConnections, func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}) },
			func(i int) string { return string(rune('a' + i%2)) }, 900, 799},
		{onpath.RelayFullTenant, func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}) },
			func(int) string { return "a" }, 601, 533},
		{onpath.RelayFullTenant, func(int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, 1}) },
			func(int) string { return "a" }, 601, 533},
	} {
		c := newCounters(Limits{Connections: 1000})
		var uses []*use
		at := func() int {
			for i := range 1000 {
				u, err := c.take(x.tenant(i), x.client(i))
				if err != nil {
					t.Fatalf("%s: connection %d is refused before the relay is full: %v", x.why, i, err)
				}
				uses = append(uses, u)
				if full, _ := c.fullFor("a"); full != "" {
					if full != x.why {
						t.Errorf("full for %q, want %q", full, x.why)
					}
					return len(uses)
				}
			}
			return 0
		}
		if n := at(); n != x.at {
			t.Errorf("%s: full at %d connections, want %d", x.why, n, x.at)
		}
		_, changed := c.fullFor("a")
		for {
			if full, _ := c.fullFor("a"); full == "" {
				break
			}
			uses[len(uses)-1].release()
			uses = uses[:len(uses)-1]
		}
		if len(uses) != x.open {
			t.Errorf("%s: open again at %d connections, want %d", x.why, len(uses), x.open)
		}
		select {
		case <-changed:
		default:
			t.Errorf("%s: nobody is told that it is open again", x.why)
		}
		for _, u := range uses {
			u.release()
			u.release()
		}
		if c.all != 0 || len(c.prefixes) != 0 {
			t.Errorf("%s: %d connections and %d prefixes are left", x.why, c.all, len(c.prefixes))
		}
	}
}

// TestPlacesAddUp: whatever comes and goes, what is held by tenant and by prefix is what all
// hold, and no limit is passed.
func TestPlacesAddUp(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	c := newCounters(Limits{Connections: 300})
	var uses []*use
	for range 50_000 {
		if n := len(uses); n > 0 && rng.IntN(100) < 48 {
			k := rng.IntN(n)
			uses[k].release()
			uses[k] = uses[n-1]
			uses = uses[:n-1]
		} else if u, err := c.take(string(rune('a'+rng.IntN(3))), netip.AddrFrom4([4]byte{10, 0, byte(rng.ExpFloat64() * 3), 1})); err == nil {
			uses = append(uses, u)
		}
		tenants, prefixes := 0, 0
		for _, x := range c.tenants {
			tenants += x.connections
		}
		for _, x := range c.prefixes {
			prefixes += x
		}
		if c.all != len(uses) || tenants != c.all || prefixes != c.all || c.all > 300 {
			t.Fatalf("seed %d: %d places are taken; counted are %d, by tenant %d, by prefix %d", seed, len(uses), c.all, tenants, prefixes)
		}
	}
}

func TestLimitsOf(t *testing.T) {
	for _, x := range []struct {
		files     uint64
		memory    int64
		instances int
		want      int
	}{
		{20_000, 12 << 30, 0, 3061}, {16_384, 12 << 30, 0, 2496}, {1 << 30, 1 << 30, 0, 4096}, {1024, 1 << 30, 0, 96}, {64, 1 << 30, 0, leastConnections},
		{20_000, 12 << 30, 1, 3059}, {20_000, 12 << 30, 500, 2061},
	} {
		l := limitsOf(x.files, x.memory, x.instances)
		if l.Connections != x.want {
			t.Errorf("with %d files and %d bytes, %d connections, want %d", x.files, x.memory, l.Connections, x.want)
		}
		if x.files > 1000 && uint64(l.Connections*connectionFiles+maxHeaders+x.instances*instanceFiles) > x.files {
			t.Errorf("%d connections may need more than %d files", l.Connections, x.files)
		}
	}
}

// TestSilentLegs: who connects as a relay and says nothing keeps no other relay out.
func TestSilentLegs(t *testing.T) {
	r, leg := local(t)
	echo := listening(t, func(c *net.TCPConn) { defer c.Close(); _, _ = io.Copy(c, c) })
	at := leg(echo).RemoteAddr().String()
	var silent []net.Conn
	for range 2 * maxHeaders {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	c := leg(echo)
	_, _ = c.Write([]byte{7})
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("beside %d silent ones, a leg: %v", len(silent), err)
	}
	waiting := func() int { r.headers.mu.Lock(); defer r.headers.mu.Unlock(); return len(r.headers.list) }
	if n := waiting(); n > maxHeaders {
		t.Errorf("%d connections wait for a header, at most %d may", n, maxHeaders)
	}
	_ = silent[0].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the one that has waited longest is told %v, want a reset", err)
	}
}

func isTimeout(err error) bool { e, ok := err.(net.Error); return ok && e.Timeout() }

// TestLacking: where files or memory are short that the limits counted on, a relay takes less
// than it has, however often it hears of it, and the limits come back when some has ended.
func TestLacking(t *testing.T) {
	c := newCounters(Limits{Connections: 1000})
	var uses []*use
	for i := range 400 {
		u, err := c.take("acme", netip.AddrFrom4([4]byte{10, 0, byte(i), 1}))
		if err != nil {
			t.Fatal(err)
		}
		uses = append(uses, u)
	}
	news := 0
	for range 5 {
		if c.shortOf() {
			news++
		}
	}
	scarce, _ := c.scarcity()
	if free, _ := c.room(relayed); free > 0 || !scarce || news != 1 {
		t.Errorf("short of files at 400 connections, %d more may come; SYNs need a place: %t; it is news %d times", free, scarce, news)
	}
	if _, err := c.takeLast("other", netip.MustParseAddr("10.9.0.1")); err == nil {
		t.Error("another takes a place")
	}
	for _, u := range uses[200:] {
		u.release()
	}
	scarce, _ = c.scarcity()
	if free, _ := c.room(relayed); free != 800 || scarce {
		t.Errorf("half of them have ended, and %d more may come; SYNs need a place: %t", free, scarce)
	}
}

// TestLegWaitsForFile: a connection whose leg finds no file waits for one, and is not reset.
func TestLegWaitsForFile(t *testing.T) {
	r, leg := local(t)
	var tries atomic.Int64
	r.cfg.dialIn = func(open func() error) error {
		if tries.Add(1) < 4 {
			return os.NewSyscallError("socket", unix.EMFILE)
		}
		return open()
	}
	c := leg(listening(t, func(c *net.TCPConn) { defer c.Close(); _, _ = io.Copy(c, c) }))
	_, _ = c.Write([]byte{7})
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("after %d tries: %v", tries.Load(), err)
	}
	if s := r.Stats(); s.Refused != 0 || s.Opened != 1 {
		t.Errorf("it counts %+v", s)
	}
}
