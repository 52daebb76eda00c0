// Package await says whether what was applied is so already, and in words what
// is still missing.
package await

import (
	"fmt"
	"strings"

	"github.com/onpath/onpath"
)

// done reports whether o is as its spec wants it, and how it stands, in words.
// Objects without a state of their own are done at once. What it tells counts for
// functions of at least these generations.
func done(o onpath.Object, functions map[onpath.Key]int64) (ok bool, text string) {
	switch o := o.(type) {
	case *onpath.Chain:
		return chain(o, functions)
	case *onpath.Deployment:
		return deployment(o, functions)
	case *onpath.Accelerator:
		return accelerator(o)
	case *onpath.Service:
		return service(o)
	}
	return true, ""
}

// generation is that of a function that o refers to, as far as it is known.
func generation(o onpath.Object, r onpath.Ref, functions map[onpath.Key]int64) int64 {
	k := onpath.Key{Kind: onpath.KindFunction}
	k.Tenant, k.Name = r.Resolve(o.Meta().Tenant)
	return functions[k]
}

// Uses reports whether a chain or deployment has instances of one of the
// functions.
func Uses(o onpath.Object, functions map[onpath.Key]int64) bool {
	switch o := o.(type) {
	case *onpath.Chain:
		for _, e := range o.Spec.Through {
			if generation(o, e.Function, functions) > 0 {
				return !o.Spec.Disabled
			}
		}
	case *onpath.Deployment:
		return generation(o, o.Spec.Function, functions) > 0
	}
	return false
}

// chain is done when all its elements have the instances they want and traffic
// is steered; a disabled one when none is.
func chain(c *onpath.Chain, functions map[onpath.Key]int64) (bool, string) {
	s := c.Status
	if c.Spec.Disabled {
		if s.Active {
			return false, "leaves the path"
		}
		return true, "disabled"
	}
	if len(s.Elements) != len(c.Spec.Through) || s.Observed < c.Metadata.Generation {
		return false, orWaiting("is planned", s.Conditions)
	}
	all := true
	parts := make([]string, len(s.Elements))
	for i, e := range s.Elements {
		want := e.Desired
		if n := c.Spec.Through[i].Instances; n != nil {
			want = max(want, *n)
		}
		parts[i] = fmt.Sprintf("%s %d/%d", short(e.Deployment), e.Ready, want)
		current := e.FunctionGeneration >= generation(c, c.Spec.Through[i].Function, functions)
		if e.Ready >= want && (e.Outdated > 0 || !current) {
			parts[i] += before(e.Ready, e.Outdated)
		}
		if e.Ready < want || e.Outdated > 0 || !current {
			all = false
			if e.Message != "" {
				parts[i] += " (" + e.Message + ")"
			}
		}
	}
	text := strings.Join(parts, " → ")
	if why := hindered(s.Conditions); !all && why != "" {
		return false, text + ", " + why
	}
	if all && (!s.Active || len(s.Cloudlets) == 0) { // active, and in no cloudlet: the path from before the change
		return false, text + ", " + orWaiting("rules are set", s.Conditions)
	}
	return all, text
}

// hindered is why a chain is not active that would not be with all its instances, either:
// its reservation has not begun, no cloudlet has a gateway.
func hindered(list []onpath.Condition) string {
	for _, c := range list {
		if c.Type == "Active" && c.Status == onpath.False && c.Reason != "Waiting" {
			return c.Message
		}
	}
	return ""
}

// accelerator is done when its connections are taken over and its paths are known.
func accelerator(a *onpath.Accelerator) (bool, string) {
	for _, c := range a.Status.Conditions {
		if c.Type == "Active" {
			return c.Status == onpath.True && len(a.Status.Paths) > 0, c.Message
		}
	}
	return false, "is planned"
}

// before says how many of the instances are not as they are to be now: all, if no number
// is known.
func before(ready, outdated int) string {
	if 0 < outdated && outdated < ready {
		return fmt.Sprintf(", %d from before the change", outdated)
	}
	return " from before the change"
}

// service is done when it answers in all its cloudlets.
func service(s *onpath.Service) (bool, string) {
	for _, c := range s.Status.Conditions {
		if c.Type == "Active" {
			return c.Status == onpath.True, c.Message
		}
	}
	return false, "is planned"
}

func deployment(d *onpath.Deployment, functions map[onpath.Key]int64) (bool, string) {
	s := d.Status
	want := s.Desired
	if d.Spec.Instances != nil && want == 0 && len(d.Spec.Place.Cloudlets) > 0 {
		want = *d.Spec.Instances
	}
	text := fmt.Sprintf("%d/%d", s.Ready, want)
	current := s.Observed >= d.Metadata.Generation && s.FunctionGeneration >= generation(d, d.Spec.Function, functions)
	switch {
	case s.Ready >= want && s.Outdated == 0 && current:
		return true, text
	case s.Ready >= want:
		text += before(s.Ready, s.Outdated)
	}
	if m := message(s.Conditions); m != "" {
		text += " (" + m + ")"
	}
	return false, text
}

func short(deployment string) string {
	_, name := onpath.Ref(deployment).Resolve("")
	return name
}

func orWaiting(text string, list []onpath.Condition) string {
	if m := message(list); m != "" {
		return m
	}
	return text
}

// message is that of the first condition which is not as it should be.
func message(list []onpath.Condition) string {
	for _, c := range list {
		if c.Status != onpath.True && c.Message != "" {
			return c.Message
		}
	}
	return ""
}
