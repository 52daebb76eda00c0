package control

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"

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

// asides are the objects that the store does not take as they were decided, with the versions
// of which that is so.
type asides struct {
	mu sync.Mutex
	of map[onpath.Key]int64
}

// has reports whether an object is left as it is stored, because what was decided about it
// does not fit into the store: all others go on. Its next change ends that.
func (a *asides) has(ch onpath.Change) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, ok := a.of[ch.Key]
	if ok && version != ch.Version {
		delete(a.of, ch.Key)
		return false
	}
	return ok
}

func (a *asides) add(k onpath.Key, version int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[onpath.Key]int64{}
	}
	a.of[k] = version
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
	there := c.core.mirror.objects[ch.Key]
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
	c.core.asides.add(ch.Key, version)
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
