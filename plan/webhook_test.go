package plan

import (
	"fmt"
	"testing"

	"github.com/onpath/onpath"
)

// TestCheckWebhooks: a tenant has so many, whatever others have.
func TestCheckWebhooks(t *testing.T) {
	s := &Snapshot{Objects: map[onpath.Key]onpath.Object{}}
	var changed []onpath.Key
	for i := range onpath.MaxWebhooks + 1 {
		for _, tenant := range []string{"acme", "other"} {
			w := &onpath.Webhook{Metadata: onpath.Metadata{Name: fmt.Sprint("w", i), Tenant: tenant}}
			if tenant == "other" && i == onpath.MaxWebhooks {
				continue
			}
			s.Objects[onpath.KeyOf(w)] = w
			changed = append(changed, onpath.KeyOf(w))
		}
	}
	last := onpath.Key{Kind: onpath.KindWebhook, Tenant: "acme", Name: fmt.Sprint("w", onpath.MaxWebhooks)}
	if errs := checkWebhooks(s, []onpath.Key{last}); len(errs) != 1 || errs[0].Code != onpath.CodeNoCapacity {
		t.Errorf("one too many: %v", errs)
	}
	delete(s.Objects, last)
	if errs := checkWebhooks(s, changed); len(errs) > 0 {
		t.Errorf("as many as there may be, one deleted: %v", errs)
	}
}
