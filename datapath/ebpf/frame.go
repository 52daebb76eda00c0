package ebpf

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/onpath/onpath"
)

// frameTuple reads the 5-tuple of an Ethernet frame, for the filter of a capture.
func frameTuple(frame []byte) (onpath.Tuple, bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	var t onpath.Tuple
	switch n := p.NetworkLayer().(type) {
	case *layers.IPv4:
		t.Protocol = uint8(n.Protocol)
		t.Src, _ = netip.AddrFromSlice(n.SrcIP.To4())
		t.Dst, _ = netip.AddrFromSlice(n.DstIP.To4())
	case *layers.IPv6:
		t.Protocol = uint8(n.NextHeader)
		t.Src, _ = netip.AddrFromSlice(n.SrcIP)
		t.Dst, _ = netip.AddrFromSlice(n.DstIP)
	default:
		return t, false
	}
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.TCP:
			t.Protocol, t.SrcPort, t.DstPort = 6, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.UDP:
			t.Protocol, t.SrcPort, t.DstPort = 17, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.ICMPv4:
			t.Protocol, t.SrcPort, t.DstPort = 1, l.Id, l.Id
		case *layers.ICMPv6:
			t.Protocol = 58
			if c := l.LayerPayload(); len(c) >= 2 {
				t.SrcPort = binary.BigEndian.Uint16(c)
				t.DstPort = t.SrcPort
			}
		}
	}
	return t, true
}
