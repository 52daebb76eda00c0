package pool

import (
	"time"

	"github.com/onpath/onpath"
)

// admission decides on reservations: by what is promised, stored and paid, a request and the
// time. It writes nothing, and asks nobody.
type admission struct {
	promises   *promises
	rows       *rows
	accounting *accounting
	use        func(reservation onpath.Key) Use // nil: unknown
	now        time.Time
}

// usedFor is what a reservation is used for.
func (a admission) usedFor(k onpath.Key) (u Use) {
	if a.use != nil {
		u = a.use(k)
	}
	return u
}
