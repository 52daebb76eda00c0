package functest_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/functest"
	"github.com/onpath/onpath/internal/packet"
)

var began = time.Date(2026, 3, 4, 5, 6, 7, 123456789, time.UTC)

// recorded is a packet of a capture to be made.
type recorded struct {
	link layers.LinkType
	data []byte
	cut  int // bytes that were not captured
}

func udpPacket(src, dst netip.Addr, sport, dport uint16, payload string) []byte {
	b := packet.Blank(src.Is6(), packet.UDP, 8+len(payload), src, dst)
	t := b[len(b)-8-len(payload):]
	binary.BigEndian.PutUint16(t, sport)
	binary.BigEndian.PutUint16(t[2:], dport)
	binary.BigEndian.PutUint16(t[4:], uint16(len(t)))
	copy(t[8:], payload)
	binary.BigEndian.PutUint16(t[6:], ^packet.Sum(packet.PseudoSum(src, dst, packet.UDP, len(t)), t))
	return b
}

var (
	left, right   = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.9.0.2")
	left6, right6 = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:9::2")
)

// old writes a pcap file: in a byte order, with a nanosecond clock or one of microseconds.
func old(order binary.ByteOrder, nano bool, list ...recorded) []byte {
	magic, unit := uint32(0xa1b2c3d4), time.Microsecond
	if nano {
		magic, unit = 0xa1b23c4d, time.Nanosecond
	}
	b := make([]byte, 24)
	order.PutUint32(b, magic)
	order.PutUint16(b[4:], 2)
	order.PutUint16(b[6:], 4)
	order.PutUint32(b[16:], 262144)
	order.PutUint32(b[20:], uint32(list[0].link))
	for i, r := range list {
		at, head := began.Add(time.Duration(i)*time.Second), make([]byte, 16)
		order.PutUint32(head, uint32(at.Unix()))
		order.PutUint32(head[4:], uint32(at.Nanosecond()/int(unit)))
		order.PutUint32(head[8:], uint32(len(r.data)-r.cut))
		order.PutUint32(head[12:], uint32(len(r.data)))
		b = append(append(b, head...), r.data[:len(r.data)-r.cut]...)
	}
	return b
}

