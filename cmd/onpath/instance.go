package main

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
	return nil, e
}
