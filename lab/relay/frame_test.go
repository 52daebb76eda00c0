package relay

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// gso builds a frame that the kernel has not cut: payload bytes of TCP in
// segments of size, with the pseudo header's sum in the checksum field.
func gso(v6 bool, vlans, size, payload int) []byte {
	eth := make([]byte, 0, 200)
	eth = append(eth, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	for range vlans {
		eth = append(eth, 0x81, 0, 0, 7)
	}
	kind := byte(gsoTCPv4)
	if v6 {
		kind = gsoTCPv6
		ip := make([]byte, 40)
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(32+payload))
		ip[6], ip[7] = 6, 64
		ip[8], ip[24], ip[39] = 0xfd, 0xfd, 9
		eth = append(append(eth, 0x86, 0xdd), ip...)
	} else {
		ip := make([]byte, 24) // with options
		ip[0], ip[8], ip[9] = 0x46, 64, 6
		binary.BigEndian.PutUint16(ip[2:], uint16(24+32+payload))
		binary.BigEndian.PutUint16(ip[4:], 0xfffe) // wraps
		copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
		ip[20] = 1
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip)))
		eth = append(append(eth, 0x08, 0x00), ip...)
	}
	transport := len(eth)
	tcp := make([]byte, 32)
	binary.BigEndian.PutUint32(tcp[4:], 0xffffff00) // wraps
	tcp[12], tcp[13] = 0x80, 0x99                   // CWR, ACK, PSH, FIN
	eth = append(eth, tcp...)
	for i := range payload {
		eth = append(eth, byte(i*7))
	}
	b := make([]byte, vnetLen, vnetLen+len(eth)+vlanLen)
	b[0], b[1] = vnetNeedsCsum, kind
	binary.NativeEndian.PutUint16(b[2:], uint16(transport+32))
	binary.NativeEndian.PutUint16(b[4:], uint16(size))
	binary.NativeEndian.PutUint16(b[6:], uint16(transport))
	binary.NativeEndian.PutUint16(b[8:], 16)
	b = append(b, eth...)
	f := parse(b)
	f.fixTransport(b[vnetLen:], 0, payload, true, true)
	return b
}

// finish completes a frame as the kernel would and returns its TCP part, after
// checking all lengths and checksums.
func finish(t *testing.T, b []byte, v6 bool) (seq uint32, flags byte, id uint16, payload []byte) {
	t.Helper()
	eth := b[vnetLen:]
	transport := int(binary.NativeEndian.Uint16(b[6:]))
	network := transport - 24
	if v6 {
		network = transport - 40
	}
	ip, tcp := eth[network:transport], eth[transport:]
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(padded(tcp))))
	var pseudo []byte
	if v6 {
		if n := binary.BigEndian.Uint16(ip[4:]); int(n) != len(tcp) {
			t.Fatalf("IPv6 length %d, TCP has %d", n, len(tcp))
		}
		pseudo = append(pseudo, ip[8:40]...)
	} else {
		if n := binary.BigEndian.Uint16(ip[2:]); int(n) != len(ip)+len(tcp) {
			t.Fatalf("IPv4 length %d, is %d", n, len(ip)+len(tcp))
		}
		if s := fold(sum(ip)); s != 0xffff {
			t.Fatalf("IPv4 checksum is wrong: %x", s)
		}
		pseudo = append(pseudo, ip[12:20]...)
		id = binary.BigEndian.Uint16(ip[4:])
	}
	pseudo = append(pseudo, 0, 0, byte(len(tcp)>>8), byte(len(tcp)), 0, 6)
	if s := fold(sum(pseudo) + sum(padded(tcp))); s != 0xffff {
		t.Fatalf("TCP checksum is wrong: %x", s)
	}
	return binary.BigEndian.Uint32(tcp[4:]), tcp[13], id, tcp[32:]
}

func padded(b []byte) []byte {
	if len(b)%2 == 1 {
		return append(bytes.Clone(b), 0)
	}
	return b
}

func TestCut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name  string
		v6    bool
		vlans int
	}{{"IPv4", false, 0}, {"IPv6", true, 0}, {"VLAN", false, 1}, {"two VLANs", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			const size, payload = 1400, 20*1400 + 333
			whole := gso(c.v6, c.vlans, size, payload)
			finish(t, bytes.Clone(whole), c.v6) // the frame under test is right itself
			f := parse(whole)
			if f.segments != 21 {
				t.Fatalf("%d segments", f.segments)
			}
			total := 0
			for i := range f.segments {
				total += f.size(i)
			}
			if want := 21*f.headers + payload; total != want {
				t.Errorf("segments have %d bytes on the wire, want %d", total, want)
			}
			for range 200 {
				first := random.IntN(21)
				p := part{first: first, end: first + 1 + random.IntN(21-first)}
				to := make([]byte, f.partLen(p))
				f.cut(to, p)
				g := parse(to)
				if g.segments != p.end-p.first {
					t.Fatalf("%+v became %d segments", p, g.segments)
				}
				seq, flags, id, data := finish(t, to, c.v6)
				begin := first * size
				if seq != 0xffffff00+uint32(begin) || !bytes.Equal(data, whole[vnetLen+f.headers:][begin:min(p.end*size, payload)]) {
					t.Fatalf("%+v: sequence number %x or data are wrong", p, seq)
				}
				if !c.v6 && id != uint16(0xfffe+first) {
					t.Fatalf("%+v: identification %x", p, id)
				}
				want := byte(0x10)
				if first == 0 {
					want |= 0x80
				}
				if p.end == 21 {
					want |= 0x09
				}
				if flags != want {
					t.Fatalf("%+v: flags %x, want %x", p, flags, want)
				}
			}
		})
	}
}

// FuzzParse: no header, however wrong, makes parse or cut fail.
func FuzzParse(f *testing.F) {
	f.Add(gso(false, 0, 100, 1000))
	f.Add(gso(true, 1, 100, 1000))
	f.Add(make([]byte, vnetLen+ethLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < vnetLen+ethLen || len(b) > vnetLen+maxGSOSize {
			return
		}
		p := parse(b)
		total := 0
		for i := range p.segments {
			one := part{first: i, end: i + 1}
			to := make([]byte, p.partLen(one))
			p.cut(to, one)
			total += p.size(i)
		}
		if p.segments > 1 && total != p.segments*p.headers+p.payload {
			t.Errorf("%d bytes in %d segments", total, p.segments)
		}
	})
}

func TestInsertVLAN(t *testing.T) {
	tagged := gso(false, 1, 100, 500)
	bare := gso(false, 0, 100, 500)
	got := insertVLAN(bare, 0x8100, 7)
	if !bytes.Equal(got, tagged) {
		t.Errorf("\n got %x\nwant %x", got[:40], tagged[:40])
	}
}
