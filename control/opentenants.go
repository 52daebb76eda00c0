package control

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/onpath/onpath"
)

// tenantsOpened is the record that says that openTenants was done in this store.
const tenantsOpened = "upgrade/tenants-without-addresses"

// openTenants writes all addresses into tenants that have none, once in a store: up to
// version 0.1 that meant any traffic, and now it means none. It is said of each.
func openTenants(ctx context.Context, s onpath.Store, log *slog.Logger) (opened []onpath.Change, err error) {
	done, err := s.Records(ctx, onpath.RecordsUnder(tenantsOpened))
	if err != nil || len(done.Records) > 0 {
		return nil, err
	}
	list, _, err := s.List(ctx, onpath.KindTenant, "")
	if err != nil {
		return nil, err
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
	if _, err := s.Write(ctx, b); err != nil {
		if onpath.CodeOf(err) == onpath.CodeUnavailable { // a disk that is full: it is done at the next start
			log.Error("tenants without addresses select nothing until they get some", "err", err)
			return nil, nil
		}
		return nil, err
	}
	for _, ch := range b.Changes {
		log.Warn("all addresses are written into a tenant that had none: narrow them", "tenant", ch.Key.Name)
	}
	return b.Changes, nil
}
