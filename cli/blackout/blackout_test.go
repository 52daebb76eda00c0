package blackout

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// TestRead: a flow with a hole, one that goes silent, one that is answered by an
// element, one that is well.
func TestRead(t *testing.T) {
	var b bytes.Buffer
	face := pcapgo.NgInterface{Name: "vport 1", LinkType: layers.LinkTypeEthernet, TimestampResolution: 9}
	w, err := pcapgo.NewNgWriterInterface(&b, face, pcapgo.NgWriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	face.Name += " out"
	if _, err := w.AddInterface(face); err != nil {
		t.Fatal(err)
	}
	begin := time.Unix(1000, 0)
	put := func(ms int, port layers.UDPPort, out int) {
		t.Helper()
		frame := datagram(t, port)
		err := w.WritePacket(gopacket.CaptureInfo{
			Timestamp: begin.Add(time.Duration(ms) * time.Millisecond), Length: len(frame), CaptureLength: len(frame), InterfaceIndex: out,
		}, frame)
		if err != nil {
			t.Fatal(err)
		}
	}
	const hole, silent, answered, well = 1, 2, 3, 4
	for ms := 0; ms < 1000; ms += 10 {
		for _, port := range []layers.UDPPort{hole, silent, answered, well} {
			put(ms, port, 0)
			if port == well || port == hole && (ms < 500 || ms >= 700) || port == silent && ms < 500 {
				put(ms+1, port, 1)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	cut := b.Len() - 3 // a capture may end anywhere
	r, err := Read(bytes.NewReader(b.Bytes()[:cut]), begin.Add(500*time.Millisecond), " out")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Flows) != 3 || r.Unmeasured != 1 || r.Longest != 490 || r.Resolution != 10 {
		t.Fatalf("%+v", r)
	}
	want := []struct {
		port     uint16
		blackout float64
		silent   bool
	}{{silent, 490, true}, {hole, 201, false}, {well, 1, false}}
	for i, f := range r.Flows {
		if f.Src.Port() != want[i].port || f.Blackout != want[i].blackout || f.Silent != want[i].silent {
			t.Errorf("%+v, want %+v", f, want[i])
		}
	}
	if r, err := Read(bytes.NewReader(nil), begin, " out"); err != nil || len(r.Flows) > 0 {
		t.Errorf("an empty capture: %+v, %v", r, err)
	}
	if _, err := Read(bytes.NewReader([]byte("no capture at all, but text")), begin, " out"); err == nil {
		t.Error("text is taken for a capture")
	}
}

func datagram(t *testing.T, port layers.UDPPort) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
	udp := &layers.UDP{SrcPort: port, DstPort: 9}
	_ = udp.SetNetworkLayerForChecksum(ip)
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6), EthernetType: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload("x"))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
