package control

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// partBytes is how much one write of decisions has, as JSON: less than any etcd takes.
const partBytes = 1 << 20

// partsOf divides changes into what fits into one write, in number and in bytes.
func partsOf(changes []onpath.Change) (parts [][]onpath.Change) {
	begin, size := 0, 0
	for i, ch := range changes {
		n := 0
		if ch.Object != nil {
			data, _ := json.Marshal(ch.Object) // every Object marshals
			n = len(data)
		}
		if i > begin && (size+n > partBytes || i-begin == onpath.SureWrite-1) { // and a record of the log
			parts, begin, size = append(parts, changes[begin:i]), i, 0
		}
		size += n
	}
	if begin < len(changes) {
		parts = append(parts, changes[begin:])
	}
	return parts
}

// aside is an object that the store does not take as it was decided.
type aside struct {
	version int64
}

// isSetAside reports whether an object is left as it is stored, because what was
// decided about it does not fit into the store: all others go on. Its next change
// ends that. Callers hold mu.
func (c *Controller) isSetAside(ch onpath.Change) bool {
	a, ok := c.asides[ch.Key]
	if ok && a.version != ch.Version {
		delete(c.asides, ch.Key)
		return false
	}
	return ok
}

// conditionStored is the type of the condition that is false while an object is set
// aside.
const conditionStored = "Stored"

// setAside leaves an object out of what is written, and has its condition and an event
// say so.
func (c *Controller) setAside(ctx context.Context, ch onpath.Change, err error) {
	message := onpath.ClipText(fmt.Sprintf("what was decided about it cannot be stored, and it stays as it is: %v", err))
	version := ch.Version
	c.mu.Lock()
	there := c.mirror.objects[ch.Key]
	c.mu.Unlock()
	if there != nil && conditionsOf(there) != nil {
		marked := onpath.Clone(there)
		onpath.SetCondition(conditionsOf(marked), onpath.Condition{Type: conditionStored, Status: onpath.False, Reason: "SetAside",
			Message: message, Since: c.o.Clock().UTC().Round(0)})
		one := []onpath.Change{{Key: ch.Key, Object: marked, Version: version}}
		if _, err := c.o.Store.Write(ctx, onpath.Batch{Changes: one}); err == nil {
			version = marked.Meta().Version
			c.took(one)
		}
	}
	c.mu.Lock()
	c.asides[ch.Key] = aside{version: version}
	c.mu.Unlock()
	c.log.Error("what was decided about an object does not fit into the store; it stays as it is", "object", ch.Key, "err", err)
	c.events.Add(plan.Event{About: ch.Key, Reason: "SetAside", Warning: true, Message: message}, c.o.Clock())
}

// conditionsOf are an object's, nil if it has none.
func conditionsOf(o onpath.Object) *[]onpath.Condition {
	status := reflect.ValueOf(o).Elem().FieldByName("Status")
	if !status.IsValid() || status.Kind() != reflect.Struct {
		return nil
	}
	f := status.FieldByName("Conditions")
	if !f.IsValid() {
		return nil
	}
	list, _ := f.Addr().Interface().(*[]onpath.Condition)
	return list
}

// stored takes the mark of an object that was set aside off, for another attempt.
func stored(o onpath.Object) {
	if list := conditionsOf(o); list != nil {
		*list = slices.DeleteFunc(*list, func(c onpath.Condition) bool { return c.Type == conditionStored })
	}
}
