package ratelimit

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject/functionbench"
	"github.com/onpath/onpath/sdk"
)

func udpFrom(src string, port uint16) onpath.Tuple {
	return onpath.Tuple{Protocol: 17, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("10.9.0.2"), SrcPort: port, DstPort: 53}
}

// offer sends packets of a size at a rate for a time of the packets' own clock, and
// gives how many passed.
func offer(b *functionbench.Bench, t onpath.Tuple, start time.Duration, wire uint32, perSecond int, last time.Duration) (passed int) {
	gap := time.Second / time.Duration(perSecond)
	for at := time.Duration(0); at < last; at += gap {
		if b.Verdict(functionbench.Packet{Tuple: t, Wire: wire, Now: uint64(start + at)}) == 0 {
			passed++
		}
	}
	return passed
}

func near(t *testing.T, what string, got int, want float64) {
	t.Helper()
	if math.Abs(float64(got)-want) > want*0.02+2 {
		t.Errorf("%s: %d packets passed, must be %.0f", what, got, want)
	}
}

// TestSources: only listed sources are limited, by the prefixes that count, until they are taken
// out of the list.
func TestSources(t *testing.T) {
	b := functionbench.Load(t, "ratelimit", object)
	v6 := onpath.Tuple{Protocol: 17, Src: netip.MustParseAddr("2001:db8::5"), Dst: netip.MustParseAddr("fd09::2"), SrcPort: 1, DstPort: 53}
	for hour, list := range []string{"", "10.1.0.2", "10.1.0.2,2001:db8::77", "2001:db8::1", ""} {
		b.Tell(compile, sdk.Config{"rate": "100 packets", "burst": "100ms", "per": "source", "sources": list})
		begin := time.Duration(hour+1) * time.Hour
		for _, c := range []struct {
			of     onpath.Tuple
			listed string
		}{{udpFrom("10.1.0.2", 1), "10.1.0.2"}, {udpFrom("10.1.0.3", 1), "-"}, {v6, "2001:db8::"}} {
			want := 2000.0
			if strings.Contains(list, c.listed) {
				want = 210
			}
			near(t, list+": "+c.of.Src.String(), offer(b, c.of, begin, 100, 1000, 2*time.Second), want)
		}
	}
	for _, wrong := range []string{"10.1.0.0/24", "example.net", "fe80::1%eth0"} {
		if _, err := compile(sdk.Config{"rate": "100 packets", "sources": wrong}); err == nil {
			t.Error(wrong, "is taken for an address")
		}
	}
}

// TestRatelimit: over ten seconds what passes is the rate and one burst, within two
// hundredths; buckets are told apart as asked.
func TestRatelimit(t *testing.T) {
	b := functionbench.Load(t, "ratelimit", object)
	const hour = time.Hour
	b.Tell(compile, sdk.Config{"rate": "100 packets", "burst": "100ms"})
	near(t, "packets", offer(b, udpFrom("10.1.0.2", 1), hour, 100, 1000, 10*time.Second), 100*10+10)

	b.Tell(compile, sdk.Config{"rate": "1Mbit", "burst": "100ms"})
	near(t, "bits", offer(b, udpFrom("10.1.0.2", 1), 2*hour, 1000, 1000, 10*time.Second), 1e6*10/8000+1e5/8000)
	b.Tell(compile, sdk.Config{"rate": "1Mbit", "burst": "100ms", "overhead": "38"})
	near(t, "bits on Ethernet", offer(b, udpFrom("10.1.0.2", 1), 3*hour, 1000, 1000, 10*time.Second), 1e6*10/8304+1538*80/8304)

	b.Tell(compile, sdk.Config{"rate": "100 packets", "burst": "100ms", "per": "flow"})
	for port := range uint16(3) {
		near(t, "one flow", offer(b, udpFrom("10.1.0.2", 10+port), 4*hour, 100, 1000, 2*time.Second), 210)
	}
	b.Tell(compile, sdk.Config{"rate": "100 packets", "burst": "100ms", "per": "source", "prefix4": "24"})
	near(t, "a source", offer(b, udpFrom("10.1.0.2", 1), 5*hour, 100, 1000, 2*time.Second), 210)
	near(t, "its neighbour", offer(b, udpFrom("10.1.0.77", 1), 5*hour+2*time.Second, 100, 1000, 2*time.Second), 200)
	near(t, "another prefix", offer(b, udpFrom("10.1.1.2", 1), 5*hour, 100, 1000, 2*time.Second), 210)

	b.Tell(compile, sdk.Config{"rate": "100 packets", "above": "mark", "dscp": "8"})
	near(t, "marked", offer(b, udpFrom("10.1.0.2", 1), 6*hour, 100, 1000, time.Second), 1000)
}

// TestRatelimitLarge: a packet for many on the wire that is larger than the burst waits
// for a full bucket, and what follows pays for it.
func TestRatelimitLarge(t *testing.T) {
	b := functionbench.Load(t, "ratelimit", object)
	const hour, large = time.Hour, 64 << 10
	b.Tell(compile, sdk.Config{"rate": "1Mbit", "burst": "100ms"})
	near(t, "large ones", offer(b, udpFrom("10.1.0.2", 1), hour, large, 1000, 60*time.Second), 1e6*60/(8*large))
	if b.Verdict(functionbench.Packet{Tuple: udpFrom("10.1.0.2", 1), Wire: large, Now: uint64(2 * hour)}) != 0 {
		t.Error("a full bucket let no large packet go")
	}
	near(t, "small ones in its debt", offer(b, udpFrom("10.1.0.2", 1), 2*hour, 1000, 1000, 300*time.Millisecond), 0)
	near(t, "small ones behind it", offer(b, udpFrom("10.1.0.2", 1), 2*hour+300*time.Millisecond, 1000, 1000, 10*time.Second), 1e6*(10.3-0.512+0.1)/8000)
	near(t, "a small one after a rest", offer(b, udpFrom("10.1.0.2", 1), 2*hour+30*time.Second, 1000, 1000, 10*time.Second), 1e6*10/8000+1e5/8000)
}

// TestRatelimitErrors: faults say what and what to write.
func TestRatelimitErrors(t *testing.T) {
	for _, c := range []sdk.Config{
		{}, {"rate": "fast"}, {"rate": "0 packets"}, {"rate": "1Mbit", "per": "host"}, {"rate": "1Mbit", "burst": "1h"},
		{"rate": "1Mbit", "prefix4": "33"}, {"rate": "1Mbit", "direction": ""}, {"speed": "1"},
	} {
		if _, err := compile(c); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%v gives %v", c, err)
		}
	}
}
