package control_test

import (
	"context"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/mem"
)

// TestOpenTenants: tenants of an earlier version keep what they may, which is written
// and said once; those that come later have what is given to them.
func TestOpenTenants(t *testing.T) {
	s := &site{t: t, store: mem.New(mem.Options{}), nodes: map[string]*fakeNode{}}
	addresses := func(name string) int {
		o, err := s.store.Get(context.Background(), onpath.Key{Kind: onpath.KindTenant, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return len(o.(*onpath.Tenant).Spec.Addresses)
	}
	write := func(name string) {
		o := object[*onpath.Tenant](onpath.KindTenant, "", name)
		if _, err := s.store.Write(context.Background(), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: o}}}); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	s.start()
	s.until("it is told", func() bool { return s.hasEvent("AddressesWritten") })
	write("after")
	s.stop()
	s.start()
	if addresses("before") != 2 || addresses("after") != 0 {
		t.Errorf("%d and %d addresses", addresses("before"), addresses("after"))
	}
}
