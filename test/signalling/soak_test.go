package signalling

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/signal/gist"
	"github.com/onpath/onpath/signal/nslp"
)

// TestHowLong prints how long a first install takes, from order to the module in force, and
// how long the last node needs to know that it is: where the user's machine answers by ICMP,
// and where it is silent. Medians of 20.
func TestHowLong(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w := setUp(ctx, t)
	const rounds = 20
	// Linux answers one Query a second with an error, after a rest six at once.
	if out, err := w.Exec(ctx, "user", "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	var whole, probed, silent []time.Duration
	timed := func(m *nslp.Message, want string) time.Duration {
		began := time.Now()
		said, err := w.send(ctx, v4, m, true, publisherKey)
		if got := strings.Join(said, ", "); err != nil || got != want {
			t.Fatalf("%s: %s, %v", m.Type, got, err)
		}
		return time.Since(began)
	}
	for range rounds {
		w.stocked(ctx)
		whole = append(whole, timed(w.setup(v4, "m"), "gw1 installed, gw2 installed"))
		timed(&nslp.Message{Type: nslp.Remove, Module: "m"}, "gw1 removed, gw2 removed")
		w.gone(ctx)
		probed = append(probed, timed(&nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent"))
	}
	var taken *net.UDPConn // whoever takes Queries and says nothing
	if err := netnsrun.Do(w.Lab.NetNS("user"), func() (err error) {
		taken, err = net.ListenUDP("udp", &net.UDPAddr{Port: gist.Port})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for range rounds {
		silent = append(silent, timed(&nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent"))
	}
	force := inForce(w.Log("gw1"))
	t.Logf("SETUP with fetch and round trips: median %s; in force on gw1 after %s; PROBE with ICMP: median %s; without: median %s",
		median(whole), force, median(probed), median(silent))
	if force == 0 || force > 150*time.Millisecond {
		t.Errorf("a first install takes %s beside fetch and round trips", force)
	}
	if m := median(probed); m > 500*time.Millisecond {
		t.Errorf("with ICMP the last node is found after %s", m)
	}
	if m := median(silent); m > 4*time.Second { // it waits 3.5 s, as a next node may be that far away
		t.Errorf("without ICMP the last node is found after %s", m)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2].Round(10 * time.Microsecond)
}

// inForce is the median of what an agent says that its installs took, without fetch.
func inForce(log string) time.Duration {
	var all []time.Duration
	for _, m := range regexp.MustCompile(`in force".*took=(\S+)`).FindAllStringSubmatch(log, -1) {
		if d, err := time.ParseDuration(m[1]); err == nil && d > time.Millisecond { // the others only prolong
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return 0
	}
	return median(all)
}

// stocked waits until two engines wait on each node, as they do before a first request comes.
func (w *world) stocked(ctx context.Context) {
	w.t.Helper()
	err := w.WaitFor(ctx, "engines wait", time.Minute, func() (bool, error) {
		for _, name := range w.names() {
			sockets, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/wasm/.engine-*/control", w.Pid(name)))
			if err != nil || len(sockets) != 2 {
				return false, err
			}
			for _, path := range sockets {
				if _, err := (control.Client{Path: path}).Status(ctx); err != nil {
					return false, ctx.Err()
				}
			}
		}
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// gone waits until no engine is left.
func (w *world) gone(ctx context.Context) {
	w.t.Helper()
	err := w.WaitFor(ctx, "the engines are gone", time.Minute, func() (bool, error) {
		for _, host := range w.names() {
			if none, err := w.without(ctx, host); err != nil || !none {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// without reports whether a node has no engine.
func (w *world) without(ctx context.Context, host string) (bool, error) {
	out, err := w.Exec(ctx, host, "ip", "-br", "link")
	return err == nil && !strings.Contains(string(out), "op0"), err
}

// TestForgedQueries: while forged Queries come as fast as two sockets send them, from
// addresses that nobody has, datagrams that pass the node lose nothing, and its agent's
// memory does not grow with them.
func TestForgedQueries(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it occupies the machine for ten seconds")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w := setUp(ctx, t)
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	w.forge(2 * time.Second) // what the agent has learnt once does not count
	before := w.rss("gw1")
	back := make(chan int)
	const numbered = 2000
	go func() { back <- w.pass(v4, numbered) }()
	sent, took := w.forge(5 * time.Second)
	got := <-back
	after := w.rss("gw1")
	t.Logf("%d forged Queries in %s: %.0f a second; %d of %d datagrams are answered; resident memory of the agent %d → %d KiB", sent,
		took, float64(sent)/took.Seconds(), got, numbered, before>>10, after>>10)
	if got != numbered {
		t.Errorf("of %d datagrams %d are answered", numbered, got)
	}
	if after > before+1<<20 {
		t.Errorf("the agent's memory grows from %d to %d KiB", before>>10, after>>10)
	}
}

// forge sends Queries with sources that nobody has from the publisher's machine.
func (w *world) forge(long time.Duration) (sent int64, took time.Duration) {
	w.t.Helper()
	var count atomic.Int64
	began := time.Now()
	err := netnsrun.Do(w.Lab.NetNS("publisher"), func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: v4.user.As4()}
		for i := uint32(0); time.Since(began) < long; i++ {
			if err := unix.Sendto(fd, forged(i), 0, to); err != nil && err != unix.ENOBUFS {
				return err
			}
			count.Add(1)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	return count.Load(), time.Since(began)
}

// forged is an IPv4 packet with a Query from an address of its own.
func forged(i uint32) []byte {
	from := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
	mri, session := gist.Toward(from, v4.user), gist.SessionID{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}
	q := &gist.Message{Hops: 32, NSLPID: gist.NSLPID, Type: gist.Query, QMode: true, Source: true, Reply: true, MRI: &mri, Session: &session,
		NLI: &gist.NLI{Peer: "forged", TTL: 64, Valid: 30e9, Address: from}, QueryCookie: make([]byte, 16), Payload: make([]byte, 96)}
	b := make([]byte, 28, 512)
	b[0], b[8], b[9] = 0x45, 64, 17
	copy(b[12:], from.AsSlice())
	copy(b[16:], v4.user.AsSlice())
	binary.BigEndian.PutUint16(b[20:], gist.Port)
	binary.BigEndian.PutUint16(b[22:], gist.Port)
	b = q.Append(b)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
	return b
}

// rss is the resident memory of an agent, in bytes.
func (w *world) rss(name string) int {
	w.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", w.Pid(name)))
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 2 {
		w.t.Fatalf("%v: %q", err, b)
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		w.t.Fatal(err)
	}
	return n * os.Getpagesize()
}
