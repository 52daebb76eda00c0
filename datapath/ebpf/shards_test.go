package ebpf_test

import (
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/bpfobject"
)

// TestManyFunctions: more functions than one program may have the tables of, which
// all run, first and last, at tc and at XDP, and go on over a restart.
func TestManyFunctions(t *testing.T) {
	t.Parallel()
	for _, fast := range []onpath.Fast{onpath.FastNever, onpath.FastAlways} {
		t.Run(string(fast), func(t *testing.T) {
			c := newCrossing(t, fast)
			var all []onpath.InlineFunction
			for id := onpath.VportID(32); id < 32+60; id++ {
				all = append(all, c.Function("gw", id))
			}
			c.through(all[0], all[59], all[1], all[58], all[30], all[57])
			for _, f := range all[2:57] {
				if f != all[30] {
					c.add(f)
				}
			}
			c.apply()
			for id, n := range c.functions() {
				if !n.Linked {
					t.Errorf("function %d is not linked: %s", id, n.Error)
				}
			}
			if n := driverOf(c.dp).Shards(); n < 2 {
				t.Errorf("%d functions are in %d dispatchers", len(all), n)
			}
			c.crossed(fast, all[0], all[59], all[30])
			c.through(all[59], all[0]) // the others go
			c.apply()
			c.crossed(fast, all[0], all[59])
			c.through(all[0])
			c.apply()
			if n := driverOf(c.dp).Shards(); n != 1 {
				t.Errorf("one function is in %d dispatchers", n)
			}
			c.crossed(fast, all[0])
		})
	}
}

// TestShardEach: functions in a dispatcher each hand packets over to each other.
func TestShardEach(t *testing.T) {
	o, err := bpfobject.Parse(datapathtest.ExamObject)
	if err != nil {
		t.Fatal(err)
	}
	defer ebpf.SetProgramMaps(len(o.Tables))() // no second one fits beside
	for _, fast := range []onpath.Fast{onpath.FastNever, onpath.FastAlways} {
		t.Run(string(fast), func(t *testing.T) {
			c := newCrossing(t, fast)
			var all []onpath.InlineFunction
			for id := onpath.VportID(32); id < 32+8; id++ {
				all = append(all, c.Function("gw", id))
			}
			c.through(all...)
			c.apply()
			if n := driverOf(c.dp).Shards(); n != len(all) {
				t.Errorf("%d functions are in %d dispatchers", len(all), n)
			}
			c.crossed(fast, all...)
		})
	}
}

// crossed sends ten packets and wants each function to see each of them once.
func (c *crossing) crossed(fast onpath.Fast, fs ...onpath.InlineFunction) {
	c.t.Helper()
	if fast == onpath.FastAlways {
		c.settle(1)
	}
	before := c.functions()
	for range 10 {
		c.cross(1)
	}
	if n := c.carried(); fast == onpath.FastAlways && n != 10 {
		c.t.Errorf("XDP carried %d packets, must carry 10", n)
	}
	now := c.functions()
	for _, f := range fs {
		if got := now[f.Vport].Passed.Packets - before[f.Vport].Passed.Packets; got != 10 {
			c.t.Errorf("function %d passed %d packets, must pass 10", f.Vport, got)
		}
	}
}
