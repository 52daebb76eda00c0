package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

// mostNames is how many instances an error names.
const mostNames = 6

// instance finds the instance that is meant: its name, or, where it has one
// only beside those that drain, its deployment's.
func (g *global) instance(ctx context.Context, cl *client.Client, name string) (*onpath.Instance, error) {
	if kind, rest, ok := strings.Cut(name, "/"); ok { // as kubectl takes them
		if k, err := parseKind(kind); err == nil && (k == onpath.KindInstance || k == onpath.KindDeployment) {
			name = rest
		}
	}
	k, err := g.key(onpath.KindInstance, name)
	if err != nil {
		return nil, err
	}
	o, err := cl.Get(ctx, k)
	if err == nil {
		return o.(*onpath.Instance), nil
	}
	if onpath.CodeOf(err) != onpath.CodeNotFound {
		return nil, err
	}
	list, _, listErr := cl.List(ctx, onpath.KindInstance, k.Tenant)
	if listErr != nil {
		return nil, listErr
	}
	var found []*onpath.Instance
	var names []string
	for _, o := range list {
		i := o.(*onpath.Instance)
		names = append(names, i.Metadata.Name)
		if i.Spec.Deployment == k.Name {
			found = append(found, i)
		}
	}
	if serving := slices.DeleteFunc(slices.Clone(found),
		func(i *onpath.Instance) bool { return !i.Spec.Draining.IsZero() }); len(serving) == 1 {
		return serving[0], nil
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		names = names[:0]
		for _, i := range found {
			names = append(names, i.Metadata.Name)
		}
		return nil, badUsage("deployment %s has %d instances: %s; say which", k.Name, len(found), strings.Join(names, ", "))
	}
	if err := g.withoutInstance(ctx, cl, k); err != nil {
		return nil, err
	}
	e := onpath.Errorf(onpath.CodeNotFound, "tenant %s has no instance and no deployment with an instance called %q", k.Tenant, k.Name)
	w := onpath.Nearest(k.Name, names)
	switch {
	case w != "":
		e.Remedy = "did you mean " + w + "?"
	case len(names) > 0 && len(names) <= mostNames:
		e.Remedy = "there are " + strings.Join(names, ", ")
	default:
		e.Remedy = "onpath get instances -t " + k.Tenant + " lists them"
	}
	return nil, otherTenant(ctx, cl, k, e)
}

// withoutInstance tells of a name that is no instance's, and a deployment's or a chain's.
func (g *global) withoutInstance(ctx context.Context, cl *client.Client, k onpath.Key) error {
	k.Kind = onpath.KindDeployment
	if _, err := g.object(ctx, cl, k); err == nil {
		e := onpath.Errorf(onpath.CodeNotFound, "%s has no instance", k)
		e.Remedy = "onpath describe deployment " + k.Tenant + "/" + k.Name + " says why"
		return e
	}
	k.Kind = onpath.KindChain
	o, err := cl.Get(ctx, k)
	if err != nil {
		return nil // it is no chain either
	}
	chain := o.(*onpath.Chain)
	var names []string
	for i := range chain.Spec.Through {
		if d := chain.Spec.Through[i].Deployment; d != "" {
			names = append(names, string(d))
		}
	}
	for _, d := range chain.OwnDeployments() {
		names = append(names, d.Metadata.Name)
	}
	e := onpath.Errorf(onpath.CodeNotFound, "%s is not an instance", k)
	e.Remedy = "name one of its deployments: " + strings.Join(names, ", ")
	return e
}
