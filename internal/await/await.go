// Package await says whether what was applied is so already, and in words what
// is still missing.
package await

import (
	"fmt"
	"strings"

	"github.com/onpath/onpath"
)

// Done reports whether o is as its spec wants it, and how it stands, in words.
// Objects without a state of their own are done at once.
func Done(o onpath.Object) (done bool, text string) {
	switch o := o.(type) {
	case *onpath.Chain:
		return chain(o)
	case *onpath.Deployment:
		return deployment(o)
	}
	return true, ""
}

// chain is done when all its elements have the instances they want and traffic
// is steered; a disabled one when none is.
func chain(c *onpath.Chain) (bool, string) {
	s := c.Status
	if c.Spec.Disabled {
		if s.Active {
			return false, "leaves the path"
		}
		return true, "disabled"
	}
	if len(s.Elements) != len(c.Spec.Through) {
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
		if e.Ready < want {
			all = false
			if e.Message != "" {
				parts[i] += " (" + e.Message + ")"
			}
		}
	}
	text := strings.Join(parts, " → ")
	if all && !s.Active {
		return false, text + ", " + orWaiting("rules are set", s.Conditions)
	}
	return all, text
}

func deployment(d *onpath.Deployment) (bool, string) {
	s := d.Status
	want := s.Desired
	if d.Spec.Instances != nil && want == 0 && len(d.Spec.Place.Cloudlets) > 0 {
		want = *d.Spec.Instances
	}
	text := fmt.Sprintf("%d/%d", s.Ready, want)
	if s.Ready >= want {
		return true, text
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
