package control

import (
	"context"
	"net/netip"

	"github.com/onpath/onpath"
)

// tenantsOpened is the record that says that openTenants was done in this store.
const tenantsOpened = "upgrade/tenants-without-addresses"

// openTenants writes all addresses into tenants that have none, once in a store: up to
// version 0.1 that meant any traffic, and now it means none. It is said of each.
func (c *Controller) openTenants(ctx context.Context) error {
	done, err := c.o.Store.Records(ctx, onpath.RecordsUnder(tenantsOpened))
	if err != nil || len(done.Records) > 0 {
		return err
	}
	list, _, err := c.o.Store.List(ctx, onpath.KindTenant, "")
	if err != nil {
		return err
	}
	b := onpath.Batch{Records: []onpath.Record{{Path: tenantsOpened}}}
	for _, o := range list {
		t := o.(*onpath.Tenant)
		if n := t.Metadata.Name; len(t.Spec.Addresses) > 0 || n == onpath.DefaultTenant || n == onpath.OperatorTenant {
			continue
		}
		t.Spec.Addresses = []onpath.Prefix{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}
		b.Changes = append(b.Changes, onpath.Change{Key: onpath.KeyOf(t), Object: t, Version: t.Metadata.Version})
	}
	if _, err := c.o.Store.Write(ctx, b); err != nil {
		if onpath.CodeOf(err) == onpath.CodeUnavailable { // a disk that is full: it is done at the next start
			c.log.Error("tenants without addresses select nothing until they get some", "err", err)
			return nil
		}
		return err
	}
	c.mu.Lock()
	for _, ch := range b.Changes {
		c.mirror.put(ch.Object)
	}
	c.mu.Unlock()
	for _, ch := range b.Changes {
		c.log.Warn("all addresses are written into a tenant that had none: narrow them", "tenant", ch.Key.Name)
		c.Tell(ch.Key, "AddressesWritten",
			"from now on a tenant without addresses selects nothing; all were written into it: narrow them", true)
	}
	return nil
}
