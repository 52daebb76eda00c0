package control

import (
	"encoding/json"
	"fmt"

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
		if i > begin && (size+n > partBytes || i-begin == onpath.SureWrite) {
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

// setAside leaves an object out of what is written, and says so in an event.
func (c *Controller) setAside(ch onpath.Change, err error) {
	c.mu.Lock()
	c.asides[ch.Key] = aside{version: ch.Version}
	c.mu.Unlock()
	c.log.Error("what was decided about an object does not fit into the store; it stays as it is", "object", ch.Key, "err", err)
	c.events.add(plan.Event{About: ch.Key, Reason: "SetAside", Warning: true,
		Message: fmt.Sprintf("what was decided about it cannot be stored, and it stays as it is: %v", err)}, c.o.Clock())
}
