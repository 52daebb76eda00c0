package await

import (
	"fmt"
	"time"

	"github.com/onpath/onpath"
)

// Settles is how long what nobody but a person can change has to stay so before a wait for
// it ends: nodes may be about to join, and the state from before a change is to be replaced.
const Settles = 6 * time.Second

// Wait follows objects until they are as their specs want them. Callers say what the time is.
type Wait struct {
	// Functions are the generations that count, of functions that the objects use.
	Functions map[onpath.Key]int64
	// Ends is when nobody waits any longer.
	Ends time.Time

	since map[onpath.Key]seen
}

// seen is since when an object has stayed as it is for a reason.
type seen struct {
	reason string
	at     time.Time
}

// Standing is how an object stands.
type Standing struct {
	Done bool
	// Text says how far it is, and what is missing.
	Text string
	// Vain is why waiting longer is in vain; nil: it is not.
	Vain *Vain
}

// Vain is why an object stays as it is until somebody acts.
type Vain struct {
	Reason string // of the condition that says so
	Remedy string
}

// Look says how an object stands now.
func (w *Wait) Look(o onpath.Object, now time.Time) Standing {
	var s Standing
	if s.Done, s.Text = done(o, w.Functions); s.Done {
		delete(w.since, onpath.KeyOf(o))
		return s
	}
	c, ok := w.lasting(o)
	if ok && now.Before(c.Until) {
		s.Text += fmt.Sprintf(" (in %s)", c.Until.Sub(now).Truncate(time.Second))
	}
	s.Vain = w.vain(onpath.KeyOf(o), c, ok, now)
	return s
}

// vain is why it is in vain to wait for an object whose condition c lasts until somebody acts.
func (w *Wait) vain(k onpath.Key, c onpath.Condition, lasts bool, now time.Time) *Vain {
	if !lasts || c.Until.After(now) && !c.Until.After(w.Ends) {
		delete(w.since, k)
		return nil
	}
	if c.Until.After(now) {
		return &Vain{c.Reason, "what was applied stays, and begins by itself; to wait for that, give a longer --timeout"}
	}
	since, ok := w.since[k]
	if !ok || since.reason != c.Reason {
		since = seen{c.Reason, now}
		if w.since == nil {
			w.since = map[onpath.Key]seen{}
		}
		w.since[k] = since
	}
	if c.Reason != onpath.ReasonConfigRefused && now.Sub(since.at) < Settles {
		return nil
	}
	return &Vain{c.Reason, remedies[c.Reason]}
}

// remedies are what to do about what stays until somebody acts, by the reason of the condition.
var remedies = map[string]string{
	onpath.ReasonConfigRefused: "what was applied stays, and the function runs as before; mend its configuration and apply it again",
	onpath.ReasonImpossible:    "what was applied stays, without effect; correct it and apply it again",
	onpath.ReasonNotOwned:      "what was applied stays, without effect until the addresses are the tenant's",
	onpath.ReasonNoFunction:    "apply the function, or correct its name",
	onpath.ReasonNoGateway: "give a node an uplink (spec.uplinks, or uplinks in its onpath.yaml); " +
		"what was applied then begins by itself",
	onpath.ReasonNotAccepted: "accept the node: onpath node accept NAME; what was applied then begins by itself",
	onpath.ReasonUnplaceable: "ask for less, or for another place, and apply it again; or have a node that suits: " +
		"what was applied then begins by itself",
	onpath.ReasonImageMissing: "correct the image's name or tag and apply it again, or push the image there: " +
		"a node asks for it again and again",
	onpath.ReasonNotReserved: "onpath get reservations tells when it runs; what was applied then begins by itself",
}

// lasting is the condition for which the object stays as it is until somebody acts, or until
// the time that the condition says.
func (w *Wait) lasting(o onpath.Object) (onpath.Condition, bool) {
	var list []onpath.Condition
	current := true // what conditions say is of the object, and its functions, as they are now
	switch o := o.(type) {
	case *onpath.Chain:
		if o.Spec.Disabled {
			break // it leaves the path
		}
		list = o.Status.Conditions
		current = len(o.Status.Elements) == len(o.Spec.Through) && o.Status.Observed >= o.Metadata.Generation
		for i, e := range o.Status.Elements {
			current = current && e.FunctionGeneration >= generation(o, o.Spec.Through[i].Function, w.Functions)
		}
	case *onpath.Deployment:
		list = o.Status.Conditions
		current = o.Status.Observed >= o.Metadata.Generation &&
			o.Status.FunctionGeneration >= generation(o, o.Spec.Function, w.Functions)
	case *onpath.Service:
		list = o.Status.Conditions
	}
	for _, c := range list {
		if _, ok := remedies[c.Reason]; ok && c.Status != onpath.True && (current || c.Reason != onpath.ReasonConfigRefused) {
			return c, true
		}
	}
	return onpath.Condition{}, false
}