// ng writes a pcapng file with an interface for each packet.
func ng(t *testing.T, list ...recorded) []byte {
	t.Helper()
	var b bytes.Buffer
	var w *pcapgo.NgWriter
	for i, r := range list {
		face, err := pcapgo.NgInterface{Name: fmt.Sprint("if", i), LinkType: r.link, SnapLength: uint32(r.cut)}, error(nil)
		if w == nil {
			w, err = pcapgo.NewNgWriterInterface(&b, face, pcapgo.DefaultNgWriterOptions)
		} else {
			_, err = w.AddInterface(face)
		}
		if err != nil {
			t.Fatal(err)
		}
		info := gopacket.CaptureInfo{Timestamp: began.Add(time.Duration(i) * time.Second), Length: len(r.data), CaptureLength: len(r.data) - r.cut, InterfaceIndex: i}
		if err := w.WritePacket(info, r.data[:info.CaptureLength]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func behind(head []byte, b []byte) []byte { return append(append([]byte(nil), head...), b...) }

// head is a link's head of zeros before a packet, with the EtherType at a place and VLAN tags.
func head(size, kind int, b []byte, tags ...uint16) []byte {
	h, of := make([]byte, size), uint16(packet.TypeIPv4)
	if b[0]>>4 == 6 {
		of = packet.TypeIPv6
	}
	for i := len(tags) - 1; i >= 0; i-- {
		b = behind([]byte{byte(tags[i] >> 8), byte(tags[i]), byte(of >> 8), byte(of)}, b)
		of = 0x8100
	}
	binary.BigEndian.PutUint16(h[kind:], of)
	return behind(h, b)
}

// source writes a function with a body.
func source(t *testing.T, head, body string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "made.c")
	text := "#include \"onpath.h\"\nONPATH_LICENSE(\"GPL\");\nONPATH_COUNTERS({ __u64 seen; });\n" + head + "\nONPATH_FUNCTION(p) { " + body + " }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// replay gives a function a capture.
func replay(t *testing.T, f *functest.Function, capture []byte, clients ...netip.Prefix) (all []*functest.Met, sum *functest.Replayed, err error) {
	t.Helper()
	c, err := functest.ReadCapture("x.pcap", bytes.NewReader(capture))
	if err != nil {
		return nil, nil, err
	}
	sum, err = f.Replay(t.Context(), c, clients, func(m *functest.Met) error {
		all = append(all, m)
		return m.Write(io.Discard)
	})
	return all, sum, err
}

const mark = `onpath_count(seen, 1);
	if (p->dport == onpath_be16(53)) return onpath_drop(p, 3);
	if (p->dport == onpath_be16(80)) return onpath_refuse(p, 4);
	if (p->direction == ONPATH_FORWARD) onpath_set_dscp(p, 46);
	return ONPATH_NEXT;`

// TestCaptureForms: a packet is met alike in each form of captures, byte order and link type.
func TestCaptureForms(t *testing.T) {
	f := open(t, source(t, "", mark), nil)
	four, six := udpPacket(left, right, 1000, 2000, "hello"), udpPacket(left6, right6, 1000, 2000, "hello")
	forms := map[string][]byte{}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, nano := range []bool{false, true} {
			forms[fmt.Sprint("pcap ", order, nano)] = old(order, nano, recorded{101, four, 0}, recorded{101, six, 0})
		}
	}
	forms["pcapng, an interface of each link type"] = ng(t,
		recorded{1, head(14, 12, four), 0}, recorded{1, head(14, 12, six, 7), 0}, recorded{113, head(16, 14, four), 0},
		recorded{276, head(20, 0, six), 0}, recorded{228, four, 0}, recorded{229, six, 0}, recorded{0, behind(make([]byte, 4), four), 0},
		recorded{1, head(14, 12, six, 7, 8), 0}, recorded{12, four, 0}, recorded{113, head(16, 14, six, 9), 0})
	for name, capture := range forms {
		t.Run(name, func(t *testing.T) {
			all, sum, err := replay(t, f, capture)
			if err != nil || len(all) < 2 || sum.Verdicts["next"] != len(all) || sum.Edited != len(all) {
				t.Fatalf("%+v, %v", sum, err)
			}
			for i, m := range all {
				src, size := left, 33
				if i%2 == 1 {
					src, size = left6, 53
				}
				if m.Tuple.Src != src || m.Tuple.DstPort != 2000 || m.Length != size || m.Direction != "forward" || m.After != time.Duration(i)*time.Second ||
					!reflect.DeepEqual(m.Edits, []functest.Edit{{Field: "dscp", Before: "0", After: "46"}}) || m.Counts["seen"] != 1 {
					t.Errorf("%+v", m)
				}
			}
			if nano := strings.Contains(name, "true") || strings.Contains(name, "ng"); nano && !all[0].Time.Equal(began) {
				t.Error(all[0].Time)
			}
		})
	}
}

// TestReplayVerdicts: verdicts, reasons, directions and what the path keeps from functions.
func TestReplayVerdicts(t *testing.T) {
	f := open(t, source(t, "", mark), nil)
	piece := func(at uint16, b []byte) []byte {
		b = append([]byte(nil), b...)
		old := [2]byte{b[6], b[7]}
		binary.BigEndian.PutUint16(b[6:], at)
		packet.Patch(b[10:12], old[:], b[6:8])
		return b
	}
	far := udpPacket(right, left, 2000, 1000, "back")
	h := packet.Parse(far)
	list := []struct {
		data []byte
		want string
	}{
		{udpPacket(left, right, 1000, 2000, "x"), "next forward edits"},
		{far, "next reverse"},
		{packet.Complaint(far, &h, left, 3, 3, 0), "next forward edits"},
		{udpPacket(left, right, 1000, 53, "x"), "drop forward 3"},
		{udpPacket(left6, right6, 1000, 80, "x"), "answer forward 4"},
		{piece(0x2000, udpPacket(left, right, 7, 53, "first")), "drop forward 3"},
		{piece(1, udpPacket(left, right, 0, 0, "later")), "drop forward 3"}, // by the ports of the first
		{piece(1, udpPacket(right, left, 0, 0, "orphan")), "a fragment whose first"},
		{packet.Complaint(udpPacket(left, right, 9, 9, "x"), ptr(packet.Parse(udpPacket(left, right, 9, 9, "x"))), right, 3, 3, 0), "an ICMP error about a flow"},
		{udpPacket(left, netip.MustParseAddr("224.0.0.9"), 520, 520, "x"), "no router forwards"},
		{udpPacket(left, right, 68, 67, "x"), "DHCP"},
		{[]byte{0x45, 0, 0, 99, 0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}, "its IP header is not valid"},
		{[]byte{0x15}, "it is no IP packet"},
	}
	var packets []recorded
	for _, x := range list {
		packets = append(packets, recorded{101, x.data, 0})
	}
	all, sum, err := replay(t, f, old(binary.LittleEndian, true, packets...))
	if err != nil || len(all) != len(list) || sum.Aside != 6 || sum.Counters["seen"] != 7 {
		t.Fatalf("%d packets, %+v, %v", len(all), sum, err)
	}
	for i, m := range all {
		is := cmp.Or(m.Aside, m.Verdict+" "+m.Direction)
		if m.Reason != nil {
			is += fmt.Sprint(" ", *m.Reason)
		}
		if len(m.Edits) > 0 {
			is += " edits"
		}
		if !strings.HasPrefix(is, list[i].want) {
			t.Errorf("packet %d: %q, not %q", i+1, is, list[i].want)
		}
	}
	// Who says where clients are is believed, and not the first packet.
	all, _, err = replay(t, f, old(binary.LittleEndian, true, packets[1]), netip.PrefixFrom(left, 16))
	if err != nil || all[0].Direction != "reverse" {
		t.Errorf("%+v, %v", all, err)
	}
}

func ptr[T any](x T) *T { return &x }

// TestReplayCut: what a snap length cut off is taken as zero, and told; headers are not made up.
func TestReplayCut(t *testing.T) {
	f := open(t, source(t, "ONPATH_NEEDS(64);", "return p->shown > 40 && p->data[40] ? onpath_drop(p, 1) : ONPATH_NEXT;"), nil)
	long := udpPacket(left, right, 1000, 2000, strings.Repeat("x", 1000))
	all, sum, err := replay(t, f, ng(t, recorded{101, long, 0}, recorded{101, long, len(long) - 50}, recorded{101, long, len(long) - 40}, recorded{101, long, len(long) - 21}))
	if err != nil || sum.Guessed != 2 {
		t.Fatalf("%+v, %v", sum, err)
	}
	if all[0].Verdict != "drop" || all[1].Verdict != "drop" || all[1].Captured != 50 || all[2].Verdict != "next" ||
		all[2].Length != len(long) || !strings.Contains(all[3].Aside, "only 21 of its 1028 bytes") {
		t.Errorf("%+v\n%+v\n%+v\n%+v", all[0], all[1], all[2], all[3])
	}
}

// TestBadCaptures: what is no capture, or no whole one, is refused with the file, the packet
// and what to do.
func TestBadCaptures(t *testing.T) {
	f := open(t, source(t, "", mark), nil)
	p := recorded{101, udpPacket(left, right, 1000, 2000, "hello"), 0}
	whole := old(binary.LittleEndian, false, p, p)
	wholeNg := ng(t, p, p)
	for name, x := range map[string]struct {
		capture []byte
		want    string
		met     int
	}{
		"empty":              {nil, "x.pcap: the file is empty", 0},
		"text":               {[]byte("this is a text and no capture at all"), "x.pcap: it is no capture", 0},
		"short":              {[]byte{1, 2, 3}, "x.pcap: it is no capture", 0},
		"no packets":         {whole[:24], "there is no packet in it", 0},
		"head cut":           {whole[:20], "ends in the middle", 0},
		"packet cut":         {whole[:len(whole)-1], "packet 2 cannot be read: the file ends in the middle", 1},
		"packet absent":      {whole[:len(whole)-len(p.data)], "packet 2 cannot be read: the file ends in the middle", 1},
		"packet's head cut":  {whole[:len(whole)-len(p.data)-3], "packet 2 cannot be read: the file ends in the middle", 1},
		"ng cut":             {wholeNg[:len(wholeNg)-6], "packet 2 cannot be read: the file ends in the middle", 1},
		"ng head cut":        {wholeNg[:10], "ends in the middle", 0},
		"link type":          {old(binary.BigEndian, true, recorded{147, p.data, 0}), "packet 1 has link type 147", 0},
		"link type later":    {ng(t, p, recorded{105, p.data, 0}), "packet 2 has link type 105", 1},
		"gzip":               {[]byte{0x1f, 0x8b, 1}, "gzip", 0},
		"length of a packet": {append(append([]byte(nil), whole[:32]...), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "packet 1 cannot be read", 0},
	} {
		all, _, err := replay(t, f, x.capture)
		if err == nil || !strings.Contains(err.Error(), x.want) || len(all) != x.met {
			t.Errorf("%s: %d packets, %v", name, len(all), err)
			continue
		}
		if e := (*onpath.Error)(nil); !errors.As(err, &e) || e.Remedy == "" {
			t.Errorf("%s: no remedy: %v", name, err)
		}
	}
}

// TestWrittenCapture: what is written has each packet as it came out, and its verdict.
func TestWrittenCapture(t *testing.T) {
	f := open(t, source(t, "", mark), nil)
	c, err := functest.ReadCapture("x", bytes.NewReader(ng(t,
		recorded{1, head(14, 12, udpPacket(left, right, 1000, 2000, "hello"), 5), 0}, recorded{1, head(14, 12, udpPacket(left, right, 1000, 53, "hello")), 0},
		recorded{1, head(14, 12, udpPacket(left, right, 1000, 80, "hello")), 0}, recorded{1, head(14, 12, []byte{0x11}), 0})))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := functest.NewWriter(&b)
	if _, err := f.Replay(t.Context(), c, nil, w.Write); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"out 1: next; dscp 0 → 46", "dropped 1: drop, reason 3", "dropped 1: answer, reason 4", "sent 101: the answer to packet 3",
		"aside 1: aside: its IP header is not valid"} {
		data, info, opts, err := r.ReadPacketDataWithOptions()
		if err != nil {
			t.Fatal(err)
		}
		face, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		is := fmt.Sprintf("%s %d: %s", face.Name, uint16(face.LinkType), strings.Join(opts.Comments, "|"))
		if is != want {
			t.Errorf("packet %d: %q, not %q", i+1, is, want)
		}
		if i == 0 && (data[14+1] != 5 || packet.DSCP(data[18:]) != 46 || !info.Timestamp.Equal(began)) {
			t.Errorf("%x at %v", data, info.Timestamp)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Error(err)
	}
}

// TestReplayDiffers: a capture goes on behind a packet on which the targets do not agree.
func TestReplayDiffers(t *testing.T) {
	f := open(t, source(t, "#ifdef __wasm__\n#define WASM 1\n#else\n#define WASM 0\n#endif", "return p->dport == onpath_be16(53) && WASM ? onpath_drop(p, 1) : ONPATH_NEXT;"), nil)
	all, sum, err := replay(t, f, old(binary.LittleEndian, true, recorded{101, udpPacket(left, right, 1, 53, ""), 0}, recorded{101, udpPacket(left, right, 1, 54, ""), 0}))
	if err != nil || sum.Differ != 1 || !strings.Contains(all[0].Differs, "wasm says drop with reason 1, ebpf next") || all[1].Differs != "" {
		t.Errorf("%+v, %v", sum, err)
	}
}

// TestDocumentedReplay: the example of the manual prints what stands there.
func TestDocumentedReplay(t *testing.T) {
	manual, err := os.ReadFile("../../docs/modules.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(after, begin string) string {
		_, rest, _ := strings.Cut(string(manual), after)
		_, rest, _ = strings.Cut(rest, begin+"\n")
		text, _, _ := strings.Cut(rest, "   ```\n")
		return strings.ReplaceAll("\n"+text, "\n   ", "\n")[1:]
	}
	file := filepath.Join(t.TempDir(), "nodns.c")
	if err := os.WriteFile(file, []byte(block("nodns.c", "   ```c")), 0o600); err != nil {
		t.Fatal(err)
	}
	capture, err := os.Open("../../examples/functions/web.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Close()
	c, err := functest.ReadCapture("web.pcap", capture)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	sum, err := open(t, file, nil).Replay(t.Context(), c, nil, func(m *functest.Met) error { return m.Write(&b) })
	if err != nil {
		t.Fatal(err)
	}
	if err := sum.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := block("--pcap examples/functions/web.pcap", "   ```"); b.String() != want {
		t.Errorf("it prints\n%s, the manual says\n%s", &b, want)
	}
}

// TestShortRecord: a record that ends within its link's head has no IP packet, of no bytes.
func TestShortRecord(t *testing.T) {
	f := open(t, source(t, "", mark), nil)
	all, _, err := replay(t, f, old(binary.LittleEndian, false, recorded{1, make([]byte, 14), 0}, recorded{1, nil, 0}))
	if err != nil || len(all) != 2 {
		t.Fatal(len(all), err)
	}
	for _, m := range all {
		if m.Length != 0 || m.Aside == "" {
			t.Errorf("packet %d has %d bytes, aside %q", m.Number, m.Length, m.Aside)
		}
	}
}
