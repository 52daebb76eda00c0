package ipfix

import (
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sample() []Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	return []Record{
		{Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.9.0.2"), SrcPort: 1000, DstPort: 53, Protocol: 17, Family: 4, Packets: 7, Bytes: 700, Start: at, End: at.Add(time.Second)},
		{Src: netip.MustParseAddr("2001:db8::1"), Family: 6, Reverse: true, Packets: 9, Bytes: 12345, Start: at, End: at.Add(time.Second)},
	}
}

// TestEncode checks lengths and sequence numbers of many records.
func TestEncode(t *testing.T) {
	var list []Record
	for range 100 {
		list = append(list, sample()...)
	}
	e := Encoder{Domain: 5}
	next := uint32(0)
	for _, m := range e.Encode(time.Unix(1000, 0), list) {
		if len(m) > maxMessage || int(binary.BigEndian.Uint16(m[2:])) != len(m) {
			t.Fatalf("a message of %d bytes says it has %d", len(m), binary.BigEndian.Uint16(m[2:]))
		}
		if s := binary.BigEndian.Uint32(m[8:]); s != next {
			t.Errorf("sequence number %d, must be %d", s, next)
		}
		data := m[headerSize+len(templates()):]
		size := recordSize(4)
		if binary.BigEndian.Uint16(data) == template6 {
			size = recordSize(6)
		}
		next += uint32((len(data) - 4) / size)
	}
	if next != 200 {
		t.Errorf("%d records were written, must be 200", next)
	}
}

// TestDecode has tshark read what Encode wrote.
func TestDecode(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs tshark to decode IPFIX")
	}
	e := Encoder{Domain: 5}
	file := filepath.Join(t.TempDir(), "ipfix.pcap")
	if err := os.WriteFile(file, pcap(e.Encode(time.Unix(1767323045, 0), sample())), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-r", file, "-d", "udp.port==4739,cflow", "-V", "-O", "cflow").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"SrcAddr: 10.1.0.2", "DstAddr: 10.9.0.2", "DstPort: 53", "Packets: 7", "Octets: 700", "SrcAddr: 2001:db8::1", "Packets: 9", "Octets: 12345", "Protocol: UDP"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("tshark does not see %q", want)
		}
	}
	if strings.Contains(string(out), "Malformed") || t.Failed() {
		t.Logf("%s", out)
		t.Fail()
	}
}

// pcap wraps messages into UDP, IPv4 and a capture file.
func pcap(messages [][]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0) // raw IP
	for _, m := range messages {
		p := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1, 0x12, 0x83, 0x12, 0x83, 0, 0, 0, 0}, m...)
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[24:], uint16(8+len(m)))
		b = append(b, make([]byte, 8)...)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// TestNoPortsOfICMP: collectors read an ICMP type and code where other protocols have their
// port, so the identifier of an echo does not stand there.
func TestNoPortsOfICMP(t *testing.T) {
	for protocol, want := range map[uint8]uint16{protocolICMP: 0, protocolICMPv6: 0, 17: 10005} {
		r := sample()[0]
		r.Protocol, r.SrcPort, r.DstPort = protocol, 10005, 10005
		b := r.append(nil)
		if src, dst := binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint16(b[10:]); src != want || dst != want {
			t.Errorf("protocol %d: ports %d and %d, want %d", protocol, src, dst, want)
		}
	}
}
