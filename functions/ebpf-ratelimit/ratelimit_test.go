package ratelimit

import (
	"fmt"
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

// TestCircuits: all addresses of a circuit share one rate down and one up, whichever way the
// chain runs; another list changes what it changes; others pass, or have the rate for all.
func TestCircuits(t *testing.T) {
	b := functionbench.Load(t, "ratelimit", object)
	var list strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&list, "10.%d.%d.1,10.%d.%d.2 2001:db8:%x::/56 %dkbit 400kbit # circuit %d\n", 16+i/256, i%256, 16+i/256, i%256, i+1, 800, i)
	}
	one := "10.16.5.1,10.16.5.2 2001:db8:6::/56"
	tell := func(list string, more ...string) {
		c := sdk.Config{"circuits": list, "burst": "100ms"}
		for i := 0; i < len(more); i += 2 {
			c[more[i]] = more[i+1]
		}
		b.Tell(compile, c)
	}
	tell(list.String())
	far := netip.MustParseAddr("198.51.100.9")
	far6 := netip.MustParseAddr("2001:db8:ffff::9")
	packets := func(hour int, pairs ...netip.Addr) (passed int) { // a thousand a second of 1,000 bytes, for 3 s
		for i := range 3000 {
			k := i % (len(pairs) / 2) * 2
			p := functionbench.Packet{Tuple: onpath.Tuple{Protocol: 17, Src: pairs[k], Dst: pairs[k+1], SrcPort: 1, DstPort: 2}, Wire: 1000,
				Now: uint64(time.Duration(hour)*time.Hour + time.Duration(i)*time.Millisecond)}
			if b.Verdict(p) == 0 {
				passed++
			}
		}
		return passed
	}
	a1, a2, a6 := netip.MustParseAddr("10.16.5.1"), netip.MustParseAddr("10.16.5.2"), netip.MustParseAddr("2001:db8:6:7::1")
	neighbour := netip.MustParseAddr("10.16.6.1")
	const least = 15.4 // packets of 1,000 bytes that a burst is at least
	near(t, "down", packets(1, far, a1, far, a2, far6, a6), 8e5*3/8000+least)
	near(t, "up", packets(2, a1, far, a2, far, a6, far6), 4e5*3/8000+least)
	near(t, "another circuit", packets(1, far, neighbour), 8e5*3/8000+least)
	near(t, "from one circuit to another", packets(3, neighbour, a1), 4e5*3/8000+least)
	near(t, "of no circuit", packets(1, far, netip.MustParseAddr("10.200.0.1")), 3000)

	var before, after circuitValue
	read := func(out *circuitValue) {
		if err := b.Tables["circuits"].Lookup(prefixKey{128, a1.As16()}, out); err != nil {
			t.Fatal(err)
		}
	}
	read(&before)
	changed := strings.Replace(list.String(), one+" 800kbit", one+" 1600kbit", 1)
	tell(changed)
	read(&after)
	if before.Down = 1_600_000; before != after {
		t.Errorf("a circuit whose rate changed became %+v, must be %+v", after, before)
	}
	near(t, "down, by another rate", packets(5, far, a1, far, a2, far6, a6), 16e5*3/8000+20)
	tell(strings.Replace(changed, one, "10.16.5.2", 1), "rate", "100 packets")
	near(t, "an address that is of no circuit any more", packets(6, far, a1), 310)
	near(t, "one that still is", packets(6, far, a2), 16e5*3/8000+20)
	tell("10.200.0.1 1Mbit 1Mbit")
	near(t, "of no list", packets(7, far, a2), 3000)
	b.Tell(compile, sdk.Config{"rate": "100 packets", "burst": "100ms"})
	near(t, "of no circuits", packets(8, far, a2), 310)

	for wrong, say := range map[string]string{
		"": "the list is empty", "# Miller\n\n": "the list is empty",
		"10.0.0.1 1Mbit": "", "10.0.0.1 fast 1Mbit": `"fast"`, "10.0.0.1 1Mbit 0": `"0"`, "1Mbit 1Mbit": "", "\n10.0.0.300 1Mbit 1Mbit": "line 2",
		"10.0.0.1/24 1Mbit 1Mbit": "10.0.0.1/24", "0.0.0.0/0 1Mbit 1Mbit": "0.0.0.0/0", "::/0 1Mbit 1Mbit": "::/0",
		"10.0.0.1 1Mbit 1Mbit\n10.0.0.2 10.0.0.1 1Mbit 1Mbit": "line 2: 10.0.0.1 stands in line 1",
		"fe80::1%eth0 1Mbit 1Mbit":                            "fe80::1%eth0", "::ffff:10.0.0.0/104 1Mbit 1Mbit": "::ffff:10.0.0.0/104",
	} {
		if _, err := compile(sdk.Config{"circuits": wrong}); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), say) {
			t.Errorf("%q gives %v", wrong, err)
		}
	}
	for name, value := range map[string]string{"direction": "reverse", "per": "flow", "prefix4": "24", "prefix6": "56", "sources": "10.0.0.1"} {
		c := sdk.Config{"circuits": "10.0.0.1 1Mbit 1Mbit", name: value}
		if _, err := compile(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s beside circuits, without a rate, gives %v", name, err)
		}
		c["rate"] = "1Mbit"
		if _, err := compile(c); err != nil {
			t.Error(err)
		}
	}
	many := strings.Repeat("10.0.0.1 1Mbit 1Mbit\n", 1)
	for i := range maxCircuits {
		many += fmt.Sprintf("11.%d.%d.%d 1Mbit 1Mbit\n", i>>16, i>>8&255, i&255)
	}
	if _, err := compile(sdk.Config{"circuits": many}); err == nil {
		t.Error("more circuits than there is room for are taken")
	}
}
