package change

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store/mem"
)

// mostAtOnce is what the embedded store takes at once, in bytes.
const mostAtOnce = 10 << 20

// bounded is a store that takes no more than so many bytes at once.
type bounded struct {
	onpath.Store
	bytes int
}

func (b bounded) Write(ctx context.Context, all onpath.Batch) (onpath.Written, error) {
	size := 0
	for _, r := range all.Records {
		size += len(r.Value)
	}
	if size > b.bytes {
		return onpath.Written{}, fmt.Errorf("a batch of %d bytes is too large", size)
	}
	return b.Store.Write(ctx, all)
}

// TestHistoryOfLargeObjects: of many large objects that are written at once each has its
// version. All is a hundredth as large as it may be, which the race detector makes quick.
func TestHistoryOfLargeObjects(t *testing.T) {
	if historyWrite+mostHistory > mostAtOnce {
		t.Error("the store does not take what is written at once")
	}
	const small = 100
	s := bounded{mem.New(mem.Options{Keep: 100}), mostAtOnce / small}
	h := &history{store: s, log: slog.New(slog.DiscardHandler), clock: time.Now, atOnce: historyWrite / small}
	noise := make([]byte, 450_000/small)
	r := rand.NewChaCha8([32]byte{1})
	var all []changed
	for i := range 26 {
		_, _ = r.Read(noise)
		o, _ := onpath.New(onpath.KindFunction)
		f := o.(*onpath.Function)
		f.Metadata.Tenant, f.Metadata.Name = "t", fmt.Sprint("f", i)
		f.Spec.Container = &onpath.ContainerSpec{Files: map[string]onpath.File{"/f": {Content: base64.StdEncoding.EncodeToString(noise)}}}
		c := changed{change: onpath.Change{Key: onpath.KeyOf(f), Object: f}}
		c.result.Action = wire.Created
		all = append(all, c)
	}
	h.note(t.Context(), "somebody", all)
	for _, c := range all {
		if list, err := h.read(t.Context(), historyOf(c.change.Key)); err != nil || len(list) != 1 {
			t.Fatalf("%s has %d versions, %v", c.change.Key, len(list), err)
		}
	}
}
