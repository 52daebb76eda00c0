package change

import (
	"maps"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/sealed"
)

// seal has nothing but sealed values left of a secret. Those that came sealed, as whoever
// reads a secret and applies it again has them, must be this secret's;
// what the secret before has sealed, the new one seals.
func (s *examiner) seal(o onpath.Object) error {
	x, ok := o.(*onpath.Secret)
	if !ok {
		return nil
	}
	k := onpath.KeyOf(x)
	if s.d.Sealed == nil {
		return onpath.Errorf(onpath.CodeUnavailable, "this server keeps no secrets")
	}
	values := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(x.Spec.Sealed)) {
		again, err := s.d.Sealed.Again(sealed.Place(k.Tenant, k.Name, key), x.Spec.Sealed[key])
		if err != nil {
			e := onpath.Errorf(onpath.CodeInvalid, "%w", err)
			e.Object, e.Field, e.Remedy = k.String(), "spec.sealed["+key+"]", "write the value into spec.data"
			return e
		}
		values[key] = again
	}
	for key, value := range x.Spec.Data {
		values[key] = s.d.Sealed.Seal(sealed.Place(k.Tenant, k.Name, key), value)
	}
	x.Spec.Data, x.Spec.Sealed = nil, values
	return nil
}
