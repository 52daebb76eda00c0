package ebpf_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/bpfobject"
)

// mutate makes a broken or hostile variant of an object.
func mutate(r *rand.Rand, good []byte) []byte {
	b := bytes.Clone(good)
	switch r.IntN(6) {
	case 0: // bits
		for range 1 + r.IntN(8) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
	case 1: // truncated
		b = b[:r.IntN(len(b))]
	case 2: // two parts exchanged
		n := 1 + r.IntN(200)
		x, y := r.IntN(len(b)-n), r.IntN(len(b)-n)
		part := bytes.Clone(b[x : x+n])
		copy(b[x:], b[y:y+n])
		copy(b[y:], part)
	case 3: // other helpers
		for at := 64; at+8 <= len(b); at += 8 {
			if b[at] == 0x85 && b[at+1] == 0 && r.IntN(2) == 0 {
				binary.LittleEndian.PutUint32(b[at+4:], uint32(r.IntN(220)))
			}
		}
	case 4: // other sizes: what stands in type information and headers
		for range 1 + r.IntN(3) {
			at := r.IntN(len(b)/4-1) * 4
			binary.LittleEndian.PutUint32(b[at:], uint32(1)<<r.IntN(32)+uint32(r.IntN(3)))
		}
	case 5: // instructions: offsets, registers, constants
		for range 1 + r.IntN(4) {
			at := 64 + r.IntN((len(b)-72)/8)*8
			b[at+1+r.IntN(7)] = byte(r.IntN(256))
		}
	}
	return b
}

// TestHostileObjects: a thousand variants of a good object are refused, or run and
// hurt no one else; the flows of another function lose nothing.
func TestHostileObjects(t *testing.T) {
	t.Parallel()
	needKernel(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	h := newHarness(t)
	dp := h.AddNode(datapathtest.NodeSpec{
		Name: "gw", Underlay: netip.MustParsePrefix("10.255.0.1/24"), UnderlayMTU: 1600,
		Uplinks: []datapathtest.UplinkSpec{hostileUplink("up0", "10.0.1", "10.1.0.0/16"), hostileUplink("up1", "10.0.9", "10.9.0.0/16")},
	})
	good := h.Function("gw", 10)
	c := hostileConfig(good)
	if err := dp.Apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	passes := func() {
		t.Helper()
		h.Send("gw", "up0", datapathtest.Frame{Packet: hostileDatagram(80)})
		if _, ok := h.Receive("gw", "up1", 10*time.Second); !ok {
			t.Fatal("the traffic of another function stopped")
		}
	}
	passes()
	dir := t.TempDir()
	refused, ran, unlinked := 0, 0, 0
	for n := range 1000 {
		code := mutate(r, datapathtest.ExamObject)
		f, err := admit(t, dir, code)
		if err != nil {
			if err.Error() == "" {
				t.Error("a variant is refused without a reason")
			}
			refused++
			continue
		}
		if n%3 == 0 {
			passes()
		}
		c.Functions = []onpath.InlineFunction{good, f}
		c.Generation++
		if err := dp.Apply(t.Context(), c); err != nil {
			t.Fatalf("a variant stops the configuration: %v", err)
		}
		counters, err := driverOf(dp).Functions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if counters[11].Error != "" {
			unlinked++
		} else {
			ran++
			h.Send("gw", "up0", datapathtest.Frame{Packet: hostileDatagram(81)})
			h.Receive("gw", "up1", 20*time.Millisecond) // whatever it does with it
		}
		if n%3 == 1 {
			passes()
		}
	}
	passes()
	t.Logf("of 1000 variants %d were refused, %d could not be linked, %d ran", refused, unlinked, ran)
}

func hostileUplink(device, net, behind string) datapathtest.UplinkSpec {
	return datapathtest.UplinkSpec{
		Device: device, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix(net + ".1/24")},
		Gateways: []netip.Addr{netip.MustParseAddr(net + ".254")}, Behind: []netip.Prefix{netip.MustParsePrefix(behind)},
	}
}

