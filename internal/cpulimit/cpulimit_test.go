package cpulimit

import (
	"testing"

	"github.com/onpath/onpath"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		cpu    onpath.CPU
		wait   bool
		quota  int64
		period uint64
		shares uint64
	}{
		{1000, false, 100_000, 100_000, 1024}, {100, true, 100_000, 1_000_000, 102}, {2500, false, 250_000, 100_000, 2560},
		{1, false, 1000, 100_000, 2},
	} {
		if got := Of(c.cpu, c.wait); *got.Quota != c.quota || *got.Period != c.period || *got.Shares != c.shares {
			t.Errorf("%s: quota %d of %d, shares %d", c.cpu, *got.Quota, *got.Period, *got.Shares)
		}
	}
	if Of(0, true) != nil {
		t.Error("no limit is one")
	}
}
