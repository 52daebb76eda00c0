package pool

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestNewsOnly: reservations of a later day are no news to the planner; one that begins is,
// and one that frees what nodes had promised.
func TestNewsOnly(t *testing.T) {
	f := setUp(t)
	news := 0
	f.queue.changed = func() { news++ }
	var list []onpath.Key
	for i := range 20 {
		r := request(fmt.Sprint("later-", i), 24*time.Hour, 25*time.Hour, cores(0.1))
		r.Spec.Cloudlet = "fra"
		f.must(r)
		list = append(list, onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: r.Metadata.Name})
	}
	if news != 0 {
		t.Errorf("20 reservations of tomorrow had the planner plan %d times", news)
	}
	if _, err := f.Apply(t.Context(), nil, list[:1], false); err != nil || news != 1 {
		t.Errorf("one that is cancelled: %d times, %v", news, err)
	}
	news = 0
	if f.pass(24*time.Hour + time.Minute); news == 0 {
		t.Error("what begins does not reach the planner")
	}
}