// admit does what the runtime does before it hands an object on.
func admit(t *testing.T, dir string, code []byte) (f onpath.InlineFunction, err error) {
	o, err := bpfobject.Parse(code)
	if err != nil {
		return f, err
	}
	if err := o.CheckMemory(8<<20, 2); err != nil {
		return f, err
	}
	pins := filepath.Join(ebpf.DefaultPinPath, fmt.Sprintf("hostile-%d-%s", os.Getpid(), o.SHA256[:12]))
	t.Cleanup(func() { os.RemoveAll(pins) })
	tables, err := o.OpenTables(pins)
	if err != nil {
		return f, err
	}
	defer bpfobject.CloseTables(tables)
	if _, err := o.Verify(tables); err != nil {
		return f, err
	}
	sum := sha256.Sum256(code)
	file := filepath.Join(dir, hex.EncodeToString(sum[:8]))
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	return onpath.InlineFunction{Vport: 11, Object: file, SHA256: o.SHA256, Maps: pins}, nil
}

// hostileConfig: UDP to port 80 passes the good function, to port 81 the variant.
func hostileConfig(good onpath.InlineFunction) *onpath.DatapathConfig {
	c := &onpath.DatapathConfig{
		Node: "gw", Generation: 1, Underlay: onpath.Underlay{Address: netip.MustParseAddr("10.255.0.1"), MTU: 1600},
		Edge:      &onpath.Edge{Vport: 1, Table: 1},
		Functions: []onpath.InlineFunction{good},
		Vports: []onpath.Vport{
			{ID: 10, Kind: onpath.VportFunction, State: onpath.VportUp, Tenant: "a"},
			{ID: 11, Kind: onpath.VportFunction, State: onpath.VportUp, Tenant: "b"},
		},
	}
	for _, d := range []string{"up0", "up1"} {
		c.Edge.Uplinks = append(c.Edge.Uplinks, onpath.Uplink{Name: d, Device: d, Attach: onpath.AttachRouter})
	}
	classifier := onpath.Table{ID: 1, Miss: onpath.Action{Kind: onpath.ActionExit}}
	for i, port := range []uint16{80, 81} {
		path, vport := onpath.PathID(i+1), onpath.VportID(10+i)
		classifier.Rules = append(classifier.Rules, onpath.Rule{
			Match:  onpath.Match{Protocol: []uint8{17}, DstPorts: []onpath.PortRange{{First: port, Last: port}}},
			Action: onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(path, 0, false)}, Path: path,
		})
		for _, reverse := range []bool{false, true} {
			c.Tables = append(c.Tables, onpath.Table{ID: onpath.TableOf(path, 0, reverse), Miss: onpath.Action{Kind: onpath.ActionExit}})
			c.Groups = append(c.Groups, onpath.Group{
				ID: onpath.GroupOf(path, 0, reverse), Path: path, Reverse: reverse, Mode: onpath.ModeInline,
				Then: onpath.TableOf(path, 0, reverse), Back: onpath.TableOf(path, 0, !reverse),
				Lost: onpath.LostRepick, None: onpath.NoneDrop, Members: []onpath.Member{{Vport: vport, Key: 1, Weight: 1}},
			})
		}
		c.Paths = append(c.Paths, onpath.Path{ID: path, Chain: "exam/chain", Tenant: "exam"})
	}
	c.Tables = append([]onpath.Table{classifier}, c.Tables...)
	return c
}

// hostileDatagram is a UDP packet from 10.1.0.2 to a port of 10.9.0.2.
func hostileDatagram(port uint16) []byte {
	b := make([]byte, 20+8+16)
	b[0], b[8], b[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], []byte{10, 1, 0, 2, 10, 9, 0, 2})
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 1000)
	binary.BigEndian.PutUint16(b[22:], port)
	binary.BigEndian.PutUint16(b[24:], 24)
	return b
}
