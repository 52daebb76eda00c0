package traffic

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath/bench/testnet"
)

// TestClasses: bounds of classes rise, and neighbours are close.
func TestClasses(t *testing.T) {
	for c := range classes - 1 {
		low, high := bound(c), bound(c+1)
		if high <= low || low >= 64 && float64(high-low)/float64(low) > 1.0/32+1e-9 {
			t.Fatalf("class %d is from %d to %d ns", c, low, high)
		}
	}
}

func TestQuantile(t *testing.T) {
	d := &Delays{total: 100}
	d.counts[40], d.counts[200] = 98, 2
	for q, c := range map[float64]int{0.5: 40, 0.98: 40, 0.99: 200, 1: 200} {
		if got := uint64(d.Quantile(q)); got < bound(c) || got >= bound(c+1) {
			t.Errorf("quantile %v is %d ns, must be in class %d, from %d to %d", q, got, c, bound(c), bound(c+1))
		}
	}
}

// wire is a source and a sink at the two ends of one veth pair.
func wire(t *testing.T) (*Source, *Sink) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces and load programs")
	}
	b, err := testnet.New("/run", "ot-traffic-"+filepath.Base(t.TempDir())+time.Now().Format("150405.000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	near, err := b.Namespace("near")
	must(err)
	far, err := b.Namespace("far")
	must(err)
	macs := []net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	must(testnet.Pair(testnet.End{NS: near, Dev: "a", MAC: macs[0]}, testnet.End{NS: far, Dev: "b", MAC: macs[1]}))
	sink, err := NewSink(far, "b")
	must(err)
	b.After(sink.Close)
	own, err := NewSink(near, "a") // a source's device needs an XDP program
	must(err)
	b.After(own.Close)
	src, err := NewSource(near, "a", macs[0], macs[1], LastCPU())
	must(err)
	b.After(src.Close)
	return src, sink
}

func someFlows(n int) Flows {
	return Flows{Count: n, From: netip.MustParseAddr("10.16.0.0"), To: netip.MustParseAddr("10.64.0.1"), Port: 1024, ToPort: 9}
}

// TestFrames: what is sent arrives, to the frame, and stamps give delays.
func TestFrames(t *testing.T) {
	src, sink := wire(t)
	for _, n := range []uint64{1, 63, 64, 1000, 100_000} {
		if err := sink.Reset(); err != nil {
			t.Fatal(err)
		}
		sent, err := src.Run(t.Context(), Job{Flows: someFlows(100), Frames: n, Stamp: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := sink.Packets()
		if err != nil {
			t.Fatal(err)
		}
		d, err := sink.Delays()
		if err != nil {
			t.Fatal(err)
		}
		if sent.Frames != n || got != n || d.Count() != n || d.Quantile(0.5) <= 0 || d.Quantile(0.5) > time.Second {
			t.Errorf("of %d frames %d were sent, %d arrived, with %d delays, %v in the median", n, sent.Frames, got, d.Count(), d.Quantile(0.5))
		}
	}
}

// TestPace: a paced source never sends faster than it should, and ends.
func TestPace(t *testing.T) {
	src, sink := wire(t)
	for _, rate := range []float64{1e3, 1e5} {
		if err := sink.Reset(); err != nil {
			t.Fatal(err)
		}
		sent, err := src.Run(t.Context(), Job{Flows: someFlows(1), Time: 200 * time.Millisecond, Rate: rate})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := sink.Packets(); got != sent.Frames || sent.Frames == 0 || float64(sent.Frames) > rate*0.2+MaxBurst+1 {
			t.Errorf("at %.0f a second, %d were sent in 200 ms and %d arrived", rate, sent.Frames, got)
		}
	}
}
