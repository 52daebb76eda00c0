package ebpf_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/bpfobject/spoilt"
)

// through makes the crossing's traffic pass instances of ebpf functions.
func (c *crossing) through(fs ...onpath.InlineFunction) {
	c.cfg.Functions, c.cfg.Vports, c.cfg.Groups = nil, nil, nil
	c.cfg.Tables = c.cfg.Tables[:1]
	for i, f := range fs {
		c.add(f)
		for _, reverse := range []bool{false, true} {
			next := i + 1
			if reverse {
				next = i - 1
			}
			c.cfg.Groups = append(c.cfg.Groups, onpath.Group{
				ID: onpath.GroupOf(1, i, reverse), Path: 1, Reverse: reverse, Mode: onpath.ModeInline,
				Then: onpath.TableOf(1, i, reverse), Back: onpath.TableOf(1, i, !reverse), Lost: onpath.LostRepick, None: onpath.NoneDrop,
				Members: []onpath.Member{{Vport: f.Vport, Key: uint32(f.Vport), Weight: 1}},
			})
			t := onpath.Table{ID: onpath.TableOf(1, i, reverse), Miss: onpath.Action{Kind: onpath.ActionExit}}
			if next >= 0 && next < len(fs) {
				t.Miss = onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, next, reverse)}
			}
			c.cfg.Tables = append(c.cfg.Tables, t)
		}
	}
	rules := c.cfg.Tables[0].Rules
	rules[0].Action = onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, 0, false)}
	rules[1].Action = onpath.Action{Kind: onpath.ActionGroup, Group: onpath.GroupOf(1, len(fs)-1, true)}
}

// add has a function loaded that no packet is led to yet.
func (c *crossing) add(f onpath.InlineFunction) {
	c.cfg.Functions = append(c.cfg.Functions, f)
	c.cfg.Vports = append(c.cfg.Vports, onpath.Vport{ID: f.Vport, Kind: onpath.VportFunction, State: onpath.VportUp,
		Instance: fmt.Sprintf("t/i%d", f.Vport), Tenant: "t", Packets: onpath.PacketsKeep, Entry: 1})
}

// object makes a function of an object file.
func (c *crossing) object(v onpath.VportID, code []byte) onpath.InlineFunction {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "function.o")
	c.w.must(os.WriteFile(file, code, 0o600))
	sum := sha256.Sum256(code)
	f := c.Function("gw", v)
	f.Object, f.SHA256 = file, hex.EncodeToString(sum[:])
	return f
}

// TestFastFunctions: established flows through functions are XDP's; a function that
// is closed drops there; and one that comes or goes loses nothing.
func TestFastFunctions(t *testing.T) {
	t.Parallel()
	c := newCrossing(t, onpath.FastAlways)
	f, g := c.Function("gw", 32), c.Function("gw", 33)
	c.through(f, g)
	c.apply()
	c.settle(1)
	before := c.functions()
	for range 10 {
		c.cross(1)
	}
	if n := c.carried(); n != 10 {
		t.Errorf("XDP carried %d packets, must carry 10: %+v", n, c.uplink("up0"))
	}
	for id, n := range c.functions() {
		if got := n.Passed.Packets - before[id].Passed.Packets; got != 10 {
			t.Errorf("function %d passed %d packets, must pass 10", id, got)
		}
	}
	if u := c.uplink("up0"); u.Ran == 0 || u.Ran != u.Carried {
		t.Errorf("the uplink is %+v: all that it carried went through functions", u)
	}
	counters, err := c.dp.Counters(t.Context())
	c.w.must(err)
	if v, p := counters.Vports[1], counters.Paths[1]; v.In != v.Out || v.In != p.Steered || v.In.Bytes != v.In.Packets*40 {
		t.Errorf("in %+v, out %+v, steered %+v", v.In, v.Out, p.Steered)
	}

	c.cfg.Vports[1].State = onpath.VportClosed
	c.apply()
	c.Send("gw", "up0", datapathtest.Frame{Packet: datagram(1)})
	if _, ok := c.Receive("gw", "up1", 100*time.Millisecond); ok {
		t.Error("a packet passed a function that is closed")
	}
	c.cfg.Vports[1].State = onpath.VportUp
	c.apply()
	c.settle(1)
}

func (c *crossing) functions() map[onpath.VportID]onpath.FunctionCounters {
	c.t.Helper()
	counters, err := c.dp.Counters(c.t.Context())
	c.w.must(err)
	return counters.Functions
}

// TestHostileFunctions: objects that were spoilt in a thousand ways are refused by
// the checker, by the kernel, or run beside the others; the traffic notices none.
func TestHostileFunctions(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("../datapathtest/exam_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := newCrossing(t, onpath.FastAlways)
	good := c.Function("gw", 32)
	c.through(good)
	c.apply()
	c.settle(1)
	const mostLoaded = 24
	refused, loaded, linked, id := 0, 0, 0, onpath.VportID(100)
	spoilt.Variants(code, 1000, seed, func(i int, variant []byte) {
		if i%10 == 0 {
			c.cross(1)
		}
		if _, err := bpfobject.Parse(variant); err != nil {
			refused++
			return
		}
		if loaded++; loaded > mostLoaded || t.Failed() {
			return
		}
		f := c.object(id, variant)
		id++
		c.through(good)
		c.add(f)
		c.apply()
		c.cross(1)
		n, ok := c.functions()[f.Vport]
		if !ok || n.Linked == (n.Error != "") {
			t.Errorf("variant %d is neither linked nor refused with a reason: %+v", i, n)
		}
		if n.Linked {
			linked++
		}
	})
	c.through(good)
	c.apply()
	c.settle(1)
	if refused < 100 || loaded == 0 {
		t.Errorf("%d variants were refused, %d accepted: the test does not try what it should", refused, loaded)
	}
	t.Logf("%d refused without the kernel, %d passed, %d of %d that were linked run", refused, loaded, linked, min(loaded, mostLoaded))
}
