package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// checkRemovals refuses to delete what others need, and says who they are: the
// error is about what was to be deleted, not about those that would lack it.
// Nodes are looked at by who knows which of them are connected.
func checkRemovals(before, after *Snapshot, changed []onpath.Key) (errs onpath.Errors) {
	for _, k := range changed {
		if o := before.Objects[k]; o == nil || after.Objects[k] != nil {
			continue
		}
		users := usersOf(after, k)
		if len(users) == 0 {
			continue
		}
		format, remedy := "it is used by %s", "delete or change that first"
		switch k.Kind {
		case onpath.KindTenant:
			format, remedy = "it still has %s", "delete its objects first"
		case onpath.KindCloudlet:
			remedy = "delete or change that first; a node's cloudlet is in its own configuration"
		}
		e := onpath.Errorf(onpath.CodeInvalid, format, Enumerate(named(k, users)))
		e.Object, e.Remedy = k.String(), remedy
		if all := textsOf(users); !slices.Equal(all, named(k, users)) {
			e.Cause = errors.New(Enumerate(all))
		}
		errs = append(errs, e)
	}
	return errs
}

// Enumerate names the first few of a list and counts the others.
func Enumerate(list []string) string {
	const shown = 5
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

// named are users of k as k's tenant may read of them: of other tenants' only that they
// are there.
func named(k onpath.Key, users []onpath.Key) []string {
	own := slices.DeleteFunc(slices.Clone(users), func(u onpath.Key) bool { return k.Kind.Tenanted() && u.Tenant != k.Tenant })
	out := textsOf(own)
	if len(own) < len(users) {
		out = append(out, "objects of other tenants")
	}
	return out
}

func textsOf(keys []onpath.Key) (out []string) {
	for _, k := range keys {
		out = append(out, k.String())
	}
	return out
}

// usersOf are the objects that need k, in order.
func usersOf(s *Snapshot, k onpath.Key) (out []onpath.Key) {
	w := &world{Snapshot: s}
	for _, u := range w.keys() {
		if !u.Kind.ReadOnly() && uses(s.Objects[u], u, k) {
			out = append(out, u)
		}
	}
	return out
}

// uses reports whether object o, whose key is u, needs k.
func uses(o onpath.Object, u, k onpath.Key) bool {
	if k.Kind == onpath.KindTenant {
		return u.Kind.Tenanted() && u.Tenant == k.Name
	}
	is := func(kind onpath.Kind, r onpath.Ref) bool {
		return r != "" && k.Kind == kind && resolve(r, u.Tenant) == name{k.Tenant, k.Name}
	}
	in := func(cloudlets []string) bool {
		for _, c := range cloudlets {
			if k.Kind == onpath.KindCloudlet && c == k.Name {
				return true
			}
		}
		return false
	}
	switch o := o.(type) {
	case *onpath.Node:
		return in([]string{o.Spec.Cloudlet})
	case *onpath.Deployment:
		return is(onpath.KindFunction, o.Spec.Function) || in(o.Spec.Place.Cloudlets)
	case *onpath.Service:
		return is(onpath.KindDeployment, o.Spec.Deployment) || in(o.Spec.Cloudlets)
	case *onpath.Chain:
		if o.Metadata.Labels[onpath.ServiceLabel] != "" {
			return false // it goes with its service
		}
		for _, e := range o.Spec.Through {
			if is(onpath.KindFunction, e.Function) || is(onpath.KindDeployment, e.Deployment) || in(e.Place.Cloudlets) {
				return true
			}
		}
		for _, e := range []onpath.Endpoints{o.Spec.From, o.Spec.To} {
			if is(onpath.KindHosts, e.Hosts) || is(onpath.KindDeployment, e.Deployment) {
				return true
			}
		}
		return in(o.Spec.At.Cloudlets)
	}
	return false
}
