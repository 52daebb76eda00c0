// Package blackout measures, from a capture at a gateway's uplinks, for how long
// each flow came in and did not go out again.
package blackout

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Report is what the capture shows, times in milliseconds.
type Report struct {
	Flows []Flow `json:"flows"`
	// Longest blackout of all flows, and the typical time between two packets
	// of one: nothing shorter can be seen.
	Longest    float64 `json:"longest"`
	Resolution float64 `json:"resolution"`
	// Unmeasured flows do not come out as they came in: an element answers them
	// itself, or rewrites them.
	Unmeasured int `json:"unmeasured"`
	Packets    int `json:"packets"`
}

// Flow is one direction of a flow.
type Flow struct {
	Protocol uint8          `json:"protocol"`
	Src      netip.AddrPort `json:"src"`
	Dst      netip.AddrPort `json:"dst"`
	In       int            `json:"in"`
	Out      int            `json:"out"`
	Blackout float64        `json:"blackout"` // ms
	// Silent: nothing more came out until the end.
	Silent bool `json:"silent,omitempty"`
}

type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

type track struct {
	in, out   int
	waits     time.Time // since when packets came in and none came out
	last      time.Time // came in
	blackout  time.Duration
	spacing   []time.Duration
	beforeOut bool // came out before the fault
}

// Read judges a capture (pcapng, the second interface having what went out), of
// a fault caused at the given time by the capture's clock.
func Read(r io.Reader, fault time.Time, outSuffix string) (*Report, error) {
	ng, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if errors.Is(err, io.EOF) {
		return &Report{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	flows, packets := map[tuple]*track{}, 0
	for {
		data, info, err := ng.ReadPacketData()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return check(flows, packets), nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the capture: %w", err)
		}
		t, ok := tupleOf(data)
		if !ok {
			continue
		}
		packets++
		f := flows[t]
		if f == nil {
			f = &track{}
			flows[t] = f
		}
		face, err := ng.Interface(info.InterfaceIndex)
		f.see(info.Timestamp, err == nil && strings.HasSuffix(face.Name, outSuffix), fault)
	}
}

func (f *track) see(at time.Time, out bool, fault time.Time) {
	if out {
		f.out++
		f.beforeOut = f.beforeOut || at.Before(fault)
		if !f.waits.IsZero() {
			f.blackout = max(f.blackout, at.Sub(f.waits))
		}
		f.waits = time.Time{}
		return
	}
	f.in++
	if !f.last.IsZero() {
		f.spacing = append(f.spacing, at.Sub(f.last))
	}
	f.last = at
	if f.waits.IsZero() {
		f.waits = at
	}
}

func check(flows map[tuple]*track, packets int) *Report {
	r := &Report{Packets: packets}
	var spacing []time.Duration
	for t, f := range flows {
		if f.in == 0 || !f.beforeOut {
			r.Unmeasured++
			continue
		}
		one := Flow{Protocol: t.protocol, Src: t.src, Dst: t.dst, In: f.in, Out: f.out}
		if !f.waits.IsZero() {
			if d := f.last.Sub(f.waits); d > f.blackout {
				f.blackout, one.Silent = d, true
			}
		}
		one.Blackout = ms(f.blackout)
		spacing = append(spacing, f.spacing...)
		r.Longest = max(r.Longest, one.Blackout)
		r.Flows = append(r.Flows, one)
	}
	slices.SortFunc(r.Flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.Blackout, a.Blackout), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst))
	})
	if len(spacing) > 0 {
		slices.Sort(spacing)
		r.Resolution = ms(spacing[len(spacing)/2])
	}
	return r
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// tupleOf reads the flow of an Ethernet frame with TCP or UDP.
func tupleOf(frame []byte) (t tuple, ok bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	var src, dst netip.Addr
	switch n := p.NetworkLayer().(type) {
	case *layers.IPv4:
		src, _ = netip.AddrFromSlice(n.SrcIP.To4())
		dst, _ = netip.AddrFromSlice(n.DstIP.To4())
	case *layers.IPv6:
		src, _ = netip.AddrFromSlice(n.SrcIP)
		dst, _ = netip.AddrFromSlice(n.DstIP)
	default:
		return t, false
	}
	switch l := p.TransportLayer().(type) {
	case *layers.TCP:
		return tuple{6, netip.AddrPortFrom(src, uint16(l.SrcPort)), netip.AddrPortFrom(dst, uint16(l.DstPort))}, true
	case *layers.UDP:
		return tuple{17, netip.AddrPortFrom(src, uint16(l.SrcPort)), netip.AddrPortFrom(dst, uint16(l.DstPort))}, true
	}
	return t, false
}
