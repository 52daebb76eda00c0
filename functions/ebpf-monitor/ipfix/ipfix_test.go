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
		{Src: netip.MustParseAddr("10.1.0.3"), Family: 4, Protocol: 1, Typed: true, DstPort: 3<<8 | 13, Packets: 2, Bytes: 200, Start: at, End: at},
		{Src: netip.MustParseAddr("2001:db8::3"), Family: 6, Protocol: 58, Typed: true, DstPort: 128 << 8, Packets: 3, Bytes: 300, Start: at, End: at},
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
		data := m[headerSize+len(describe()):]
		next += uint32((len(data) - 4) / templates[binary.BigEndian.Uint16(data)-templates[0].id].recordSize())
	}
	if next != 400 {
		t.Errorf("%d records were written, must be 400", next)
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
	for _, want := range []string{"SrcAddr: 10.1.0.2", "DstAddr: 10.9.0.2", "DstPort: 53", "Packets: 7", "Octets: 700", "SrcAddr: 2001:db8::1", "Packets: 9", "Octets: 12345", "Protocol: UDP",
		"SrcAddr: 10.1.0.3", "ICMP Type: 0x030d", "SrcAddr: 2001:db8::3", "IPv6 ICMP Type: 128"} {
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

// TestTypeOfICMP: a record has type and code of ICMP in the element for them, and where
// collectors also read them, in the place of the destination's port; where they are not known,
// nothing else stands there, as the identifier of an echo.
func TestTypeOfICMP(t *testing.T) {
	for _, c := range []struct {
		protocol uint8
		typed    bool
		want     [3]uint16
	}{
		{17, false, [3]uint16{10005, 2048}}, {protocolICMP, false, [3]uint16{}}, {protocolICMPv6, false, [3]uint16{}},
		{protocolICMP, true, [3]uint16{10005, 2048, 2048}},
	} {
		r := sample()[0]
		r.Protocol, r.Typed, r.SrcPort, r.DstPort = c.protocol, c.typed, 10005, 8<<8
		b, got := r.append(nil), [3]uint16{}
		for i := range got {
			got[i] = binary.BigEndian.Uint16(b[8+2*i:])
		}
		if !c.typed {
			got[2] = 0
		}
		if got != c.want {
			t.Errorf("protocol %d, its type known %v: ports and type %v, want %v", c.protocol, c.typed, got, c.want)
		}
	}
}
