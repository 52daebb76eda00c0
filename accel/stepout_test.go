package accel

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/onpath/onpath/accel/vanish"
	"github.com/onpath/onpath/internal/netnsrun"
)

// stepOut has a host's relay step out of connections.
func (w *world) stepOut(host string) func(*Config) {
	w.t.Helper()
	at := &StepOut{}
	if err := netnsrun.Do(w.lab.NetNS(host), func() error {
		device, err := net.InterfaceByName("west")
		if err != nil {
			return err
		}
		at.Device = device.Index
		at.Legs, err = vanish.Open("")
		at.Clients = at.Legs
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = at.Legs.Close() })
	return func(c *Config) { c.StepOut = at }
}

// pattern writes bytes that say where they stand.
func pattern(w io.Writer, size int) []byte {
	sum := sha256.New()
	var block [8192]byte
	for at := 0; at < size; at += len(block) {
		for i := 0; i < len(block); i += 8 {
			binary.BigEndian.PutUint64(block[i:], uint64(at+i)*0x9e3779b97f4a7c15)
		}
		part := block[:min(len(block), size-at)]
		sum.Write(part)
		if _, err := w.Write(part); err != nil {
			return nil
		}
	}
	return sum.Sum(nil)
}

// TestVanishes: a relay steps out of a connection in the middle of a download, and no byte changes.
func TestVanishes(t *testing.T) {
	w := build(t, ", delay: 5ms, rate: 200Mbit")
	const size = 60 << 20
	w.serve(func(c net.Conn) {
		var ask [8]byte
		_, _ = io.ReadFull(c, ask[:])
		pattern(c, size)
	})
	r := w.relay("r1", &fixed{Transparent: true}, w.stepOut("r1"))
	if out, err := w.lab.Exec(t.Context(), "r1", "ip", "rule", "add", "iif", "east", "lookup", strconv.Itoa(interceptTable)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.download(size)
	s := r.Stats()
	t.Logf("%+v", s)
	if s.Vanished != 1 {
		t.Errorf("the relay is still there: %+v", s)
	}
	if got := s.Tenants[""].ToClient; got >= size {
		t.Errorf("the relay moved all %d bytes", got)
	}
}

// download takes a pattern, and holds it against what was sent.
func (w *world) download(size int) {
	w.t.Helper()
	c, err := w.dial()
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 8)); err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.New()
	n, err := io.Copy(sum, c)
	if err != nil || n != int64(size) {
		w.t.Errorf("%d of %d bytes: %v", n, size, err)
	}
	if want := pattern(io.Discard, size); string(want) != string(sum.Sum(nil)) {
		w.t.Error("the bytes are others")
	}
}

// TestVanishAtRandom: two relays step out at random instants, while packets are lost and change their
// order and ends close and reset; what arrives is what was sent.
func TestVanishAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := build(t, ", delay: 1ms, jitter: 500us, loss: 0.5%") // jitter reorders
	w.serve(func(c net.Conn) { _, _ = io.Copy(c, c); _ = c.(*net.TCPConn).CloseWrite() })
	random := func(host string) func(*Config) {
		out := w.stepOut(host)
		return func(c *Config) {
			out(c)
			c.StepOut.when = func() time.Duration { return time.Duration(rand.Int64N(int64(400 * time.Millisecond))) }
		}
	}
	r2 := w.relay("r2", nil, random("r2"))
	r1 := w.relay("r1", &fixed{Next: []netip.AddrPort{testNodes["r2"]}}, random("r1"))
	connections := 10
	if os.Getenv("ONPATH_SOAK") != "" {
		connections = 1000
	}
	w.echoes(t, seed, connections, 2<<20)
	a, b := r1.Stats(), r2.Stats()
	t.Logf("%+v; %+v", a, b)
	if a.Vanished == 0 || b.Vanished == 0 {
		t.Error("a relay never stepped out")
	}
}
