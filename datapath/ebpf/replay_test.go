package ebpf_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/functest"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/packet"
)

// newReplayed is a gateway whose chain takes all traffic to and from the servers through one
// function, with its configuration.
func newReplayed(t *testing.T, code []byte, config map[string]string) (*programmed, *crossing, func() map[string]uint64) {
	p := newProgram(t, false)
	c := &crossing{harness: p.harness}
	var ups []datapathtest.UplinkSpec
	prefixes := func(s ...string) (list []netip.Prefix) {
		for _, x := range s {
			list = append(list, netip.MustParsePrefix(x))
		}
		return list
	}
	for i, behind := range [][]netip.Prefix{
		prefixes("10.1.0.0/16", "2001:db8:1::/48"), prefixes("10.9.0.0/16", "10.77.0.0/16", "2001:db8:9::/48", "203.0.113.10/32"),
	} {
		four, six := fmt.Sprintf("10.0.%d.", 1+8*i), fmt.Sprintf("fd00:0:%d::", 1+8*i)
		ups = append(ups, datapathtest.UplinkSpec{
			Device: fmt.Sprintf("up%d", i), MTU: 1500, Addresses: prefixes(four+"1/24", six+"1/64"),
			Gateways: []netip.Addr{netip.MustParseAddr(four + "254"), netip.MustParseAddr(six + "fe")}, Behind: behind,
		})
	}
	c.dp = p.AddNode(datapathtest.NodeSpec{Name: "gw", Underlay: netip.MustParsePrefix("10.255.0.1/24"), UnderlayMTU: 1600, Uplinks: ups})
	servers := prefixes("0.0.0.0/0", "::/0")
	clients := prefixes("10.1.0.0/16", "2001:db8:1::/48")
	c.cfg = &onpath.DatapathConfig{
		Node: "gw", Generation: 1, Underlay: onpath.Underlay{Address: netip.MustParseAddr("10.255.0.1"), MTU: 1600},
		Edge: &onpath.Edge{Vport: 1, Table: 2, Uplinks: []onpath.Uplink{
			{Name: "up0", Device: "up0", Attach: onpath.AttachRouter}, {Name: "up1", Device: "up1", Attach: onpath.AttachRouter},
		}},
		Tables: []onpath.Table{{ID: 2, Miss: onpath.Action{Kind: onpath.ActionExit}, Rules: []onpath.Rule{
			{Match: onpath.Match{Src: clients, Dst: servers}, Path: 1},
			{Match: onpath.Match{Src: servers, Dst: clients}, Path: 1, Reverse: true},
		}}},
		Paths: []onpath.Path{{ID: 1, Chain: "t/all", Tenant: "t"}},
	}
	f := c.object(31, code)
	o, err := bpfobject.Parse(code)
	c.w.must(err)
	tables, err := o.OpenTables(f.Maps)
	c.w.must(err)
	t.Cleanup(func() { bpfobject.CloseTables(tables) })
	c.w.must(o.Configure(tables, config))
	c.through(f)
	c.apply()
	return p, c, func() map[string]uint64 {
		n, err := o.ReadCounters(tables)
		c.w.must(err)
		return n
	}
}

// captured writes a capture.
func captured(t *testing.T, list []datapathtest.Recorded) io.Reader {
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 0)
	for _, r := range list {
		frame := append(make([]byte, 12), 8, 0)
		if r.Packet[0]>>4 == 6 {
			frame[12], frame[13] = 0x86, 0xdd
		}
		frame = append(frame, r.Packet...)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, Length: len(frame), CaptureLength: len(frame)}, frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestReplayIsThePath: what a function says of a capture when it is run by itself is what the
