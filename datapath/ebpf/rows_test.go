package ebpf_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestRowOfOthers: a row of weights that was written for other members than the group has
// just now, as in the middle of a change, keeps no flow from any of them.
func TestRowOfOthers(t *testing.T) {
	t.Parallel()
	c := newTestbed(t)
	c.routed("gw", 16)
	c.routed("n2", 17)
	group := onpath.GroupOf(1, 0, false)
	rows := func(cfg *onpath.DatapathConfig) {
		for i := range cfg.Groups {
			if cfg.Groups[i].ID == group {
				cfg.Groups[i].Weights = []onpath.WeightRow{{Weights: []uint32{1000, 0}}}
			}
		}
	}
	c.apply(toServers(), rows, element(16, 16, 17, 17))
	port := 5000
	crossed := func() (a, b uint64) {
		a, b = c.out("gw", 16), c.out("n2", 17)
		const flows = 40
		for range flows {
			port++
			c.udp(c.client, fmt.Sprintf("10.1.0.2:%d", port), "10.9.0.2:9")()
		}
		var sum uint64
		for until := time.Now().Add(time.Minute); sum < flows && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			sum = c.out("gw", 16) - a + c.out("n2", 17) - b
		}
		if sum < flows {
			t.Errorf("%d of %d flows came to an instance", sum, flows)
		}
		return c.out("gw", 16) - a, c.out("n2", 17) - b
	}
	if a, b := crossed(); b > 0 {
		t.Errorf("with a row of weights 1000 and 0, %d and %d packets came to the instances", a, b)
	}
	if err := c.nodes["gw"].dp.ExchangeRow(group); err != nil {
		t.Fatal(err)
	}
	if a, b := crossed(); a < 5 || b < 5 {
		t.Errorf("with a row of others, %d and %d packets came to the instances, must be shared alike", a, b)
	}
}
