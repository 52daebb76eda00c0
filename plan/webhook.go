package plan

import "github.com/onpath/onpath"

// checkWebhooks refuses more webhooks than a tenant may have.
func checkWebhooks(after *Snapshot, changed []onpath.Key) (errs onpath.Errors) {
	for _, k := range changed {
		o := after.Objects[k]
		if k.Kind != onpath.KindWebhook || o == nil {
			continue
		}
		n := 0
		for other := range after.Objects {
			if other.Kind == onpath.KindWebhook && other.Tenant == k.Tenant {
				n++
			}
		}
		if n > onpath.MaxWebhooks {
			errs = append(errs, fault(o, onpath.CodeNoCapacity, "", "delete one that is not needed",
				"tenant %s would have %d webhooks; it may have %d", k.Tenant, n, onpath.MaxWebhooks))
		}
	}
	return errs
}
