package plan

import (
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

const secretRemedy = "apply it: a Secret with that key, of the tenant whose instances need it"

// keepSecrets has the deployment's shape be another when a secret is that its function
// names: instances read secrets as they start. It notes one that is not there.
func (w *resolver) keepSecrets(d *deployment) {
	if len(d.traits.Secrets) == 0 {
		return
	}
	// Another tenant's function gets no secrets, whatever a server before allowed.
	foreign := d.fnName.tenant != d.key.tenant && d.fnName.tenant != onpath.OperatorTenant
	var read []string
	for _, file := range slices.Sorted(maps.Keys(d.traits.Secrets)) {
		n, key := d.traits.Secrets[file].Split()
		s, _ := lookUp[*onpath.Secret](w.world, onpath.KindSecret, name{d.key.tenant, n})
		if foreign || s == nil || s.Spec.Sealed[key] == "" {
			d.noSecret = d.key.tenant + "/" + string(d.traits.Secrets[file])
			continue
		}
		read = append(read, file, s.Spec.Sealed[key])
	}
	d.shape = hash([]any{d.shape, read})
}