// data path does with the same packets: which of them it is given, its verdicts, reasons,
// edits and counters; and both targets agree. ONPATH_SEED repeats one capture of the soak.
func TestReplayIsThePath(t *testing.T) {
	needKernel(t)
	captures, packets, seed := 1, 150, uint64(24)
	if os.Getenv("ONPATH_SOAK") != "" {
		captures, packets, seed = 50, 600, uint64(time.Now().UnixNano())
	}
	if v := os.Getenv("ONPATH_SEED"); v != "" {
		captures, packets = 1, 600
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		source string
		config map[string]string
	}{
		{"testdata/replay/told.c", nil},
		{"testdata/replay/judge.c", nil},
		{"../../functions/netmonitor/netmonitor.c", nil},
	} {
		t.Run(filepath.Base(x.source), func(t *testing.T) {
			code, err := funcbuild.Compile(t.Context(), x.source, funcbuild.ToEBPF)
			if err != nil {
				t.Skip(err)
			}
			for i := range captures {
				list := append(datapathtest.Record(seed+uint64(i), packets), longHeader())
				f, err := functest.Open(t.Context(), x.source, x.config, io.Discard)
				if err != nil {
					t.Fatal(err)
				}
				capture, err := functest.ReadCapture("made", captured(t, list))
				if err != nil {
					t.Fatal(err)
				}
				if !t.Run(fmt.Sprint(i), func(t *testing.T) { compareReplay(t, seed+uint64(i), code, x.config, list, f, capture) }) {
					break
				}
				f.Close()
			}
		})
	}
}

func compareReplay(t *testing.T, seed uint64, code []byte, config map[string]string, list []datapathtest.Recorded, f *functest.Function, capture *functest.Capture) {
	p, c, counters := newReplayed(t, code, config)
	clients := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}
	before, faults := c.functions()[31], 0
	sum, err := f.Replay(t.Context(), capture, clients, func(m *functest.Met) error {
		r := list[m.Number-1]
		outcome, out, _ := p.Put("gw", r.Device, datapathtest.Frame{Packet: r.Packet}, 0)
		now := c.functions()[31]
		verdict := ""
		switch {
		case now.Passed != before.Passed:
			verdict = "next"
		case now.Dropped != before.Dropped:
			verdict = "drop"
		case now.Answered != before.Answered:
			verdict = "answer"
		}
		if m.Reason != nil && now.Reasons[*m.Reason] == before.Reasons[*m.Reason] {
			verdict += ", another reason"
		}
		before = now
		same := verdict == m.Verdict
		if hops := r.Packet[10-r.Packet[0]>>5]; same && verdict == "next" && outcome == datapathtest.Sent && hops > 1 {
			same = bytes.Equal(out.Packet, hopped(m.Out()))
		}
		if !same {
			var line bytes.Buffer
			_ = m.Write(&line)
			t.Errorf("seed %d: the path says %q (%v):\n%s  in  %x\n  out %x\n  not %x", seed, verdict, outcome, &line, r.Packet, out.Packet, m.Out())
			if faults++; faults > 5 {
				return io.ErrShortBuffer
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Differ > 0 || len(sum.Targets) != len(functest.Targets) {
		t.Errorf("seed %d: the targets %v do not agree on %d packets", seed, sum.Targets, sum.Differ)
	}
	if have := counters(); !maps.Equal(have, sum.Counters) {
		t.Errorf("seed %d: the path counts %v, the replay %v", seed, have, sum.Counters)
	}
	if sum.Verdicts["next"] < len(list)/5 {
		t.Errorf("seed %d: few packets pass: %+v", seed, sum)
	}
}

// longHeader is a packet whose TCP header says to be longer than the packet.
func longHeader() datapathtest.Recorded {
	src, dst := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.9.0.7")
	b := packet.Blank(false, packet.TCP, 26, src, dst)
	copy(b[20:], []byte{0x13, 0x88, 0x1f, 0x90, 12: 0xf0, 13: 0x02})
	return datapathtest.Recorded{Device: "up0", Packet: b}
}

// hopped is a packet behind a router.
func hopped(p []byte) []byte {
	if len(p) < 20 {
		return p
	}
	b := append([]byte(nil), p...)
	h := packet.Parse(b)
	packet.Decrement(b, &h)
	return b
}
