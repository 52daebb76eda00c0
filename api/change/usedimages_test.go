package change

import (
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/store/mem"
)

// TestUsedImages: an image is used by a function, by what an unconfirmed change may bring
// back, and by the version to which a rollback may go.
func TestUsedImages(t *testing.T) {
	function := func(image string) *onpath.Function {
		o, _ := onpath.New(onpath.KindFunction)
		f := o.(*onpath.Function)
		f.Metadata.Tenant, f.Metadata.Name = "acme", "f"
		f.Spec.Container = &onpath.ContainerSpec{Image: image}
		return f
	}
	log := slog.New(slog.DiscardHandler)
	store := mem.New(mem.Options{Keep: 100})
	s, err := New(t.Context(), Deps{Store: store, Log: log, Clock: time.Now, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	now, was := function("now"), function("was")
	k := onpath.KeyOf(now)
	if _, err := store.Write(t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: k, Object: now}}}); err != nil {
		t.Fatal(err)
	}
	s.writer.history.note(t.Context(), "somebody", []changed{{change: onpath.Change{Key: k, Object: was},
		result: wire.ObjectChange{Action: wire.Created}}})
	before, _ := json.Marshal(function("waits"))
	s.writer.pending.open["id"] = undo{Pending: wire.Pending{ID: "id"}, Steps: []undoStep{{Before: before}}}
	images, err := s.UsedImages(t.Context())
	if slices.Sort(images); err != nil || !slices.Equal(images, []string{"now", "waits", "was"}) {
		t.Errorf("used are %v (%v)", images, err)
	}
}
